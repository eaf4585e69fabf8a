/** Items over time, each device following one Boolean (`randomizers/hadamard_stream`). */

import { check, constants, float, whole } from '../laws.js';
import { BooleanDevice, NEWCOMER, readFutureRandLaw } from './future_rand.js';
import { rowsFor, tracked } from './hadamard_values.js';
import { checkedItem } from './items.js';

/** @typedef {import('../byte_generator.js').ByteGenerator} ByteGenerator */

const MOST_ITEMS = 4096;
const MOST_ITEMS_ONCE = 1 << 20;
const MOST_HORIZON = 1n << 31n;

/** @param {any} body */
export function readHadamardStreamLaw(body) {
  constants('hadamard_stream', body, ['items', 'changes', 'frozen_share', 'future_rand']);
  const booleans = readFutureRandLaw(body.future_rand);
  check(booleans.horizon <= MOST_HORIZON, `a horizon of ${booleans.horizon} epochs, must be at most 2^31`);
  const items = whole('items', body.items, 2, booleans.horizon > 1n ? MOST_ITEMS : MOST_ITEMS_ONCE);
  float('frozen_share', body.frozen_share);
  return { items, booleans };
}

export class HadamardStream extends BooleanDevice {
  /** @param {any} body */
  constructor(body) {
    const { items, booleans } = readHadamardStreamLaw(body);
    super(booleans);
    this.items = items;
    this.rows = rowsFor(items);
    this.newcomerShift = items <= MOST_ITEMS ? 19 : 31;
    this.wordType = Uint32Array;
  }

  /** @returns {Record<string, import('../device.js').Field>} */
  fields() {
    const dtype = this.rows <= 65536 ? '<u2' : '<u4';
    return { ...super.fields(), row: { dtype, least: 0, most: this.rows - 1 } };
  }

  /** @param {ByteGenerator} random */
  draw(random) {
    return { ...super.draw(random), row: random.integers(this.rows, 1) };
  }

  /** @param {any} value */
  checked(value) {
    return checkedItem(value, this.items);
  }

  /**
   * @param {number} epoch
   * @param {number} item
   * @param {ByteGenerator} random
   * @returns {any}
   */
  words(epoch, item, random) {
    const row = this.kept.row[0];
    const word = this.follow(epoch, tracked(row, item), random);
    if (word === null) return new Uint32Array(0);
    const newcomer = word & NEWCOMER ? 2 ** this.newcomerShift : 0;
    return Uint32Array.of(row * 64 + newcomer + (word & (NEWCOMER - 1)));
  }
}
