/** Numbers over time, reported on one level of a tree (`randomizers/value_stream/range_values`). */

import { Categories } from '../draws.js';
import { Device } from '../device.js';
import { check, constants, large, list, perStream } from '../laws.js';
import { HadamardValues } from './hadamard_values.js';
import { checkedItem } from './items.js';

/** @typedef {import('../byte_generator.js').ByteGenerator} ByteGenerator */

/** Factor of the level in a message. */
const LEVEL = 1 << 24;

export class RangeValues extends Device {
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
    const [{ lastEpoch }] = levels;
    check(levels.every((level) => level.lastEpoch === lastEpoch), 'levels have different horizons; expected the same last epoch');
    super(lastEpoch);
    this.levels = levels;
    this.weights = weights;
    this.wordType = Uint32Array;
    const epsilon = Math.max(...levels.filter((_, index) => weights[index] > 0n).map(({ loss }) => loss.epsilon));
    this.loss = perStream(epsilon);
  }

  /** Return the fields, as wide as the widest level needs. @returns {Record<string, import('../device.js').Field>} */
  fields() {
    const { followed, value, noise, sum } = this.levels[0].fields();
    const changes = this.levels.map((level) => level.fields().changes.dtype);
    return {
      level: { dtype: '|u1', least: 1, most: this.levels.length },
      followed,
      value,
      changes: { dtype: changes.includes('<u2') ? '<u2' : '|u1' },
      noise,
      sum,
      left: { dtype: '<f8' },
      row: { dtype: '<u2' },
    };
  }

  /** @param {ByteGenerator} random */
  draw(random) {
    const [index] = new Categories(this.weights).draw(1, random);
    return { ...this.levels[index].draw(random), level: [index + 1] };
  }

  /** @param {Record<string, any>} kept */
  checkKept(kept) {
    const { rows, squaredNormBudget } = this.levels[kept.level[0] - 1];
    check(kept.row[0] < rows, `state array 'row' has the value ${kept.row[0]}; expected a number below ${rows}`);
    check(
      kept.left[0] >= 0 && kept.left[0] <= squaredNormBudget,
      `state array 'left' has the value ${kept.left[0]}; expected 0 to ${squaredNormBudget}. The state belongs to another job`,
    );
  }

  /** @param {any} value */
  checked(value) {
    return checkedItem(value, this.levels[this.levels.length - 1].items);
  }

  /**
   * @param {number} epoch
   * @param {number} bucket
   * @param {ByteGenerator} random
   */
  words(epoch, bucket, random) {
    const number = this.kept.level[0];
    const level = this.levels[number - 1];
    // The level changes the arrays of this device in place.
    level.kept = this.kept;
    level.epoch = this.epoch;
    const node = Math.ceil(bucket / 2 ** (this.levels.length - number));
    return Uint32Array.from(level.words(epoch, node, random), (word) => word + number * LEVEL);
  }
}
