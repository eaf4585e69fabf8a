/** Measures that a device computes from its own events, as in `randomizers/measures.py`. */

import { check, float, list, shown, whole } from './laws.js';

/**
 * @typedef {object} Measure
 * @property {'active' | 'count' | 'days' | 'sum' | 'max' | 'last' | 'most' | 'lifecycle' | 'steps'} type
 * @property {number} within - epochs of the window
 * @property {string[]} event - names of the events that count; all if empty
 * @property {string | null} number - column of the numbers
 * @property {string | null} label - column of the labels
 * @property {string[]} values - declared labels
 * @property {string[]} steps - names of events in order
 * @property {number | null} atLeast
 * @property {{ low: number, high: number } | null} mean
 * @property {number[] | null} edges - ascending lower edges of cells
 * @property {{ low: number, high: number, count: number } | null} equal - buckets of equal width
 * @property {number} scale
 * @property {number} unit - integer that stands for the number 1
 * @property {'boolean' | 'mean' | 'labels' | 'numbers'} answer
 * @property {string[]} labels - names of the answers 1, 2, ... if the answer is a label
 * @property {boolean} canBeNone - true if a window without events has no value
 * @property {bigint[]} thresholds - least values of yes, or of every bucket but the first
 */

const KEYS = ['type', 'within', 'event', 'number', 'label', 'values', 'steps', 'at_least', 'mean', 'buckets', 'scale'];
const TYPES = ['active', 'count', 'days', 'sum', 'max', 'last', 'most', 'lifecycle', 'steps'];
const LIFECYCLE = ['new', 'retained', 'resurrected', 'dormant'];
const MOST_LABELS = 64;
/** Bound of numbers and sums after multiplication by `scale`. */
export const MOST_NUMBER = 2n ** 53n;
/** Answer of a mean at the upper end of its range. */
export const MEAN_UNIT = 2 ** 32;
export const OTHER = 'other';

/**
 * Parse a measure; throw if it cannot be.
 *
 * @param {any} body - JSON object, with the keys of a job file
 * @returns {Measure}
 */
export function readMeasure(body) {
  check(body !== null && typeof body === 'object', `a measure is ${shown(body)}; expected an object`);
  const unknown = Object.keys(body).find((key) => !KEYS.includes(key));
  check(unknown === undefined, `a measure has the unknown key ${shown(unknown)}`);
  const { type, number = null, label = null } = body;
  check(TYPES.includes(type), `'type' is ${shown(type)}; expected one of ${TYPES.join(', ')}`);
  const within = whole('within', body.within ?? 1, 1, 4096);
  const scale = whole('scale', body.scale ?? 1000, 1, 10 ** 6);
  const [event, values, steps] = ['event', 'values', 'steps'].map((key) => names(key, body[key] ?? []));
  for (const column of [number, label]) check(column === null || (typeof column === 'string' && column), "'number' or 'label' is not the name of a column");
  const columns = { sum: [true, false], max: [true, false], most: [false, true] }[/** @type {string} */ (type)] ?? [false, false];
  const fits = type === 'last' ? (number === null) !== (label === null) : (number !== null) === columns[0] && (label !== null) === columns[1];
  check(fits, `the columns do not fit type ${type}`);
  check((label !== null) === values.length > 0 && (type === 'steps') === steps.length > 0, `'values' or 'steps' do not fit type ${type}`);
  const unit = number === null ? 1 : scale;
  const { atLeast, mean, edges, equal } = answers(body, number !== null || type === 'count' || type === 'days');
  const answer = mean ? 'mean' : equal ? 'numbers' : type === 'active' || atLeast !== null ? 'boolean' : 'labels';
  let labels = /** @type {string[]} */ ([]);
  if (edges) labels = number === null ? countLabels(edges) : numberLabels(edges);
  else if (answer === 'labels') labels = label !== null ? [...values, OTHER] : type === 'steps' ? steps : LIFECYCLE;
  check(labels.length <= MOST_LABELS, `the answer has ${labels.length} labels; expected at most ${MOST_LABELS}`);
  const thresholds = thresholdsOf(atLeast, edges, equal, BigInt(unit));
  check(thresholds.every((each, index) => !index || thresholds[index - 1] < each), "'buckets' are too narrow");
  const canBeNone = ['max', 'last', 'most', 'lifecycle', 'steps'].includes(type);
  return { type, within, event, number, label, values, steps, atLeast, mean, edges, equal, scale, unit, answer, labels, canBeNone, thresholds };
}

/** @param {string} key @param {any} value @returns {string[]} */
function names(key, value) {
  const all = typeof value === 'string' && key === 'event' ? [value] : list(key, value);
  const good = all.every((name, index) => typeof name === 'string' && name && all.indexOf(name) === index);
  check(good && all.length <= 256, `'${key}' must have distinct names`);
  return all;
}

/** @param {any} body @param {boolean} isNumber */
function answers({ at_least: atLeast = null, mean = null, buckets = null }, isNumber) {
  const given = [atLeast, mean, buckets].filter((each) => each !== null).length;
  check(given === Number(isNumber), "expected exactly one of 'at_least', 'mean' and 'buckets' for a number, and none otherwise");
  if (atLeast !== null) float('at_least', atLeast);
  const edges = Array.isArray(buckets) ? buckets : null;
  edges?.forEach((edge) => float('buckets', edge));
  const ascending = edges?.every((edge, index) => !index || edges[index - 1] < edge) ?? true;
  check(ascending && edges?.length !== 1, "'buckets' must have at least 2 ascending edges");
  const equal = buckets !== null && !edges ? { low: buckets.low, high: buckets.high, count: whole('buckets', buckets.buckets, 2, 4096) } : null;
  for (const range of [mean, equal]) {
    check(!range || float('low', range.low) < float('high', range.high), "'high' must be above 'low'");
  }
  return { atLeast, mean, edges, equal };
}

/**
 * Return integers that are in the same proportion as decimals and the unit 1, which is the last one.
 *
 * @param {number[]} numbers - each stands for its shortest decimal
 */
function integers(numbers) {
  const decimals = [...numbers, 1].map(decimal);
  const exponent = Math.min(...decimals.map((each) => each.exponent));
  return decimals.map((each) => each.digits * 10n ** BigInt(each.exponent - exponent));
}

/** Split a number into decimal digits and a power of ten. @param {number} number */
export function decimal(number) {
  const [, sign, whole, part = '', exponent = '0'] = /** @type {RegExpExecArray} */ (/^(-?)(\d+)(?:\.(\d+))?(?:e([+-]\d+))?$/.exec(String(number)));
  return { digits: BigInt(sign + whole + part), exponent: Number(exponent) - part.length };
}

/** @param {bigint} number @param {bigint} by */
const roundedUp = (number, by) => (number > 0n ? (number + by - 1n) / by : number / by);

/** @param {number | null} atLeast @param {number[] | null} edges @param {Measure['equal']} equal @param {bigint} unit */
function thresholdsOf(atLeast, edges, equal, unit) {
  if (equal) {
    const [low, high, one] = integers([equal.low, equal.high]);
    const count = BigInt(equal.count);
    return Array.from({ length: equal.count - 1 }, (_, index) =>
      roundedUp((low * count + (high - low) * BigInt(index + 1)) * unit, one * count),
    );
  }
  return (atLeast !== null ? [atLeast] : (edges ?? []).slice(1)).map((edge) => {
    const [number, one] = integers([edge]);
    return roundedUp(number * unit, one);
  });
}

/**
 * Return the answer for the value of a window.
 *
 * @param {Measure} measure
 * @param {number | bigint | null} value - a number in units, or null without one; of labels, the answer
 */
export function answerOf({ answer, mean, edges, equal, unit, atLeast, thresholds }, value) {
  if (mean) {
    if (value === null) return 0;
    const [low, high, one] = integers([mean.low, mean.high]);
    const above = BigInt(value) * one - low * BigInt(unit);
    const range = (high - low) * BigInt(unit);
    return above <= 0n ? 0 : above >= range ? MEAN_UNIT : Number((above * BigInt(MEAN_UNIT)) / range);
  }
  if (!edges && !equal && atLeast === null) return Number(value ?? 0);
  if (value === null) return 0;
  const reached = thresholds.filter((each) => each <= BigInt(value)).length;
  return answer === 'boolean' ? reached : reached + 1;
}

/**
 * Return a finite number times `scale`, rounded half to even, at most 2^53 in magnitude.
 *
 * @param {number} number
 * @param {number} scale
 */
export function scaled(number, scale) {
  const product = Math.min(Math.max(number * scale, -(2 ** 53)), 2 ** 53);
  const below = Math.floor(product);
  const rest = product - below;
  return rest < 0.5 || (rest === 0.5 && below % 2 === 0) ? below : below + 1;
}

/** Format a number as in Python: the shortest decimal. @param {number} number */
export function numberText(number) {
  if (number === 0 || Math.abs(number) >= 1e-4) return String(number);
  return number.toExponential().replace(/-(\d)$/, '-0$1');
}

/** @param {number[]} edges */
function numberLabels([, ...rest]) {
  const texts = rest.map(numberText);
  const between = texts.slice(1).map((high, index) => `${texts[index]} to below ${high}`);
  return [`below ${texts[0]}`, ...between, `${texts.at(-1)} and more`];
}

/** @param {number[]} edges */
function countLabels([, ...rest]) {
  const firsts = [0, ...rest];
  const between = rest.map((high, index) => (firsts[index] + 1 === high ? `${firsts[index]}` : `${firsts[index]} to ${high - 1}`));
  return [...between, `${firsts.at(-1)} and more`];
}
