/** Symbols of value_stream: the distribution of `randomizers/value_stream/lattice.py`. */

import { bitLength, cumulated, firstAbove } from './draws.js';

/** Symbol that encodes 0. */
export const ZERO = 80;
export const STEP = 1 / 8;
/** Number beyond which a symbol is in the tail. */
export const TAIL = 4;

const MOST = 72;
const TAIL_STEPS = TAIL / STEP;
const WEIGHT_BITS = 62n;
const PLACES = 256n;

/** @typedef {{ sums: bigint[], tail: bigint[], boxBits: number }} Tables */
/** @type {Tables | undefined} */
let made;

/**
 * Return cumulative weights of all symbols and of one tail, and the bit length of the tail's sum. A
 * weight is 2^62 times the symbol's probability, rounded to the nearest integer.
 *
 * @returns {Tables}
 */
export function tables() {
  if (made) return made;
  // exp(-1/128) by its series, then exp(-n^2 / 128), to 256 binary places.
  const unit = 1n << PLACES;
  let once = 0n;
  for (let term = unit, order = 1n; term; order++) {
    once += term;
    term = -term / (128n * order);
  }
  const densities = [unit];
  const twice = (once * once) >> PLACES;
  for (let step = 0, ratio = once; step < MOST; step++, ratio = (ratio * twice) >> PLACES) {
    densities.push((densities[step] * ratio) >> PLACES);
  }
  const total = densities.reduce((sum, each) => sum + 2n * each, -unit);
  const weights = densities.map((each) => ((each << (WEIGHT_BITS + 1n)) / total + 1n) >> 1n);
  weights[0] += (1n << WEIGHT_BITS) - weights.reduce((sum, each) => sum + 2n * each, -weights[0]);
  const tail = cumulated(weights.slice(TAIL_STEPS + 1));
  const sums = cumulated([...weights.slice(1).reverse(), ...weights]);
  made = { sums, tail, boxBits: bitLength(tail[tail.length - 1]) };
  return made;
}

/**
 * Return the symbol, minus 80, selected by a random 64-bit integer.
 *
 * @param {bigint} word
 */
export const symbolAt = (word) => firstAbove(tables().sums, word >> (64n - WEIGHT_BITS)) - MOST;

/**
 * Return the tail symbol, minus 80, selected by a random 64-bit integer; 0 if it selects none.
 *
 * @param {bigint} word
 */
export function tailSymbolAt(word) {
  const { tail, boxBits } = tables();
  const symbol = firstAbove(tail, word >> BigInt(64 - boxBits)) + TAIL_STEPS + 1;
  return symbol > MOST ? 0 : symbol;
}
