/** Numbers over time, reported on one level of a tree (`randomizers/value_stream/range_values`). */

import { check, constants, large, list } from '../laws.js';
import { DividedDevice } from './divided.js';
import { HadamardValues } from './hadamard_values.js';
import { checkedItem } from './items.js';

/** @typedef {import('../byte_generator.js').ByteGenerator} ByteGenerator */

/** Factor of the level in a message. */
const LEVEL = 1 << 24;

export class RangeValues extends DividedDevice {
  /** @param {any} body */
  constructor(body) {
    constants('range_values', body, ['levels', 'level_weights']);
    const levels = list('levels', body.levels).map((level) => new HadamardValues(level));
    const weights = list('level_weights', body.level_weights).map((weight) => large('level weight', weight));
    check(
      levels.length && levels.every(({ items }, index) => items === 2 ** (index + 1)),
      `levels have ${levels.map(({ items }) => items).slice(0, 20)} nodes; expected 2, 4, 8, ...`,
    );
    check(weights.length === levels.length, `got ${weights.length} level weights; expected ${levels.length}`);
    check(weights[weights.length - 1] > 0n, 'the weight of the last level is 0; expected a positive integer');
    super('level', levels, weights);
    this.items = levels[levels.length - 1].items;
    this.wordType = Uint32Array;
  }

  /** @param {any} value */
  checked(value) {
    return checkedItem(value, this.items);
  }

  /**
   * @param {number} epoch
   * @param {number} bucket
   * @param {ByteGenerator} random
   */
  words(epoch, bucket, random) {
    const number = this.kept.level[0];
    const node = Math.ceil(bucket / 2 ** (this.parts.length - number));
    return Uint32Array.from(this.ofPart(epoch, node, random), (/** @type {number} */ word) => word + number * LEVEL);
  }
}
