/** Dummy messages of one contributor, as in `randomizers/dummies.py`. */

import { above, binomialTable, clusterRate, logarithmicTable, poissonTable } from './noise_tables.js';
import { check, constants, float, oneOf, shown, whole } from './laws.js';

/** @typedef {import('./byte_generator.js').ByteGenerator} ByteGenerator */

/** Exclusive limit on a device's mean number of dummies, below which one table draw is enough. */
const MOST = 65536;

/** Negative logarithm of the maximum probability that dummies exceed their capacity. */
const EXCESS = 100 * Math.LN2 + 1e-3;

/** @param {number[]} numbers */
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

/**
 * Return the capacity for dummies, which they exceed with a probability of at most 2^-100. So an error
 * in the last digit of a logarithm has no effect.
 *
 * @param {number} mean
 * @param {(number: number) => number} rarity
 */
function capacityFor(mean, rarity) {
  check(mean < MOST, `the mean number of dummies is ${mean}; expected less than ${MOST}`);
  const fits = Math.floor(mean) + 1;
  let step = 1;
  while (rarity(fits + step) < EXCESS) step *= 2;
  let low = fits + (step >> 1);
  let high = fits + step;
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (rarity(middle) < EXCESS) low = middle + 1;
    else high = middle;
  }
  return high - 1;
}

/**
 * Draw until the result fits.
 *
 * @template T
 * @param {() => T} draw
 * @param {(drawn: T) => number} size
 * @param {number} most
 */
function fitting(draw, size, most) {
  let drawn = draw();
  while (size(drawn) > most) drawn = draw();
  return drawn;
}

/** Dummy messages to random cells; subclasses define the distribution of their number. */
class Dummies {
  mean = 0;

  /**
   * Return the cells of all dummies.
   *
   * @param {number} cells
   * @param {ByteGenerator} random
   * @returns {number[]}
   */
  draw(cells, random) {
    return [];
  }

  /**
   * Draw from the same distribution, with fewer draws if there are more dummies than cells.
   *
   * @param {number} cells
   * @param {ByteGenerator} random
   */
  ordered(cells, random) {
    return this.draw(cells, random);
  }
}

/** A Poisson number of dummies, each in an independent cell. */
class PoissonDummies extends Dummies {
  /** @type {PoissonDummies | undefined} */
  #ofCell;

  /** @param {number} mean */
  constructor(mean) {
    super();
    this.mean = mean;
    this.most = capacityFor(mean, (number) => number * Math.log(number / mean) - number + mean);
    this.table = poissonTable(mean);
  }

  /** Draw the number of dummies. @param {ByteGenerator} random */
  total(random) {
    return fitting(() => this.table.draw(1, random)[0], (drawn) => drawn, this.most);
  }

  /**
   * @param {number} cells
   * @param {ByteGenerator} random
   * @returns {number[]}
   */
  draw(cells, random) {
    return random.integers(cells, this.total(random));
  }

  /**
   * @param {number} cells
   * @param {ByteGenerator} random
   * @returns {number[]}
   */
  ordered(cells, random) {
    this.#ofCell ??= new PoissonDummies(above(this.mean / cells));
    const { table } = this.#ofCell;
    if (cells > this.mean) return this.draw(cells, random);
    const draw = () => table.draw(cells, random);
    return fitting(draw, sum, this.most).flatMap((number, cell) => new Array(number).fill(cell));
  }
}

/** A Poisson number of clusters, each in an independent cell. */
class ClusteredDummies extends Dummies {
  /**
   * @param {number} cells
   * @param {number} shape
   * @param {number} cellMean
   */
  constructor(cells, shape, cellMean) {
    super();
    this.mean = cells * cellMean;
    const all = shape * cells;
    this.most = capacityFor(this.mean, (number) => {
      const over = Math.log((all + number) / (all + this.mean));
      return number * (Math.log(number / this.mean) - over) - all * over;
    });
    this.clusters = new PoissonDummies(clusterRate(shape, cellMean, cells));
    this.sizes = logarithmicTable(cellMean / (shape + cellMean));
  }

  /**
   * @param {number} cells
   * @param {ByteGenerator} random
   * @returns {number[]}
   */
  draw(cells, random) {
    const draw = () => {
      const clusters = this.clusters.draw(cells, random);
      const sizes = this.sizes.draw(clusters.length, random);
      return clusters.map((cell, index) => ({ cell, size: sizes[index] }));
    };
    const drawn = fitting(draw, (all) => sum(all.map(({ size }) => size)), this.most);
    return drawn.flatMap(({ cell, size }) => new Array(size).fill(cell));
  }
}

/** At most one dummy per cell, with a given probability. */
class BernoulliDummies extends Dummies {
  /**
   * @param {number} cells
   * @param {number} probability
   */
  constructor(cells, probability) {
    super();
    this.mean = cells * probability;
    this.most = capacityFor(this.mean, (number) => {
      if (number > cells) return Infinity;
      const share = number / cells;
      const without = share < 1 ? (1 - share) * Math.log((1 - share) / (1 - probability)) : 0;
      return cells * (share * Math.log(share / probability) + without);
    });
    this.table = binomialTable(cells, probability);
  }

  /**
   * @param {number} cells
   * @param {ByteGenerator} random
   * @returns {number[]}
   */
  draw(cells, random) {
    const [wanted] = fitting(() => this.table.draw(1, random), ([drawn]) => drawn, this.most);
    // Duplicates are drawn again.
    const drawn = new Set();
    while (drawn.size < wanted) {
      for (const cell of random.integers(cells, wanted - drawn.size)) drawn.add(cell);
    }
    return [...drawn];
  }
}

/**
 * Parse the noise of a cell; throw if it is malformed.
 *
 * @param {any} body
 */
export function readNoise(body) {
  const noise = constants('cell_noise', body, ['dummies', 'mean', 'minimum'], ['shape']);
  const { mean, dummies } = noise;
  oneOf('dummies', dummies, ['poisson', 'bernoulli', 'negative_binomial', 'shuffle']);
  check(float('mean', mean) > 0, `mean is ${mean}; expected a positive number`);
  whole('minimum', noise.minimum, 1, Number.MAX_SAFE_INTEGER);
  const shape = noise.shape ?? null;
  check(
    (shape !== null) === (dummies === 'negative_binomial') && (shape === null || float('shape', shape) > 0),
    `shape is ${shown(shape)} for ${dummies} dummies; expected a positive number for negative_binomial dummies, else null`,
  );
  check(dummies !== 'bernoulli' || mean < noise.minimum, `mean is ${mean} for bernoulli dummies; expected less than ${noise.minimum}, the minimum`);
  return { dummies, mean, minimum: noise.minimum, shape };
}

/**
 * Return the dummies of a contributor; null if the shuffler adds them.
 *
 * @param {ReturnType<typeof readNoise>} noise
 * @param {number} cells
 */
export function dummiesOf(noise, cells) {
  const share = above(noise.mean / noise.minimum);
  if (noise.dummies === 'bernoulli') return new BernoulliDummies(cells, share);
  if (noise.shape !== null) return new ClusteredDummies(cells, noise.shape / noise.minimum, share);
  return poissonOf(noise, cells);
}

/**
 * Return the dummies of a contributor; throw unless the noise is Poisson.
 *
 * @param {ReturnType<typeof readNoise>} noise
 * @param {number} cells
 */
export function poissonOf(noise, cells) {
  oneOf('dummies', noise.dummies, ['poisson', 'shuffle']);
  return noise.dummies === 'shuffle' ? null : new PoissonDummies(above(above(noise.mean / noise.minimum) * cells));
}
