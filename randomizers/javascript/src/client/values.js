/** Values that an app passes to its device, converted to numbers of the domain. */

import { decimal } from '../measures.js';
import { ClientError } from './errors.js';

/** @typedef {{ kind: string, size: number, slots: number | null, labels: string[], low: number, high: number, buckets: number, optional: boolean }} Values */

/**
 * Parse the values of a job; throw if they are malformed.
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
    throw new Error('values are invalid; expected a known kind, a size of at least 2, labels as text and low below high');
  }
  return { kind, size, slots, labels, low, high, buckets, optional };
}

/**
 * Convert a value to the randomizer's input. Absence is visible, so it must not depend on the value:
 *
 * - A number outside the range counts as the nearest number inside.
 * - NaN counts as no number, or as the lowest if a number is required.
 * - Of a set with too many items, the first ones in the job's order count. Duplicates count once.
 *
 * Throw if the type is wrong, or the job has no such label or item.
 *
 * @param {Values} values
 * @param {any} value - true or false; a label; a measured number; a number of the domain in jobs over
 *   items; or null for no item. For sets, one such value, or an array or Set of them.
 * @returns {number | number[]}
 */
export function numberOf(values, value) {
  if (values.slots === null) return one(values, value);
  const given = Array.isArray(value) || value instanceof Set ? [...value] : [value];
  const numbers = new Set(given.map((each) => one(values, each)).filter(Boolean));
  return [...numbers].sort((first, second) => first - second).slice(0, values.slots);
}

/** @param {Values} values @param {any} value @returns {number} */
function one(values, value) {
  const { kind, labels, size } = values;
  let number = NaN;
  if (kind === 'numbers') number = bucket(values, value);
  else if (value === null && kind !== 'value') number = 0;
  else if (typeof value === 'string') number = labels.indexOf(value.normalize('NFC')) + 1 || NaN;
  else if (typeof value === 'boolean') number = kind === 'value' ? +value : NaN;
  else if (Number.isSafeInteger(value)) number = value;
  if (!(number >= 0 && number < size)) throw new ClientError('value', `the value is invalid; expected ${allowed(values)}`);
  return number;
}

/** @param {Values} values @param {any} value */
function bucket({ low, high, buckets, optional }, value) {
  if (value === null) return optional ? 0 : NaN;
  if (typeof value !== 'number') return NaN;
  if (Number.isNaN(value)) return Number(!optional);
  if (value < low) return 1;
  if (value >= high) return buckets;
  return 1 + bucketOf(value, low, high, buckets);
}

/**
 * Return the bucket, from 0 on, of a number in [low, high), exactly on every edge: numbers are read as
 * their shortest decimals, so 37.5 is in the bucket that starts there.
 *
 * @param {number} value @param {number} low @param {number} high @param {number} buckets
 */
function bucketOf(value, low, high, buckets) {
  const decimals = [value, low, high].map(decimal);
  const exponent = Math.min(...decimals.map((each) => each.exponent));
  const [number, first, last] = decimals.map((each) => each.digits * 10n ** BigInt(each.exponent - exponent));
  return Number(((number - first) * BigInt(buckets)) / (last - first));
}

/** @param {Values} values */
function allowed({ kind, labels, size, optional }) {
  if (kind === 'value') return 'true or false';
  if (kind === 'numbers') return `a number${optional ? ' or null' : ''}`;
  const told = labels.length ? `one of the ${labels.length} labels of this job, ` : '';
  return `${told}an integer from 1 to ${size - 1}, or null`;
}
