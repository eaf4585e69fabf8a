/**
 * A device's own account of spent privacy, over all jobs and deployments that it ever joined, as in
 * `randomizers/client/account.py`. Entries have the format of the document.
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

/** Format losses in units of 10^-9 and 10^-18 as text. @param {Losses} losses */
export const inWords = ({ epsilon, delta }) =>
  `epsilon ${written(epsilon, EPSILON_DIGITS)}` + (delta ? `, delta ${written(delta, DELTA_DIGITS)}` : '');

/** @param {Entry} entry @returns {Losses} */
export const lossesOf = (entry) => ({
  epsilon: read(entry.epsilon, EPSILON_DIGITS),
  delta: read(entry.delta, DELTA_DIGITS),
});

/**
 * Return whether a stored entry is valid, with at least one charge if there is a draw.
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
 * Return the total cost of a population's jobs.
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

/** Return when a job's newest joined deployment was deployed, or 0 if none was joined. @param {Entry[]} account @param {string} job */
export const newest = (account, job) =>
  Math.max(0, ...account.filter((entry) => entry.job === job).map(({ deployed }) => deployed));

/**
 * Return the account with an entry for a deployment; a "stream" is charged for one horizon. This
 * charge pays for the first horizon that is drawn, whichever time a server sends. Throw
 * `ClientError` if one charge would exceed the limit.
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
 * Throw `ClientError` if one more charge would exceed the limit.
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
        `${statement.guarantee.unit === 'stream' ? 'each horizon' : 'each epoch'}. For population ` +
        `${statement.population}, ${inWords(soFar)} of the ${inWords(limit)} that this app allows is already ` +
        'spent: the device does not report',
    );
  }
}

/**
 * Return the account with a charge for one draw of a horizon or epoch. The last drawn horizon of a
 * "stream" is already paid for; for that one, the account is returned unchanged. Throw
 * `ClientError` if the charge would exceed the limit, or if this epoch or a later horizon or epoch
 * was already drawn.
 *
 * @param {Entry[]} account
 * @param {Statement} statement - statement of a deployment that has an entry
 * @param {number} index
 * @param {Losses} limit
 */
export function charged(account, statement, index, limit) {
  const entry = entryOf(account, statement);
  if (!entry) throw new ClientError('app', 'the account has no entry for the joined deployment: the device does not report');
  if (index === entry.last && entry.unit === 'stream') return account;
  if (index <= entry.last) {
    throw new ClientError('app', `job ${statement.job} already has a draw for this epoch or a later one: the device does not report`);
  }
  let { charges } = entry;
  // The charge on joining pays for the first horizon.
  if (entry.last >= 0 || !charges) {
    checkRoom(account, statement, limit);
    charges += 1;
  }
  return account.map((each) => (each === entry ? { ...entry, charges, last: index } : each));
}
