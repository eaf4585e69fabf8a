/**
 * Draws from a stream of bytes, by the rules of `randomizers/byte_generator.py`.
 */

/** @typedef {(count: number) => Uint8Array} ReadBytes */

/** Maximum bytes per call of `getRandomValues`. */
const AT_ONCE = 65536;

/**
 * Return random bytes from WebCrypto, the only source in production.
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

/** Source of randomness of all protocols. */
export class ByteGenerator {
  #read;

  /** @param {ReadBytes} read - cryptographic randomness; other sources in tests only */
  constructor(read) {
    this.#read = read;
  }

  /**
   * Draw independent uniform integers of at least 0 and below `values`: numbers for up to 2^32
   * values, BigInts for more.
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
    // @ts-ignore: both have the same type
    const kept = all - (all % below);
    const drawn = [];
    // Each element is the next number that is not rejected, so one read serves all elements.
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
   * Draw random 64-bit integers.
   *
   * @param {number} count
   * @returns {bigint[]}
   */
  words(count) {
    const view = this.#view(8 * count);
    return Array.from({ length: count }, (_, index) => view.getBigUint64(8 * index, true));
  }

  /**
   * Draw random 16-bit integers, four for each 64 bits that are read.
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
      throw new Error(`read ${bytes.length} random bytes; expected ${length}`);
    }
    return new DataView(bytes.buffer, bytes.byteOffset, length);
  }
}
