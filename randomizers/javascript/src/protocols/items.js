/** Validation of values that are an item or none. */

import { check, shown } from '../laws.js';

/**
 * Return a value if it is an item, or 0 for none; throw otherwise.
 *
 * @param {any} value
 * @param {number} items
 * @returns {number}
 */
export function checkedItem(value, items) {
  check(
    Number.isSafeInteger(value) && value >= 0 && value <= items,
    `value is ${shown(value)}; expected 1 to ${items}, or 0 for none`,
  );
  return value;
}
