/** Public hashes, as in `randomizers/pairwise_hash.py` and `randomizers/affine_hashes.py`. */

import { check, shown } from './laws.js';

const PRIME = (1n << 31n) - 1n;
const WORD = (1n << 64n) - 1n;

/**
 * Return the hash function of a text, from numbers to buckets.
 *
 * @param {string} text
 * @returns {(number: bigint, buckets: number) => number}
 */
export function pairwiseHash(text) {
  const digest = sha512(new TextEncoder().encode(text));
  const [high, low, offset] = [0, 16, 32].map((start) => {
    let number = 0n;
    for (let at = start + 15; at >= start; at--) number = (number << 8n) | BigInt(digest[at]);
    return number % PRIME;
  });
  return (number, buckets) => {
    const mixed = (number % PRIME) * low + offset + (number / PRIME) * high;
    return Number((mixed % PRIME) % BigInt(buckets));
  };
}

/** Constants of SHA-512: leading 64 fractional bits of roots of the first 80 primes (FIPS 180-4). */
const constantsOf = (() => {
  /** @type {bigint[][] | undefined} */
  let made;
  return () => {
    if (!made) {
      /** @type {bigint[]} */
      const primes = [];
      for (let number = 2n; primes.length < 80; number++) {
        if (primes.every((prime) => number % prime)) primes.push(number);
      }
      made = [
        primes.slice(0, 8).map((prime) => root(prime << 128n, 2n) & WORD),
        primes.map((prime) => root(prime << 192n, 3n) & WORD),
      ];
    }
    return made;
  };
})();

/** Return the integer part of a root, by Newton's method from above. @param {bigint} number @param {bigint} power */
function root(number, power) {
  for (let guess = 1n << 70n; ; ) {
    const next = ((power - 1n) * guess + number / guess ** (power - 1n)) / power;
    if (next >= guess) return guess;
    guess = next;
  }
}

/**
 * Return SHA-512 (FIPS 180-4) of public text. WebCrypto is asynchronous, which this code is not.
 *
 * @param {Uint8Array} message
 */
export function sha512(message) {
  const [start, keys] = constantsOf();
  const padded = new DataView(new ArrayBuffer((message.length + 17 + 127) & ~127));
  message.forEach((byte, at) => padded.setUint8(at, byte));
  padded.setUint8(message.length, 128);
  padded.setUint32(padded.byteLength - 4, 8 * message.length);
  /** @param {bigint} word @param {bigint} by */
  const turned = (word, by) => (word >> by) | ((word << (64n - by)) & WORD);
  const state = [...start];
  for (let block = 0; block < padded.byteLength; block += 128) {
    /** @type {bigint[]} */
    const words = [];
    let [a, b, c, d, e, f, g, h] = state;
    for (let round = 0; round < 80; round++) {
      if (round < 16) words.push(padded.getBigUint64(block + 8 * round));
      else {
        const old = words[round - 15];
        const late = words[round - 2];
        const mixed = turned(old, 1n) ^ turned(old, 8n) ^ (old >> 7n);
        const more = turned(late, 19n) ^ turned(late, 61n) ^ (late >> 6n);
        words.push((words[round - 16] + mixed + words[round - 7] + more) & WORD);
      }
      const chosen = turned(e, 14n) ^ turned(e, 18n) ^ turned(e, 41n);
      const one = h + chosen + ((e & f) ^ (~e & WORD & g)) + keys[round] + words[round];
      const summed = turned(a, 28n) ^ turned(a, 34n) ^ turned(a, 39n);
      const two = summed + ((a & b) ^ (a & c) ^ (b & c));
      [a, b, c, d, e, f, g, h] = [(one + two) & WORD, a, b, c, (d + one) & WORD, e, f, g];
    }
    [a, b, c, d, e, f, g, h].forEach((word, index) => (state[index] = (state[index] + word) & WORD));
  }
  const digest = new DataView(new ArrayBuffer(64));
  state.forEach((word, index) => digest.setBigUint64(8 * index, word));
  return new Uint8Array(digest.buffer);
}

/** All affine hashes of items with a given number of digits. */
export class AffineHashes {
  /**
   * @param {number} buckets - a prime
   * @param {number} digits
   * @param {number} width - number of values of the lowest digit
   */
  constructor(buckets, digits, width) {
    this.buckets = BigInt(buckets);
    this.digits = digits;
    this.row = BigInt(width);
    this.directions = (this.buckets ** BigInt(digits) - 1n) / (this.buckets - 1n);
    this.words = this.directions * this.buckets;
    check(this.words <= 1n << 62n, `${digits} digits of base ${buckets} have ${this.words} messages; expected at most 2^62`);
  }

  /**
   * Return hashes with the number of digits that the items need, spread over up to 32 rows.
   *
   * @param {number} buckets
   * @param {number} items
   */
  static forItems(buckets, items) {
    check(isPrime(buckets) && buckets <= 1 << 29, `buckets is ${shown(buckets)}; expected a prime up to 2^29`);
    let digits = 1;
    let held = buckets;
    for (; held < items; held *= buckets) digits++;
    const rows = Math.min(32, Math.floor(held / buckets));
    const width = digits > 1 ? Math.min(buckets, Math.ceil(items / rows)) : buckets;
    return new AffineHashes(buckets, digits, width);
  }

  /**
   * Draw, for each item (from 1 on), a uniform message among those that contain it.
   *
   * @param {number[]} items
   * @param {import('./byte_generator.js').ByteGenerator} random
   * @returns {bigint[]}
   */
  draw(items, random) {
    // Drawing numbers or BigInts consumes the same bytes.
    const directions = random.integers(this.directions, items.length).map(BigInt);
    return items.map(
      (item, index) => directions[index] * this.buckets + this.#bucket(directions[index], BigInt(item) - 1n),
    );
  }

  /**
   * @param {bigint} direction
   * @param {bigint} item
   * @returns {bigint}
   */
  #bucket(direction, item) {
    if (this.digits === 1) return item;
    const s = this.buckets;
    const shorter = new AffineHashes(Number(s), this.digits - 1, Number(s));
    let step = direction - shorter.directions;
    let above = item / this.row;
    if (step < 0n) return shorter.#bucket(direction, above);
    let bucket = item % this.row;
    for (let digit = 1; digit < this.digits; digit++) {
      // The last digit is what remains of each number.
      const last = digit === this.digits - 1;
      bucket += (last ? step : step % s) * (last ? above : above % s);
      step /= s;
      above /= s;
    }
    return bucket % s;
  }
}

/** @param {number} number */
function isPrime(number) {
  if (!Number.isSafeInteger(number) || number < 2) return false;
  for (let divisor = 2; divisor * divisor <= number; divisor++) {
    if (number % divisor === 0) return false;
  }
  return true;
}
