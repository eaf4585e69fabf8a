/** Sampled response: answers at few epochs of a horizon (`randomizers/sampled_response`). */

import { Device, sorted, wordType } from '../device.js';
import { check, checkLoss, constants, float, perStream, shown, whole } from '../laws.js';
import { readSets } from '../set_systems.js';
import { drawDiffering, readComposed } from './future_rand.js';
import { checkedItem } from './items.js';

/** @typedef {import('../byte_generator.js').ByteGenerator} ByteGenerator */

const MOST_REPORTS = 8;

export class SampledResponse extends Device {
  /** @param {any} body */
  constructor(body) {
    constants('sampled_response', body, ['last_epoch', 'epsilon', 'flips', 'sets', 'items', 'complete', 'slots']);
    super(whole('last_epoch', body.last_epoch, 1, 1 << 20));
    this.flips = readComposed(body.flips);
    this.answers = this.flips.k;
    check(
      this.answers <= Math.min(MOST_REPORTS, this.lastEpoch),
      `${this.answers} answers in ${this.lastEpoch} epochs; expected at most one at an epoch, and at most ${MOST_REPORTS}`,
    );
    this.sets = readSets(body.sets);
    this.items = whole('items', body.items, 1, 1 << 20);
    /** True if every user has an item; a device without one answers for a random item. */
    this.complete = body.complete;
    check(
      typeof this.complete === 'boolean' && this.items + Number(!this.complete) <= this.sets.mostValues,
      `complete is ${shown(body.complete)} with ${this.items} items; expected true or false, and at most ${this.sets.mostValues} values`,
    );
    check(body.slots === 1, `slots is ${shown(body.slots)}; expected 1: this library answers about one item`);
    // Total weight of all sequences with d answers outside their sets, for d = 0 to r.
    const [block, outside] = [BigInt(this.sets.block), BigInt(this.sets.outside)];
    this.masses = this.flips.masses.map(
      (mass, distance) => mass * block ** BigInt(this.answers - distance) * outside ** BigInt(distance),
    );
    this.wordType = wordType(this.sets.points);
    checkLoss(this.flips.loss, float('epsilon', body.epsilon));
    this.lasting = ['phase'];
    if (this.answers === 1) this.rolling = { epochs: this.lastEpoch, epsilon: this.flips.loss };
    this.loss = perStream(this.flips.loss);
  }

  /** @returns {Record<string, import('../device.js').Field>} */
  fields() {
    return {
      phase: { dtype: '<u4', least: 0, most: this.lastEpoch - 1 },
      flips: { dtype: '|u1', least: 0, most: 2 ** this.answers - 1 },
    };
  }

  /** @param {ByteGenerator} random @returns {Record<string, any>} */
  draw(random) {
    const phase = random.integers(this.lastEpoch, 1);
    // Bit i, counted from the lowest: the i-th answer in time is outside the set of its value.
    const differing = drawDiffering({ k: this.answers, masses: this.masses }, random);
    const flips = differing.reduce((bits, differs, answer) => bits | (Number(differs) << answer), 0);
    return { phase, flips: [flips] };
  }

  /** Return the epochs at which the device answers, ascending. */
  asked() {
    const { lastEpoch, answers } = this;
    const phase = this.kept.phase[0];
    return Array.from({ length: answers }, (_, answer) => ((phase + Math.floor((answer * lastEpoch) / answers)) % lastEpoch) + 1).sort(
      (one, other) => one - other,
    );
  }

  /** @param {any} value */
  checked(value) {
    return this.items > 1 || this.complete ? checkedItem(value, this.items) : super.checked(value);
  }

  /**
   * @param {number} epoch
   * @param {number} value
   * @param {ByteGenerator} random
   */
  words(epoch, value, random) {
    const answer = this.asked().indexOf(epoch);
    if (answer < 0) return sorted(this.wordType, []);
    let number = value;
    if (this.complete) {
      const [drawn] = random.integers(this.items, 1);
      number = value ? value - 1 : drawn;
    }
    const inside = ((this.kept.flips[0] >> answer) & 1) === 0;
    return sorted(this.wordType, [this.sets.draw(number, inside, random)]);
  }
}
