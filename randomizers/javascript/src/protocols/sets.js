/** Sets of items: what count_min and single_message are given at an epoch. */

import { check, shown } from '../laws.js';

/**
 * The items of a set, each once, in ascending order.
 *
 * @param {any} value - an array of items from 1 on, 0 for none
 * @param {number} most - how many a user may hold
 * @param {number} size - of the domain
 * @returns {bigint[]}
 */
export function checkedSet(value, most, size) {
  check(Array.isArray(value), `value ${shown(value)}, must be a list of items, [] for none`);
  const items = new Set();
  for (const item of value) {
    const known = (typeof item === 'bigint' || Number.isSafeInteger(item)) && item >= 0 && item <= size;
    check(known, `item ${shown(item)}, must be from 1 to ${size}`);
    if (item) items.add(BigInt(item));
  }
  check(items.size <= most, `a set of ${items.size} items, must be at most ${most}`);
  return [...items].sort((one, other) => (one < other ? -1 : 1));
}
