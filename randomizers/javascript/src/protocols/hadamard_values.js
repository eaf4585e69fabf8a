/** Items over time, as symbols for one Boolean per device (`randomizers/value_stream/hadamard_values`). */

import { constants, float, whole } from '../laws.js';
import { checkedItem } from './items.js';
import { ValueStream } from './value_stream.js';

/** @typedef {import('../byte_generator.js').ByteGenerator} ByteGenerator */

const MOST_ITEMS = 4096;
/** Factor of the row in a message. */
const ROW = 1 << 8;

/** Return the number of rows of the Hadamard matrix: the least power of two above `items`. @param {number} items */
export const rowsFor = (items) => 2 ** items.toString(2).length;

/**
 * Return 1 if the Hadamard matrix has +1 in this row for the item, else 0; 0 for no item.
 *
 * @param {number} row
 * @param {number} item
 */
export function tracked(row, item) {
  let parity = item ? 1 : 0;
  for (let bits = row & item; bits; bits &= bits - 1) parity ^= 1;
  return parity;
}

export class HadamardValues extends ValueStream {
  /** @param {any} body */
  constructor(body) {
    constants('hadamard_values', body, ['items', 'max_changes', 'unboosted_share', 'booleans']);
    const items = whole('items', body.items, 2, MOST_ITEMS);
    float('unboosted_share', body.unboosted_share);
    super(body.booleans);
    this.items = items;
    this.rows = rowsFor(items);
    this.wordType = Uint32Array;
  }

  /** @returns {Record<string, import('../device.js').Field>} */
  fields() {
    return { ...super.fields(), row: { dtype: '<u2', least: 0, most: this.rows - 1 } };
  }

  /** @param {ByteGenerator} random @returns {Record<string, any>} */
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
    const [symbol] = super.words(epoch, tracked(row, item), random);
    return Uint32Array.of(row * ROW + symbol);
  }
}
