/** Sets of items, the input of count_min, single_message and sampled_response. */

import { check, shown } from '../laws.js';

/**
 * Return the distinct items of a set in ascending order; throw if it is invalid.
 *
 * @param {any} value - array of items from 1 on; 0 is ignored
 * @param {number} most - maximum number of items of a user
 * @param {number} size - size of the domain
 * @returns {bigint[]}
 */
export function checkedSet(value, most, size) {
  check(Array.isArray(value), `value is ${shown(value)}; expected a list of items, [] for none`);
  const items = new Set();
  for (const item of value) {
    const known = (typeof item === 'bigint' || Number.isSafeInteger(item)) && item >= 0 && item <= size;
    check(known, `item is ${shown(item)}; expected 1 to ${size}`);
    if (item) items.add(BigInt(item));
  }
  check(items.size <= most, `the set has ${items.size} items; expected at most ${most}`);
  return [...items].sort((one, other) => (one < other ? -1 : 1));
}
