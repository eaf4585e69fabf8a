/** value_stream: one byte per epoch, one privacy loss for a whole stream (`randomizers/value_stream`). */

import { STEP, TAIL, ZERO, symbolAt, tables, tailSymbolAt } from '../lattice.js';
import { check, checkLoss, constants, float, hexadecimal, large, perStream, whole } from '../laws.js';
import { distributionFunction } from '../normal.js';
import { FollowingDevice } from './following.js';

/** @typedef {import('../byte_generator.js').ByteGenerator} ByteGenerator */

const FLOOR = 2 ** -20;
const MOST_TRIES = 64;
const ALL = 2 ** 64;

export class ValueStream extends FollowingDevice {
  /** @param {any} body */
  constructor(body) {
    const names = ['last_epoch', 'epsilon', 'max_changes', 'noise', 'boost', 'decay', 'squared_norm_budget', 'theta', 'gain'];
    constants('value_stream', body, names);
    const [boost, decay, squaredNormBudget, theta, gain] = names.slice(4).map((name) => hexadecimal(name, body[name]));
    const lastEpoch = whole('last_epoch', body.last_epoch, 1, 1 << 20);
    super(lastEpoch, whole('max_changes', body.max_changes, 1, 1 << 15), boost, decay);
    this.reserve = ((boost + 0.5) * (boost + 0.5)) / 40;
    check(
      boost >= 0 && decay >= 0 && decay < 1 && squaredNormBudget > this.reserve,
      `boost is ${boost}, decay is ${decay} and squared_norm_budget is ${squaredNormBudget}; expected boost of at ` +
        `least 0, decay of at least 0 and below 1, and squared_norm_budget above ${this.reserve}`,
    );
    check(theta > 0 && gain > 0, `theta is ${theta} and gain is ${gain}; expected positive numbers`);
    this.squaredNormBudget = squaredNormBudget;
    this.noise = large('noise', body.noise, 1n);
    check(this.noise < 1n << 64n, `noise is ${this.noise}; expected a number below 2^64`);
    this.goal = theta * Math.sqrt(squaredNormBudget);
    const share = Number(this.noise) / ALL;
    const loss = Math.log1p((1 - share) / (share * this.reach(0, squaredNormBudget)));
    checkLoss(loss + lastEpoch * 3e-10, float('epsilon', body.epsilon));
    this.loss = perStream(body.epsilon);
  }

  /** @returns {Record<string, import('../device.js').Field>} */
  fields() {
    return {
      ...super.fields(),
      noise: { dtype: '|u1', least: 0, most: 1 },
      sum: { dtype: '<f8' },
      left: { dtype: '<f8', least: 0, most: this.squaredNormBudget },
    };
  }

  /** @param {ByteGenerator} random @returns {Record<string, any>} */
  draw(random) {
    const noise = Number(random.words(1)[0] < this.noise);
    return { ...super.draw(random), noise: [noise], left: [this.squaredNormBudget] };
  }

  /**
   * Return the probability of ending above the goal.
   *
   * @param {number} sum
   * @param {number} left
   */
  reach(sum, left) {
    return Math.max(distributionFunction((sum - this.goal) / Math.sqrt(left)), FLOOR);
  }

  /**
   * @param {number} epoch
   * @param {number} value
   * @param {ByteGenerator} random
   */
  words(epoch, value, random) {
    const { noise, sum, left } = this.kept;
    const pulled = this.follow(epoch, value);
    if (noise[0]) return Uint8Array.of(symbolAt(random.words(1)[0]) + ZERO);
    const lasting = Math.sqrt(Math.max(left[0] - this.reserve, 0));
    const most = Math.min(lasting, this.boost + 0.5);
    const step = Math.min(Math.max(pulled, -most), most);
    left[0] -= step * step;
    const symbol = this.#tilted(step, sum[0], left[0], random);
    sum[0] += step * (symbol * STEP);
    return Uint8Array.of(symbol + ZERO);
  }

  /**
   * Draw a symbol by rejection, with tries in batches as in `draw_tilted_symbols`.
   *
   * @param {number} step
   * @param {number} sum
   * @param {number} left
   * @param {ByteGenerator} random
   */
  #tilted(step, sum, left, random) {
    const bound = this.reach(sum + TAIL * Math.abs(step), left);
    const box = 2 ** tables().boxBits / 2 ** 62;
    const ofTail = BigInt(Math.floor((box / (box + bound)) * ALL));
    const towards = step < 0 ? -1 : 1;
    for (let tries = 1; ; tries = Math.min(2 * tries, MOST_TRIES)) {
      const choices = random.words(tries);
      const places = random.words(tries);
      const words = random.words(tries);
      for (let index = 0; index < tries; index++) {
        const inTail = choices[index] < ofTail;
        const symbol = inTail ? towards * tailSymbolAt(places[index]) : symbolAt(places[index]);
        if (inTail ? symbol === 0 : symbol * towards > TAIL / STEP) continue;
        const share = this.reach(sum + step * (symbol * STEP), left) / (inTail ? 1 : bound);
        if (share >= 1 || words[index] < BigInt(Math.floor(share * ALL))) return symbol;
      }
    }
  }
}
