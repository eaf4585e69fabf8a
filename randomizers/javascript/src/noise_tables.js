/** Dummy counts drawn from integer tables, as in `randomizers/noise_tables.py`. */

import { check } from './laws.js';
import { bitLength, cumulated, firstAbove } from './draws.js';

/** @typedef {import('./byte_generator.js').ByteGenerator} ByteGenerator */
/** @typedef {(count: bigint) => [bigint, bigint]} Ratio */

const MODE = 1n << 192n;
/** Maximum length of a table: longer ones take seconds to compute, and devices do not need them. */
const MAX_ENTRIES = 1 << 16;

/**
 * Return the next float above a positive one.
 *
 * @param {number} value
 */
export function above(value) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, value);
  view.setBigUint64(0, view.getBigUint64(0) + 1n);
  return view.getFloat64(0);
}

/**
 * Return a positive float as a ratio of BigInts.
 *
 * @param {number} value
 * @returns {[bigint, bigint]}
 */
export function ratioOf(value) {
  let places = 0n;
  while (!Number.isInteger(value)) {
    value *= 2;
    places++;
  }
  return [BigInt(value), 1n << places];
}

/** Distribution on the counts from `first` on, as 2^128 times its cumulative probabilities. */
export class NoiseTable {
  /**
   * @param {number} first
   * @param {bigint[]} bounds
   */
  constructor(first, bounds) {
    this.first = first;
    this.bounds = bounds;
    this.leading = bounds.slice(0, -1).map((bound) => bound >> 64n);
    this.begins = this.leading.map((word) => Number(word >> 48n));
  }

  /**
   * @param {number} count
   * @param {ByteGenerator} random
   * @returns {number[]}
   */
  draw(count, random) {
    const begins = random.shorts(count);
    const drawn = begins.map((begin) => firstAbove(this.begins, begin));
    // A draw is final unless a bound starts with the same 16 bits.
    const open = [...begins.keys()].filter(
      (index) => drawn[index] && this.begins[drawn[index] - 1] === begins[index],
    );
    const more = random.words(open.length);
    open.forEach((index, position) => {
      const leading = (BigInt(begins[index]) << 48n) | (more[position] >> 16n);
      drawn[index] = firstAbove(this.leading, leading);
      if (drawn[index] && this.leading[drawn[index] - 1] === leading) {
        drawn[index] = firstAbove(this.bounds, (leading << 64n) | random.words(1)[0]);
      }
    });
    return drawn.map((index) => this.first + index);
  }
}

/** @param {number} mean */
export function poissonTable(mean) {
  const [up, down] = ratioOf(mean);
  return table((count) => [up, down * count], Math.floor(mean), 0);
}

/**
 * @param {number} trials
 * @param {number} probability
 */
export function binomialTable(trials, probability) {
  const [up, all] = ratioOf(probability);
  const mode = Math.min(trials, Math.floor((trials + 1) * probability));
  return table(
    (count) => [(BigInt(trials) + 1n - count) * up, count * (all - up)],
    mode,
    0,
    trials,
  );
}

/** @param {number} failure */
export function logarithmicTable(failure) {
  const [up, down] = ratioOf(failure);
  return table((count) => [up * (count - 1n), down * count], 1, 1);
}

/**
 * @param {number} shape
 * @param {number} mean
 * @param {number} times
 */
export function clusterRate(shape, mean, times) {
  const [up, one] = ratioOf(shape);
  const [added, other] = ratioOf(mean);
  const below = up * other;
  const sum = below + added * one;
  const halvings = Math.max(0, bitLength(sum) - bitLength(below) - 1);
  const logarithm = BigInt(halvings) * logarithmOf(2n, 1n) + logarithmOf(sum, below << BigInt(halvings));
  const numerator = BigInt(times) * up * (logarithm + (1n << 64n));
  // The smallest float that is at least numerator / (one << 256).
  const spare = BigInt(Math.max(0, bitLength(numerator) - 53));
  const leading = (numerator + (1n << spare) - 1n) >> spare;
  let rate = Number(leading);
  for (let left = 256 + bitLength(one) - 1 - Number(spare); left > 0; left--) rate /= 2;
  return rate;
}

/**
 * Return 2^256 ln(over / under) for a ratio from 1 to 4.
 *
 * @param {bigint} over
 * @param {bigint} under
 */
function logarithmOf(over, under) {
  let power = ((over - under) << 256n) / (over + under);
  const squared = (power * power) >> 256n;
  let total = 0n;
  for (let order = 1n; power; order += 2n) {
    total += power / order;
    power = (power * squared) >> 256n;
  }
  return 2n * total;
}

/**
 * @param {Ratio} ratio - probability of a count divided by that of the previous one
 * @param {number} mode
 * @param {number} least
 * @param {number} [last]
 */
function table(ratio, mode, least, last) {
  const below = ladder((count) => /** @type {[bigint, bigint]} */ (ratio(count).reverse()), mode, -1, least);
  const upper = ladder((count) => ratio(count + 1n), mode, 1, last);
  const sums = cumulated([...below.reverse(), MODE, ...upper]);
  const total = sums[sums.length - 1];
  return new NoiseTable(
    mode - below.length,
    sums.map((sum) => (sum << 128n) / total),
  );
}

/**
 * @param {Ratio} ratio
 * @param {number} count
 * @param {number} step
 * @param {number | undefined} end
 */
function ladder(ratio, count, step, end) {
  const weights = [];
  for (let weight = MODE; count !== end; count += step) {
    const [numerator, denominator] = ratio(BigInt(count));
    weight = (weight * numerator) / denominator;
    if (!(weight >> 64n)) break;
    weights.push(weight);
    check(weights.length <= MAX_ENTRIES, `the noise table is too long; expected at most ${MAX_ENTRIES} counts`);
  }
  return weights;
}
