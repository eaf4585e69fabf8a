/** value_stream for the shuffle model: one message per epoch (`randomizers/shuffled_counts/shuffled_value_stream`). */

import { check, checkApproximate, constants, hexadecimal, oneOf, perStream, whole } from '../laws.js';
import { ofNormal } from '../least_delta.js';
import { FollowingDevice } from './following.js';

const STEPS = 256;
/** Message that encodes 0. */
const ZERO = 1 << 15;
const MOST_BOOST = (ZERO - 1) / STEPS - 0.5;
const ALL = 2 ** 64;

export class ShuffledValueStream extends FollowingDevice {
  /** @param {any} body */
  constructor(body) {
    const names = ['last_epoch', 'epsilon', 'delta', 'max_changes', 'calibration', 'squared_norm_budget', 'deviation', 'boost', 'decay'];
    constants('shuffled_value_stream', body, names);
    checkApproximate(body);
    oneOf('calibration', body.calibration, ['normal']);
    const boost = hexadecimal('boost', body.boost);
    const decay = hexadecimal('decay', body.decay);
    check(
      boost >= 0 && boost <= MOST_BOOST && decay >= 0 && decay < 1,
      `boost is ${boost} and decay is ${decay}; expected boost 0 to ${MOST_BOOST} and decay at least 0 and below 1`,
    );
    const lastEpoch = whole('last_epoch', body.last_epoch, 1, 1 << 20);
    super(lastEpoch, whole('max_changes', body.max_changes, 1, 1 << 20), boost, decay);
    this.loss = perStream(body.epsilon, body.delta);
    this.squaredNormBudget = whole('squared_norm_budget', body.squared_norm_budget, 1, 2 ** 52);
    this.deviation = whole('deviation', body.deviation, 1, 2 ** 48);
    this.most = Math.ceil((boost + 0.5) * STEPS);
    this.wordType = Uint16Array;
  }

  leastDelta() {
    return ofNormal(2 * Math.sqrt(this.squaredNormBudget), this.deviation, this.loss.epsilon);
  }

  /** @returns {Record<string, import('../device.js').Field>} */
  fields() {
    return { ...super.fields(), left: { dtype: '<i8', least: 0n, most: BigInt(this.squaredNormBudget) } };
  }

  /** @param {import('../byte_generator.js').ByteGenerator} random */
  draw(random) {
    return { ...super.draw(random), left: [BigInt(this.squaredNormBudget)] };
  }

  /**
   * @param {number} epoch
   * @param {number} value
   * @param {import('../byte_generator.js').ByteGenerator} random
   */
  words(epoch, value, random) {
    const { left } = this.kept;
    const exact = this.exact(epoch, value) * STEPS;
    const most = Math.min(Math.floor(Math.sqrt(Number(left[0]))), this.most);
    const clipped = Math.min(Math.max(exact, -most), most);
    const lower = Math.floor(clipped);
    const share = Math.min(clipped - lower, 1 - 2 ** -53);
    const up = random.words(1)[0] < BigInt(Math.floor(share * ALL));
    const steps = lower + Number(up);
    left[0] -= BigInt(steps) * BigInt(steps);
    return Uint16Array.of(steps + ZERO);
  }

  /** @param {number} epoch @param {number} value */
  exact(epoch, value) {
    return this.follow(epoch, value);
  }
}

/** The same for a number from 0 to 1, in units of 2^-32. */
export class ShuffledNumberStream extends ShuffledValueStream {
  /** @returns {Record<string, import('../device.js').Field>} */
  fields() {
    return { ...super.fields(), fraction: { dtype: '<u4' }, spare: { dtype: '<u4' } };
  }

  /** @param {number} epoch @param {number} value */
  exact(epoch, value) {
    return this.followNumber(epoch, value);
  }
}
