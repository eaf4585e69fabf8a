/**
 * What a device has spent of its user's privacy, over all jobs and deployments it ever joined: as
 * `randomizers/client/account.py`. Entries are those of the document.
 */

import { DELTA_DIGITS, EPSILON_DIGITS, amount, read, written } from './amounts.js';
import { ClientError } from './errors.js';

/** @typedef {import('./statements.js').Statement} Statement */
/** @typedef {{ epsilon: bigint, delta: bigint }} Losses */
/** @typedef {{ population: string, job: string, deployment: string, deployed: number, unit: string, epsilon: string, delta: string, charges: number, last: number }} Entry */

/** @param {{ epsilon: number, delta?: number }} limit @returns {Losses} */
export const limitOf = ({ epsilon, delta = 0 }) => ({
  epsilon: amount(epsilon, EPSILON_DIGITS, false),
  delta: amount(delta, DELTA_DIGITS, false),
});

/** For people. @param {Losses} losses */
export const inWords = ({ epsilon, delta }) =>
  `epsilon ${written(epsilon, EPSILON_DIGITS)}` + (delta ? `, delta ${written(delta, DELTA_DIGITS)}` : '');

/** @param {Entry} entry @returns {Losses} */
export const lossesOf = (entry) => ({
  epsilon: read(entry.epsilon, EPSILON_DIGITS),
  delta: read(entry.delta, DELTA_DIGITS),
});

/**
 * Whether an entry can have been kept: no fewer charges than draws.
 *
 * @param {any} entry
 */
export function isEntry(entry) {
  const { population, job, deployment, deployed, unit, charges, last } = entry ?? {};
  const named = [population, job, deployment].every((name) => typeof name === 'string');
  const counted = [deployed, charges, last].every(Number.isSafeInteger) && Math.min(deployed, charges, last + 1) >= 0;
  if (!named || !counted || !['stream', 'epoch'].includes(unit)) return false;
  try {
    lossesOf(entry);
  } catch {
    return false;
  }
  return charges >= Number(unit === 'stream' || last >= 0);
}

/**
 * What a population's jobs have cost so far.
 *
 * @param {Entry[]} account
 * @param {string} population
 * @returns {Losses}
 */
export function spent(account, population) {
  const total = { epsilon: 0n, delta: 0n };
  for (const entry of account.filter((each) => each.population === population)) {
    const { epsilon, delta } = lossesOf(entry);
    total.epsilon += epsilon * BigInt(entry.charges);
    total.delta += delta * BigInt(entry.charges);
  }
  return total;
}

/** @param {Entry[]} account @param {Statement} statement */
export const entryOf = (account, { deployment }) => account.find((entry) => entry.deployment === deployment);

/** When the newest deployment of a job that was joined was deployed; 0 if none was. @param {Entry[]} account @param {string} job */
export const newest = (account, job) =>
  Math.max(0, ...account.filter((entry) => entry.job === job).map(({ deployed }) => deployed));

/**
 * With an entry for a deployment; a "stream" is charged for its first horizon, whichever that will be:
 * what anybody says about the time does not matter.
 *
 * @param {Entry[]} account
 * @param {Statement} statement
 * @param {Losses} limit
 * @returns {Entry[]}
 */
export function opened(account, statement, limit) {
  checkRoom(account, statement, limit);
  const { population, job, deployment, deployed, guarantee } = statement;
  const { unit } = guarantee;
  const [epsilon, delta] = [written(statement.epsilon, EPSILON_DIGITS), written(statement.delta, DELTA_DIGITS)];
  const charges = Number(unit === 'stream');
  return [...account, { population, job, deployment, deployed, unit, epsilon, delta, charges, last: -1 }];
}

/**
 * Throw unless there is room for one more charge.
 *
 * @param {Entry[]} account
 * @param {Statement} statement
 * @param {Losses} limit
 */
export function checkRoom(account, statement, limit) {
  const soFar = spent(account, statement.population);
  if (soFar.epsilon + statement.epsilon > limit.epsilon || soFar.delta + statement.delta > limit.delta) {
    throw new ClientError(
      'limit',
      `job ${statement.job} costs ${inWords(statement)} for ` +
        `${statement.guarantee.unit === 'stream' ? 'each horizon' : 'each epoch'}; of population ` +
        `${statement.population}, ${inWords(soFar)} is spent already and the app allows ${inWords(limit)}: ` +
        'the device stays silent',
    );
  }
}

/**
 * With a charge for exactly one horizon or epoch, which may be drawn then, once; itself for the horizon
 * of a "stream" that is the last one drawn.
 *
 * @param {Entry[]} account
 * @param {Statement} statement - of a deployment that has an entry
 * @param {number} index
 * @param {Losses} limit
 */
export function charged(account, statement, index, limit) {
  const entry = entryOf(account, statement);
  if (!entry) throw new ClientError('app', 'an account without an entry for what was joined: nothing is drawn');
  if (index === entry.last && entry.unit === 'stream') return account;
  if (index <= entry.last) {
    throw new ClientError('app', `job ${statement.job} was drawn beyond this epoch: the device stays silent`);
  }
  let { charges } = entry;
  // What was charged on joining is for the first one.
  if (entry.last >= 0 || !charges) {
    checkRoom(account, statement, limit);
    charges += 1;
  }
  return account.map((each) => (each === entry ? { ...entry, charges, last: index } : each));
}
