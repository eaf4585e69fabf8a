/**
 * Draws from bytes alone: the same as `randomizers/byte_generator.py`, where the rules stand.
 */

/** @typedef {(count: number) => Uint8Array} ReadBytes */

/** The most bytes that `getRandomValues` gives at once. */
const AT_ONCE = 65536;

/**
 * Random bytes of the platform: WebCrypto, and nothing else.
 *
 * @type {ReadBytes}
 */
export function systemRandom(count) {
  const bytes = new Uint8Array(count);
  for (let start = 0; start < count; start += AT_ONCE) {
    globalThis.crypto.getRandomValues(bytes.subarray(start, start + AT_ONCE));
  }
  return bytes;
}

/** What protocols ask for randomness. */
export class ByteGenerator {
  #read;

  /** @param {ReadBytes} read - cryptographic randomness; anything else in tests only */
  constructor(read) {
    this.#read = read;
  }

  /**
   * Independent integers from 0 to `values`, exclusive, each equally likely: numbers up to 2^32
   * values, beyond that BigInts.
   *
   * @param {number | bigint} values
   * @param {number} count
   * @returns {any[]}
   */
  integers(values, count) {
    const wide = values > 0x100000000;
    if (values == 1) return new Array(count).fill(0);
    const width = wide ? 8 : values > 65536 ? 4 : values > 256 ? 2 : 1;
    const below = wide ? BigInt(values) : Number(values);
    const all = wide ? 1n << 64n : 2 ** (8 * width);
    // @ts-ignore: both are of the same kind
    const kept = all - (all % below);
    const drawn = [];
    // The next element is the next number that is not rejected: so all can be read at once.
    while (drawn.length < count) {
      const view = this.#view((count - drawn.length) * width);
      for (let at = 0; at < view.byteLength; at += width) {
        const number = wide
          ? view.getBigUint64(at, true)
          : width == 4
            ? view.getUint32(at, true)
            : width == 2
              ? view.getUint16(at, true)
              : view.getUint8(at);
        // @ts-ignore: as above
        if (number < kept) drawn.push(number % below);
      }
    }
    return drawn;
  }

  /**
   * So many words of 64 bits.
   *
   * @param {number} count
   * @returns {bigint[]}
   */
  words(count) {
    const view = this.#view(8 * count);
    return Array.from({ length: count }, (_, index) => view.getBigUint64(8 * index, true));
  }

  /**
   * So many numbers of 16 bits, four of a word.
   *
   * @param {number} count
   * @returns {number[]}
   */
  shorts(count) {
    const view = this.#view(8 * Math.ceil(count / 4));
    return Array.from({ length: count }, (_, index) => view.getUint16(2 * index, true));
  }

  /** @param {number} length */
  #view(length) {
    if (!length) return new DataView(new ArrayBuffer(0));
    const bytes = this.#read(length);
    if (bytes.length !== length) {
      throw new Error(`asked for ${length} random bytes, ${bytes.length} were read`);
    }
    return new DataView(bytes.buffer, bytes.byteOffset, length);
  }
}
