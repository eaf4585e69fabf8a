/**
 * Losses as integers, epsilons in units of 10^-9 and deltas in units of 10^-18, with the same digits
 * as in `randomizers/client/amounts.py`. A number is read as the shortest decimal that identifies it.
 */

export const EPSILON_DIGITS = 9;
export const DELTA_DIGITS = 18;

/**
 * Return a number in units of 10^-digits.
 *
 * @param {any} number
 * @param {number} digits
 * @param {boolean} up - true rounds up, false down
 */
export function amount(number, digits, up) {
  if (typeof number !== 'number' || !(number >= 0 && number < Infinity)) {
    throw new Error('the loss is invalid; expected a finite number of at least 0');
  }
  const [significand, exponent = '0'] = String(number).split('e');
  const [whole, part = ''] = significand.split('.');
  const power = Number(exponent) + digits - part.length;
  const value = BigInt(whole + part);
  if (power >= 0) return value * 10n ** BigInt(power);
  const unit = 10n ** BigInt(-power);
  return (value + (up ? unit - 1n : 0n)) / unit;
}

/**
 * Return units of 10^-digits as a decimal.
 *
 * @param {bigint} units
 * @param {number} digits
 */
export function written(units, digits) {
  const text = units.toString().padStart(digits + 1, '0');
  return `${text.slice(0, -digits)}.${text.slice(-digits)}`.replace(/\.?0+$/, '');
}

/**
 * Parse the result of `written`; throw if it is malformed.
 *
 * @param {any} text
 * @param {number} digits
 */
export function read(text, digits) {
  const [whole, part = ''] = String(text).split('.');
  const units = /^\d+$/.test(whole + part) ? BigInt(whole + part.padEnd(digits, '0')) : -1n;
  if (units < 0n || written(units, digits) !== text) throw new Error('not an amount; expected a decimal such as 1.5');
  return units;
}
