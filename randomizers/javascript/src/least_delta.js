/**
 * Lower bound on delta that a device computes from the noise that its job declares. It is the same as
 * in `randomizers/least_delta.py`, which explains it.
 */

const MOST = 2 ** 33;
const POINTS = 2000;
const LEAST_DISTANCE = 1e-4;

/** Factor by which a lower bound can exceed the declared delta. */
export const SLACK = 1 + 1e-3;

/**
 * Return the delta between adding `shift` messages to `cells` cells with this noise, and not.
 *
 * @param {{ dummies: string, mean: number, minimum: number, shape: number | null }} noise - noise of a cell
 * @param {number} cells
 * @param {number} shift
 * @param {number} epsilon
 */
export function ofCells({ dummies, mean, minimum, shape }, cells, shift, epsilon) {
  const fewer = Math.min(cells, Math.max(1, Math.floor(MOST / mean)));
  shift = Math.max(1, Math.floor((shift * fewer) / cells));
  cells = fewer;
  if (dummies === 'bernoulli') return ofCoins(minimum * cells, mean / minimum, shift, epsilon);
  if (shape === null) return hockeyStick(counts(0, mean * cells), shift, epsilon);
  const stop = mean / (shape + mean);
  return hockeyStick(counts(stop, (shape * cells - 1) * stop), shift, epsilon);
}

/**
 * Return the delta if a user's shift is hidden among `coins` coins of other users.
 *
 * @param {number} coins
 * @param {number} probability - probability that a coin is 1
 * @param {number} shift
 * @param {number} epsilon
 * @param {number} [own] - probability that the user adds the shift
 * @param {number} [other] - that probability for the neighboring input
 */
export function ofCoins(coins, probability, shift, epsilon, own = 1, other = 0) {
  const odds = probability / Math.max(1 - probability, 2 ** -53);
  return hockeyStick(counts(-odds, (coins + 1) * odds), shift, epsilon, own, other);
}

/** Return the delta of sums with Gaussian noise. @param {number} distance @param {number} deviation @param {number} epsilon */
export function ofNormal(distance, deviation, epsilon) {
  if (distance / deviation < LEAST_DISTANCE) return 0;
  const shift = Math.ceil((distance / deviation) * POINTS);
  const width = distance / deviation / shift;
  const reach = Math.ceil(14 / width);
  const weights = Array.from({ length: 2 * reach + 1 }, (_, index) => Math.exp((-(((index - reach) * width) ** 2)) / 2));
  return hockeyStick(weights, shift, epsilon);
}

/** Return weights of counts k around the mode, each a + b / k times the previous weight. @param {number} a @param {number} b */
function counts(a, b) {
  const variance = Math.max(a + b, 0) / (1 - a) ** 2;
  if (variance > 2 * MOST) return [1];
  let mode = Math.max(0, Math.floor(b / (1 - a)));
  // The mode of nearly certain coins is their maximum count.
  if (mode && a + b / mode <= 0) mode -= 1;
  const reach = Math.ceil(16 * Math.sqrt(variance) + 80 / (1 - a)) + 1;
  const above = [1];
  for (let k = mode + 1; k <= mode + reach; k++) above.push(above[above.length - 1] * Math.max(a + b / k, 0));
  const below = [];
  for (let k = mode, weight = 1; k > Math.max(mode - reach, 0); k--) below.push((weight /= a + b / k));
  return [...below.reverse(), ...above];
}

/**
 * Return the delta between a distribution that is shifted with probability `own`, or with `other`.
 *
 * @param {number[]} weights
 * @param {number} shift
 * @param {number} epsilon
 * @param {number} [own]
 * @param {number} [other]
 */
function hockeyStick(weights, shift, epsilon, own = 1, other = 0) {
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const factor = Math.exp(Math.min(epsilon, 700));
  const apart = Math.min(shift, weights.length);
  let [up, down] = [0, 0];
  for (let index = 0; index < weights.length + apart; index++) {
    const law = (weights[index] ?? 0) / total;
    const shifted = (weights[index - apart] ?? 0) / total;
    const [one, two] = [own, other].map((share) => share * shifted + (1 - share) * law);
    up += Math.max(one - factor * two, 0);
    down += Math.max(two - factor * one, 0);
  }
  return Math.max(up, down);
}
