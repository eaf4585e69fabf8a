/** Randomizers, loaded on demand: a page loads only those of its jobs. */

import { SLACK } from '../least_delta.js';
import { ClientError } from './errors.js';

/** @type {Record<string, (law: any) => Promise<new (law: any) => import('../device.js').Device>>} */
const LOADED = {
  future_rand: async () => (await import('../protocols/future_rand.js')).FutureRand,
  value_stream: async () => (await import('../protocols/value_stream.js')).ValueStream,
  hadamard_values: async () => (await import('../protocols/hadamard_values.js')).HadamardValues,
  range_values: async () => (await import('../protocols/range_values.js')).RangeValues,
  panels: async () => (await import('../protocols/panels.js')).Panels,
  sampled_panels: async () => (await import('../protocols/panels.js')).Panels,
  shuffled_panels: async () => (await import('../protocols/panels.js')).Panels,
  count_min: async () => (await import('../protocols/count_min.js')).CountMin,
  single_message: async () => (await import('../protocols/single_message.js')).SingleMessage,
  shuffled_counts: async (law) => {
    if ('squared_norm_budget' in law) return (await import('../protocols/shuffled_value_stream.js')).ShuffledValueStream;
    const { ShuffledCounts, ShuffledItemCounts } = await import('../protocols/shuffled_counts.js');
    return 'noise' in law ? ShuffledCounts : ShuffledItemCounts;
  },
  sampled_response: async (law) => {
    const { LeveledResponse, SampledResponse } = await import('../protocols/sampled_response.js');
    return 'code' in law ? LeveledResponse : SampledResponse;
  },
};

/** Protocols that a device can run. */
export const PROTOCOLS = Object.freeze(Object.keys(LOADED));

/**
 * Return a device for a job without any state; call `restore` or `enroll` next.
 *
 * @param {{ job: string, protocol: string, law: any }} statement
 */
export async function randomizer({ job, protocol, law }) {
  try {
    const Randomizer = await LOADED[protocol](law);
    return new Randomizer(law);
  } catch {
    throw new ClientError('app', `this app has no randomizer for job ${job}. Update the app`);
  }
}

/** Tolerance factor for the errors of logarithms. */
const OFF = 1 + 1e-9;

/**
 * Throw unless this app has a randomizer for a job whose mechanism can keep the guarantee, like
 * `check_randomizer` in `randomizers/client/steps.py`.
 *
 * @param {import('./statements.js').Statement} statement
 */
export async function checkRandomizer(statement) {
  const { job, guarantee, minimum, epochs, answers, rolling } = statement;
  const device = await randomizer(statement);
  const { loss, assumedContributors } = device;
  const least = device.leastDelta();
  if (
    loss.unit !== guarantee.unit ||
    !(loss.epsilon <= guarantee.epsilon * OFF) ||
    !(loss.delta <= guarantee.delta * OFF)
  ) {
    throw new ClientError(
      'statement',
      `the statement guarantees epsilon ${guarantee.epsilon}, delta ${guarantee.delta} for each ${guarantee.unit}, ` +
        `but the mechanism of job ${job} has epsilon ${loss.epsilon}, delta ${loss.delta} for each ${loss.unit}: the ` +
        'device does not join',
    );
  }
  if (!(least <= loss.delta * SLACK)) {
    throw new ClientError(
      'statement',
      `the noise of job ${job} is too small for epsilon ${loss.epsilon}, delta ${loss.delta}: the actual delta is at least ` +
        `${least}; the device does not join`,
    );
  }
  if (assumedContributors > minimum) {
    throw new ClientError(
      'statement',
      `the mechanism of job ${job} assumes ${assumedContributors} contributors in each window, but the statement ` +
        `requires ${minimum}: the device does not join`,
    );
  }
  if (device.answers !== answers) {
    throw new ClientError(
      'statement',
      `the statement of job ${job} and its mechanism disagree on how often a device answers: the device does not join`,
    );
  }
  const own = device.rolling;
  if (rolling && !(own && rolling.epochs <= Math.min(own.epochs, epochs.count) && own.epsilon <= (Number(rolling.epsilon) / 1e9) * OFF)) {
    throw new ClientError(
      'statement',
      `the statement of job ${job} states an epsilon for consecutive epochs, which its mechanism does not ` +
        'guarantee: the device does not join',
    );
  }
  if (device.lastEpoch < epochs.count) {
    throw new ClientError(
      'statement',
      `the mechanism of job ${job} ends with epoch ${device.lastEpoch}, but the horizon has ${epochs.count} epochs: the device ` +
        'does not join',
    );
  }
}
