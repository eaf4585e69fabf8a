/** Exact draws, as in `randomizers/draws.py`. */

/** @typedef {import('./byte_generator.js').ByteGenerator} ByteGenerator */

/**
 * Return the index of the first ascending bound above a value.
 *
 * @template {number | bigint} T
 * @param {ArrayLike<T>} bounds
 * @param {T} value
 */
export function firstAbove(bounds, value) {
  let least = 0;
  let most = bounds.length;
  while (least < most) {
    const middle = (least + most) >> 1;
    if (bounds[middle] > value) most = middle;
    else least = middle + 1;
  }
  return least;
}

/**
 * Return cumulative sums.
 *
 * @param {bigint[]} terms
 */
export function cumulated(terms) {
  let total = 0n;
  return terms.map((term) => (total += term));
}

/** @param {bigint} number */
export const bitLength = (number) => (number ? number.toString(2).length : 0);

const LARGEST = (1n << 64n) - 1n;

/** Distribution over indices, with probabilities proportional to given masses. */
export class Categories {
  /** @param {bigint[]} masses - non-negative, at least one positive */
  constructor(masses) {
    const sums = cumulated(masses);
    const total = sums[sums.length - 1];
    this.more = Math.ceil(bitLength(total) / 64);
    const scale = (1n << BigInt(64 * this.more + 64)) / total;
    this.bounds = sums.map((sum) => scale * sum);
    this.leading = this.bounds.map((bound) => {
      const leading = bound >> BigInt(64 * this.more);
      return leading < LARGEST ? leading : LARGEST;
    });
  }

  /**
   * @param {number} count
   * @param {ByteGenerator} random
   * @returns {number[]}
   */
  draw(count, random) {
    const leading = random.words(count);
    const drawn = leading.map((word) => firstAbove(this.leading, word));
    drawn.forEach((index, position) => {
      const open = index === this.bounds.length || (index && this.leading[index - 1] === leading[position]);
      if (open) drawn[position] = this.#settled(leading[position], random);
    });
    return drawn;
  }

  /**
   * @param {bigint} value
   * @param {ByteGenerator} random
   */
  #settled(value, random) {
    for (const word of random.words(this.more)) value = (value << 64n) | word;
    while (value >= this.bounds[this.bounds.length - 1]) {
      value = 0n;
      for (const word of random.words(this.more + 1)) value = (value << 64n) | word;
    }
    return firstAbove(this.bounds, value);
  }
}

/**
 * Return a fair random bit: the leading bit of the first of 8 random bytes.
 *
 * @param {ByteGenerator} random
 */
export const randomBit = (random) => Number((random.words(1)[0] >> 7n) & 1n);
