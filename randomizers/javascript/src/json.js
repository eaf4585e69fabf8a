/**
 * Parse JSON with integers of any size.
 *
 * @param {string} text
 * @returns {any} like `JSON.parse`, but integers above 2^53 are BigInts
 */
export function parseJson(text) {
  const marked = text.replace(/"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g, (token) =>
    /^-?\d{16,}$/.test(token) && !Number.isSafeInteger(+token) ? `"\\u0000${token}"` : token,
  );
  return JSON.parse(marked, (_, value) =>
    typeof value === 'string' && /^\0-?\d+$/.test(value) ? BigInt(value.slice(1)) : value,
  );
}
