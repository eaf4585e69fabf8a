/** Conversions between bytes and text. */

/** @param {Uint8Array} bytes */
export const toHex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');

/**
 * @param {any} text
 * @param {number} length - required number of bytes
 */
export function fromHex(text, length) {
  if (typeof text !== 'string' || text.length !== 2 * length || /[^0-9a-f]/.test(text)) {
    throw new Error(`expected ${length} bytes in hexadecimal`);
  }
  return Uint8Array.from({ length }, (_, index) => parseInt(text.substr(2 * index, 2), 16));
}

/** @param {Uint8Array} bytes */
export const toBase64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''));

/** @param {string} text */
export const fromBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** @param {...(Uint8Array | number[])} parts */
export const joined = (...parts) => Uint8Array.from(parts.flatMap((part) => Array.from(part)));

/** @param {string} text */
export const utf8 = (text) => new TextEncoder().encode(text);

/**
 * Return the little-endian bytes of an integer.
 *
 * @param {number} number
 * @param {number} length
 */
export function littleEndian(number, length) {
  let rest = BigInt(number);
  return Array.from({ length }, () => {
    const byte = Number(rest & 255n);
    rest >>= 8n;
    return byte;
  });
}
