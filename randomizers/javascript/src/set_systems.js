/**
 * Sets of points, one for each value, as in `randomizers/set_systems.py` and `point_spaces.py`. A
 * device draws a uniform point inside or outside the set of its value.
 */

import { check, constants, shown, whole } from './laws.js';

/** @typedef {import('./byte_generator.js').ByteGenerator} ByteGenerator */

/** Maximum number of values with subsets as points. */
const MOST_VALUES = 20;
const MOST_POINTS = 1 << 22;

/** Return a set system; throw if its constants are invalid. @param {any} body */
export const readSets = (body) => (Object.hasOwn(Object(body), 'values') ? new Subsets(body) : new PointSpace(body));

/** @param {number} n @param {number} k */
function combinations(n, k) {
  if (k < 0 || k > n) return 0;
  let ways = 1;
  for (let each = 0; each < k; each++) ways = (ways * (n - each)) / (each + 1);
  return ways;
}

class SetSystem {
  /** @param {number} points @param {number} block @param {number} mostValues */
  constructor(points, block, mostValues) {
    /** Number of points. */
    this.points = points;
    /** Number of points in each set. */
    this.block = block;
    /** Maximum number of values. */
    this.mostValues = mostValues;
  }

  /** Number of points outside each set. */
  get outside() {
    return this.points - this.block;
  }

  /**
   * Draw a uniform point inside or outside the set of a value. Both are drawn and one of them is used,
   * so the number of draws does not depend on the value.
   *
   * @param {number} value
   * @param {boolean} inside
   * @param {ByteGenerator} random
   */
  draw(value, inside, random) {
    const [amongInside] = random.integers(this.block, 1);
    const [amongOutside] = random.integers(this.outside, 1);
    return this.choose(value, inside, amongInside, amongOutside);
  }

  /**
   * Return the point with a given number inside or outside the set of a value.
   *
   * @param {number} value
   * @param {boolean} inside
   * @param {number} amongInside
   * @param {number} amongOutside
   * @returns {number}
   */
  choose(value, inside, amongInside, amongOutside) {
    throw new Error('a set system has no points of its own');
  }
}

/** All subsets of a given size of the values; the set of a value has those that contain it. */
class Subsets extends SetSystem {
  /** @param {any} body */
  constructor(body) {
    constants('subsets', body, ['values', 'size']);
    const values = whole('values', body.values, 2, MOST_VALUES);
    const size = whole('size', body.size, 1, values - 1);
    super(combinations(values, size), combinations(values - 1, size - 1), values);
    this.values = values;
    this.size = size;
  }

  /**
   * The other values form the subset of that number, without gaps; see `SetSystem.choose`.
   *
   * @param {number} value
   * @param {boolean} inside
   * @param {number} amongInside
   * @param {number} amongOutside
   */
  choose(value, inside, amongInside, amongOutside) {
    let number = inside ? amongInside : amongOutside;
    let others = this.size - Number(inside);
    let more = this.size;
    let point = 0;
    for (let each = this.values - 1; each >= 0; each--) {
      const least = combinations(each - Number(value < each), others);
      const taken = each !== value && number >= least;
      if (taken) {
        number -= least;
        others -= 1;
      }
      if (taken || (each === value && inside)) {
        point += combinations(each, more);
        more -= 1;
      }
    }
    return point;
  }
}

/** @param {any} number */
function isPrime(number) {
  if (!Number.isSafeInteger(number) || number < 2 || number > MOST_POINTS) return false;
  for (let factor = 2; factor * factor <= number; factor++) if (number % factor === 0) return false;
  return true;
}

/** Points of a projective space over a prime field; the set of a value is a hyperplane. */
class PointSpace extends SetSystem {
  /** @param {any} body */
  constructor(body) {
    constants('point space', body, ['order', 'coordinates']);
    const { order } = body;
    check(isPrime(order), `order is ${shown(order)}; expected a prime up to ${MOST_POINTS}`);
    const coordinates = whole('coordinates', body.coordinates, 2, 23);
    /** @param {number} free */
    const first = (free) => (order ** free - 1) / (order - 1);
    check(first(coordinates) <= MOST_POINTS, `the space has ${first(coordinates)} points; expected at most ${MOST_POINTS}`);
    super(first(coordinates), first(coordinates - 1), first(coordinates));
    this.order = order;
    this.coordinates = coordinates;
    this.first = first;
  }

  /**
   * Without the coordinate at the pivot of the value, the points of its hyperplane are those of a space
   * with one coordinate fewer; see `PointSpace.choose` in Python.
   *
   * @param {number} value
   * @param {boolean} inside
   * @param {number} amongInside
   * @param {number} amongOutside
   */
  choose(value, inside, amongInside, amongOutside) {
    const { order, coordinates, first } = this;
    const pivot = this.#free(value);
    const before = value - first(pivot);
    const after = coordinates - 1 - pivot;
    const weight = order ** after;
    if (!inside && amongOutside < weight) return first(after) + amongOutside;
    const number = inside ? amongInside : first(after) + Math.floor((amongOutside - weight) / (order - 1));
    const shift = inside ? 0 : ((amongOutside - weight) % (order - 1)) + 1;
    let free = this.#free(number);
    let vector = number + order ** free - first(free);
    const upper = Math.floor(vector / weight);
    if (upper > 0) {
      const coordinate = (shift + order - this.#dot(before, upper)) % order;
      vector = (upper * order + coordinate) * weight + (vector - upper * weight);
      free += 1;
    }
    return vector - (order ** free - first(free));
  }

  /** Return the number of free coordinates of a point. @param {number} point */
  #free(point) {
    let free = 0;
    while (free + 1 < this.coordinates && point >= this.first(free + 1)) free += 1;
    return free;
  }

  /** Return the dot product, modulo the order, of vectors read as numbers. @param {number} one @param {number} other */
  #dot(one, other) {
    let total = 0;
    while (one && other) {
      total += (one % this.order) * (other % this.order);
      one = Math.floor(one / this.order);
      other = Math.floor(other / this.order);
    }
    return total % this.order;
  }
}
