/**
 * Normal distribution function, bit-identical to `randomizers/value_stream/normal.py`: it uses only
 * additions, multiplications and divisions, in the same order.
 */

const LEAST = -5;
const MOST = 8.5;
const STEPS = 16;
const DEGREE = 8;
const DEGREE_OF_STEPS = 24;
// Phi(-5) and phi(-5): 0x1.33ca2f2133831p-22 and 0x1.8f16964c8fd3fp-20.
const FUNCTION_AT_LEAST = 0x133ca2f2133831 / 2 ** 52 / 4194304;
const DENSITY_AT_LEAST = 0x18f16964c8fd3f / 2 ** 52 / 1048576;
// Adding and subtracting this number rounds to the nearest integer, ties to even.
const ROUNDING = 2 ** 52;

/** @type {number[][] | undefined} */
let made;

/**
 * Return Phi at a point.
 *
 * @param {number} point - points below -5 count as -5
 */
export function distributionFunction(point) {
  const scaled = (Math.min(Math.max(point, LEAST), MOST) - LEAST) * STEPS;
  const center = scaled + ROUNDING - ROUNDING;
  const offset = scaled - center;
  made ??= polynomials();
  const coefficients = made[center];
  let found = coefficients[DEGREE];
  for (let degree = DEGREE - 1; degree >= 0; degree--) found = found * offset + coefficients[degree];
  return Math.min(found, 1);
}

/** Return Taylor coefficients at each center, in units of 1/16, lowest degree first. */
function polynomials() {
  const centers = [];
  let value = FUNCTION_AT_LEAST;
  let density = DENSITY_AT_LEAST;
  for (let step = 0; step <= (MOST - LEAST) * STEPS; step++) {
    const taylor = taylorAt(LEAST + step / STEPS, value, density);
    centers.push(taylor);
    value = sumFromLast(taylor);
    density = STEPS * sumFromLast(taylor.map((each, degree) => degree * each));
  }
  return centers;
}

/**
 * @param {number} center
 * @param {number} value
 * @param {number} density
 */
function taylorAt(center, value, density) {
  const derivatives = [0, density];
  for (let order = 0; order < DEGREE_OF_STEPS - 1; order++) {
    const last = derivatives.length - 1;
    derivatives.push(-center * derivatives[last] - order * derivatives[last - 1]);
  }
  const coefficients = [value];
  let scale = 1;
  for (let degree = 1; degree < derivatives.length; degree++) {
    scale /= degree * STEPS;
    coefficients.push(derivatives[degree] * scale);
  }
  return coefficients;
}

/** @param {number[]} terms */
const sumFromLast = (terms) => terms.reduceRight((total, term) => total + term, 0);
