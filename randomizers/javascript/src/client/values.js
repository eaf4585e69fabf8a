/** What an app may hand over: a value as people know it, made a number of the domain. */

import { ClientError } from './errors.js';

/** @typedef {{ kind: string, size: number, slots: number | null, labels: string[], low: number, high: number, buckets: number, optional: boolean }} Values */

/**
 * Read them.
 *
 * @param {any} told
 * @returns {Values}
 */
export function readValues({ kind, size, slots, labels = [], low = 0, high = 1, buckets = 1, optional = false }) {
  const numbers = kind === 'numbers';
  if (
    !['value', 'items', 'numbers', 'found'].includes(kind) ||
    !(Number.isSafeInteger(size) && size >= 2) ||
    !(slots === null || (Number.isSafeInteger(slots) && slots >= 1)) ||
    !(Array.isArray(labels) && labels.every((label) => typeof label === 'string')) ||
    (numbers && !(size === buckets + 1 && Number.isFinite(low) && Number.isFinite(high) && low < high))
  ) {
    throw new Error('values of no known kind');
  }
  return { kind, size, slots, labels, low, high, buckets, optional };
}

/**
 * What the randomizer is given.
 *
 * @param {Values} values
 * @param {any} value - true or false; a label; a measured number; a number of the domain, where the
 *   job is over items; null for no item. Where users have sets, an array of such, or one.
 * @returns {number | number[]}
 */
export function numberOf(values, value) {
  if (values.slots === null) return one(values, value);
  const given = Array.isArray(value) ? value : [value];
  const numbers = given.map((each) => one(values, each)).filter(Boolean);
  if (numbers.length > values.slots || new Set(numbers).size < numbers.length) {
    throw new ClientError('value', `a set of this job has at most ${values.slots} items, each of them once`);
  }
  return numbers;
}

/** @param {Values} values @param {any} value @returns {number} */
function one(values, value) {
  const { kind, labels, size } = values;
  let number = NaN;
  if (kind === 'numbers') number = bucket(values, value);
  else if (value === null && kind !== 'value') number = 0;
  else if (typeof value === 'string') number = labels.indexOf(value) + 1 || NaN;
  else if (typeof value === 'boolean') number = kind === 'value' ? +value : NaN;
  else if (Number.isSafeInteger(value)) number = value;
  if (!(number >= 0 && number < size)) throw new ClientError('value', `the value must be ${allowed(values)}`);
  return number;
}

/** @param {Values} values @param {any} value */
function bucket({ low, high, buckets, optional }, value) {
  if (value === null) return optional ? 0 : NaN;
  if (typeof value !== 'number' || !(value >= low && value < high)) return NaN;
  return 1 + Math.min(Math.floor(((value - low) / (high - low)) * buckets), buckets - 1);
}

/** @param {Values} values */
function allowed({ kind, labels, size, low, high }) {
  if (kind === 'value') return 'true or false';
  if (kind === 'numbers') return `a number from ${low} to below ${high}`;
  const told = labels.length ? `one of the ${labels.length} labels of this job, ` : '';
  return `${told}a whole number from 1 to ${size - 1}, or null`;
}
