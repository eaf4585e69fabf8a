/**
 * Validation of mechanisms (laws) in a job's description, with readable errors.
 */

/** Error for an invalid law, state or value. */
export class DeviceError extends Error {
  name = 'DeviceError';
}

/**
 * Throw a `DeviceError` unless a condition holds.
 *
 * @param {unknown} condition
 * @param {string} sentence
 */
export function check(condition, sentence) {
  if (!condition) throw new DeviceError(sentence);
}

/**
 * Return a value as short text for messages.
 *
 * @param {unknown} value
 */
export function shown(value) {
  if (value !== null && typeof value === 'object') return Array.isArray(value) ? 'a list' : 'an object';
  const text = typeof value === 'string' ? JSON.stringify(value) : String(value);
  return text.length > 60 ? `${text.slice(0, 60)}...` : text;
}

/**
 * Return a value if it is an integer from `least` to `most`; throw otherwise.
 *
 * @param {string} name
 * @param {any} value
 * @param {number} least
 * @param {number} most
 * @returns {number}
 */
export function whole(name, value, least, most) {
  check(
    Number.isSafeInteger(value) && value >= least && value <= most,
    `${name} is ${shown(value)}; expected an integer from ${least} to ${most}`,
  );
  return value;
}

/**
 * Return an integer of any size as a BigInt; throw if the value is not one.
 *
 * @param {string} name
 * @param {any} value
 * @param {bigint} least
 * @returns {bigint}
 */
export function large(name, value, least = 0n) {
  const digits = typeof value === 'string' && /^\d{1,9999}$/.test(value);
  check(
    typeof value === 'bigint' || Number.isSafeInteger(value) || digits,
    `${name} is ${shown(value)}; expected an integer. Parse the description with parseJson`,
  );
  const number = BigInt(value);
  check(number >= least, `${name} is ${shown(number)}; expected at least ${least}`);
  return number;
}

/**
 * Return a value if it is a finite number; throw otherwise.
 *
 * @param {string} name
 * @param {any} value
 * @returns {number}
 */
export function float(name, value) {
  check(Number.isFinite(value), `${name} is ${shown(value)}; expected a finite number`);
  return value;
}

/**
 * Parse a number in the format of Python's `float.hex`, exactly.
 *
 * @param {string} name
 * @param {any} value
 * @returns {number}
 */
export function hexadecimal(name, value) {
  const parts = /^(-?)0x([01])\.([0-9a-f]{1,13})p([+-]\d{1,4})$/.exec(value);
  check(parts && typeof value === 'string', `${name} is ${shown(value)}; expected a number such as 0x1.8p+1`);
  const [, sign, one, places, exponent] = /** @type {string[]} */ (parts);
  let number = Number(`0x${one}${places}`);
  // Repeated multiplication by 2 or 1/2 is exact, but 2 ** n might not be.
  const doublings = Number(exponent) - 4 * places.length;
  for (let left = Math.abs(doublings); left > 0; left--) number *= doublings > 0 ? 2 : 0.5;
  return float(name, sign ? -number : number);
}

/**
 * Return a value if it is an array; throw otherwise.
 *
 * @param {string} name
 * @param {any} value
 * @returns {any[]}
 */
export function list(name, value) {
  check(Array.isArray(value), `${name} is ${shown(value)}; expected a list`);
  return value;
}

/**
 * Return a value if it is an object with all of `keys` and no others except `optional`; throw otherwise.
 *
 * @param {string} name
 * @param {any} value
 * @param {string[]} keys
 * @param {string[]} [optional]
 * @returns {any}
 */
export function constants(name, value, keys, optional = []) {
  const isObject = value !== null && typeof value === 'object' && !Array.isArray(value);
  check(isObject, `the law of ${name} is ${shown(value)}; expected an object`);
  const missing = keys.filter((key) => !Object.hasOwn(value, key));
  check(!missing.length, `the law of ${name} has missing constants: ${missing.join(', ')}`);
  const unknown = Object.keys(value).filter((key) => ![...keys, ...optional].includes(key));
  check(!unknown.length, `the law of ${name} has unknown constants: ${unknown.join(', ')}`);
  return value;
}

/**
 * Return a value if it is one of the allowed texts; throw otherwise.
 *
 * @param {string} name
 * @param {any} value
 * @param {string[]} allowed
 * @returns {any}
 */
export function oneOf(name, value, allowed) {
  check(allowed.includes(value), `${name} is ${shown(value)}; expected one of ${allowed.join(', ')}`);
  return value;
}

/**
 * Throw if a law's epsilon or delta is out of range.
 *
 * @param {any} law
 */
export function checkApproximate(law) {
  check(float('epsilon', law.epsilon) > 0, `epsilon is ${law.epsilon}; expected a positive number`);
  check(law.delta > 0 && law.delta < 1, `delta is ${shown(law.delta)}; expected a number above 0 and below 1`);
}

/** @typedef {{ epsilon: number, delta: number, unit: 'stream' | 'epoch' }} Loss */

/** Return the loss of a whole stream. @param {number} epsilon @param {number} [delta] @returns {Loss} */
export const perStream = (epsilon, delta = 0) => ({ epsilon, delta, unit: 'stream' });

/** Return the loss of each epoch. @param {number} epsilon @param {number} delta @returns {Loss} */
export const perEpoch = (epsilon, delta) => ({ epsilon, delta, unit: 'epoch' });

/**
 * Throw if a law's loss exceeds its epsilon; the tolerance covers the errors of logarithms.
 *
 * @param {number} loss
 * @param {number} epsilon
 */
export function checkLoss(loss, epsilon) {
  check(loss <= epsilon * (1 + 1e-9), `loss is ${loss}; expected at most epsilon, ${epsilon}`);
}

/** Return the natural logarithm of a ratio of BigInts. @param {bigint} above @param {bigint} below */
export function logarithmOfRatio(above, below) {
  const shift = BigInt(above.toString(2).length - below.toString(2).length);
  const scaled = shift >= 0n ? [above, below << shift] : [above << -shift, below];
  const places = 1n << 64n;
  return Math.log(Number((scaled[0] * places) / scaled[1]) / Number(places)) + Number(shift) * Math.LN2;
}
