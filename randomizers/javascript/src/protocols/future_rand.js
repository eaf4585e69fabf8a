/** FutureRand: one bit per report, one privacy loss for a whole stream (`randomizers/future_rand`). */

import { Categories, bitLength, randomBit } from '../draws.js';
import { Device, narrowest } from '../device.js';
import { check, checkLoss, constants, float, large, list, logarithmOfRatio, perStream, whole } from '../laws.js';

/** @typedef {import('../byte_generator.js').ByteGenerator} ByteGenerator */

/** Number added to the message of a device that enrolled within the interval on which it reports. */
export const NEWCOMER = 128;

const MOST_SIGNS = 1024;
const UNKNOWN = -1;
const NEW = 2;

/**
 * Parse a composed randomizer; `masses` are those of all sign vectors at each distance.
 *
 * @param {any} body
 */
export function readComposed(body) {
  constants('composed signs', body, ['weights']);
  const weights = list('weights', body.weights).flatMap((run) => {
    const [length, weight] = list('a run of weights', run);
    return new Array(whole('a run of weights', length, 1, MOST_SIGNS + 1)).fill(large('weight', weight, 1n));
  });
  const k = weights.length - 1;
  check(k >= 1 && k <= MOST_SIGNS, `got ${k + 1} weights; expected 2 to ${MOST_SIGNS + 1}`);
  let ways = 1n;
  const masses = weights.map((weight, distance) => {
    const mass = ways * weight;
    ways = (ways * BigInt(k - distance)) / BigInt(distance + 1);
    return mass;
  });
  const ordered = [...weights].sort((one, other) => (one < other ? -1 : one > other ? 1 : 0));
  return { k, weights, masses, loss: logarithmOfRatio(ordered[k], ordered[0]) };
}

/**
 * Draw which signs differ from the input: first how many, then which ones. All subsets of that size
 * are equally likely.
 *
 * @param {{ k: number, masses: bigint[] }} composed
 * @param {ByteGenerator} random
 * @returns {boolean[]}
 */
export function drawDiffering({ k, masses }, random) {
  let [left] = new Categories(masses).draw(1, random);
  return Array.from({ length: k }, (_, position) => {
    const differs = random.integers(k - position, 1)[0] < left;
    left -= Number(differs);
    return differs;
  });
}

/** @param {any} body */
export function readFutureRandLaw(body) {
  constants('future_rand', body, ['horizon', 'epsilon', 'order_weights', 'order_laws', 'laws']);
  const horizon = large('horizon', body.horizon, 1n);
  check(
    (horizon & (horizon - 1n)) === 0n && horizon <= 1n << 63n,
    `horizon is ${horizon} epochs; expected a power of two up to 2^63`,
  );
  const laws = list('laws', body.laws).map(readComposed);
  const weights = list('order_weights', body.order_weights).map((weight) => large('order weight', weight));
  const composed = list('order_laws', body.order_laws).map((index) => laws[whole('order law', index, 0, laws.length - 1)]);
  const orders = bitLength(horizon);
  check(
    weights.length === orders && composed.length === orders,
    `got ${weights.length} order weights; expected ${orders} for a horizon of ${horizon} epochs`,
  );
  check(weights.some((weight) => weight > 0n), 'order weights are all 0; expected a positive one');
  const epsilon = float('epsilon', body.epsilon);
  const loss = Math.max(...composed.filter((_, order) => weights[order] > 0n).map((law) => law.loss));
  checkLoss(loss, epsilon);
  return { horizon, epsilon, loss, weights, composed };
}

/** Device that tracks a Boolean, with an order and signs that are drawn once. */
export class BooleanDevice extends Device {
  /**
   * @param {any} law - result of `readFutureRandLaw`
   */
  constructor(law) {
    super(Number(law.horizon > BigInt(Number.MAX_SAFE_INTEGER) ? Number.MAX_SAFE_INTEGER : law.horizon));
    this.booleans = law;
    this.loss = perStream(law.loss);
    /** @type {number} */
    this.most = Math.max(...law.composed.map((/** @type {any} */ each) => each.k));
  }

  /** @returns {Record<string, import('../device.js').Field>} */
  fields() {
    return {
      order: { dtype: '|u1', least: 0, most: this.booleans.composed.length - 1 },
      signs: { dtype: '|u1', length: Math.ceil(this.most / 8) },
      used: { dtype: narrowest(this.most + 1) },
      boundary: { dtype: '|i1' },
    };
  }

  /** @param {ByteGenerator} random @returns {Record<string, any>} */
  draw(random) {
    const { weights, composed } = this.booleans;
    const [order] = new Categories(weights).draw(1, random);
    const differs = drawDiffering(composed[order], random);
    const signs = new Uint8Array(Math.ceil(this.most / 8));
    differs.forEach((each, position) => {
      if (!each) signs[position >> 3] |= 1 << (position & 7);
    });
    return { order: [order], signs, boundary: [NEW] };
  }

  /**
   * Return the message that is due, or null.
   *
   * @param {number} epoch
   * @param {number} now
   * @param {ByteGenerator} random
   */
  follow(epoch, now, random) {
    const { order, signs, used, boundary } = this.kept;
    const length = 2 ** order[0];
    /** @param {number} each */
    const intervals = (each) => Math.floor(each / length);
    let before = boundary[0];
    if (before === NEW) before = intervals(epoch - 1) > 0 ? NEW + 1 : 0;
    else if (intervals(epoch - 1) > intervals(this.epoch)) before = UNKNOWN;
    boundary[0] = before;
    if (epoch % length) return null;
    boundary[0] = now;
    if (before === UNKNOWN) return null;
    const newcomer = before === NEW + 1;
    if (newcomer) before = 0;
    let bit = randomBit(random);
    if (before !== now) {
      const sign = used[0];
      const { k } = this.booleans.composed[order[0]];
      used[0] = Math.min(sign, k) + 1;
      if (sign < k) bit = Number(((signs[sign >> 3] >> (sign & 7)) & 1) === now);
    }
    return 2 * order[0] + bit + (newcomer ? NEWCOMER : 0);
  }
}

export class FutureRand extends BooleanDevice {
  /** @param {any} body */
  constructor(body) {
    super(readFutureRandLaw(body));
  }

  /**
   * @param {number} epoch
   * @param {number} value
   * @param {ByteGenerator} random
   */
  words(epoch, value, random) {
    const word = this.follow(epoch, value, random);
    return Uint8Array.from(word === null ? [] : [word]);
  }
}
