/** Terms of joining a job, to show before anything is charged, as in `randomizers/client/terms.py`. */

import { inWords, spent as spentOf } from './account.js';
import { begins, horizonOf } from './epoch_clock.js';

/** @typedef {import('./statements.js').Statement} Statement */
/** @typedef {import('./account.js').Losses} Losses */

const SPANS = /** @type {[string, number][]} */ ([
  ['day', 86_400_000],
  ['hour', 3_600_000],
  ['minute', 60_000],
  ['second', 1000],
  ['millisecond', 1],
]);

/**
 * Return the terms of joining for a device with an account and a limit.
 *
 * @param {Statement} told
 * @param {import('./account.js').Entry[]} account
 * @param {Losses} limit
 */
export function termsOf(told, account, limit) {
  const { text: statement, job, population, deployed, guarantee, values, epochs, recurring, tokens } = told;
  const spent = spentOf(account, population);
  const costs = /** @type {('epsilon' | 'delta')[]} */ (['epsilon', 'delta']).filter((name) => told[name] > 0n);
  const room = costs.map((name) => (limit[name] > spent[name] ? (limit[name] - spent[name]) / told[name] : 0n));
  const charges = room.length ? room.reduce((one, other) => (one < other ? one : other)) : null;
  const sealed = told.seal.length > 0;
  const description = inSentences(told, spent, limit, charges);
  return { statement, job, population, deployed, guarantee, values, epochs, recurring, sealed, tokens, spent, limit, charges, description };
}

/** @param {Statement} told @param {Losses} spent @param {Losses} limit @param {bigint | null} charges */
function inSentences(told, spent, limit, charges) {
  const { job, population, epochs, guarantee } = told;
  /** @param {number} epoch */
  const moment = (epoch) => `${new Date(begins(epochs, epoch)).toISOString().slice(0, 16).replace('T', ' ')} UTC`;
  const last = epochs.last === null ? 'with no end date' : `at most ${epochs.last - epochs.first + 1} times`;
  const sentences = [`Job ${job} asks every ${length(epochs)}, ${last}, starting ${moment(epochs.first)}.`];
  if (guarantee.unit === 'stream') {
    // A deployment within a horizon of the calendar covers only the rest of that horizon.
    const later = (horizonOf(epochs, epochs.first) + 1) * epochs.count + 1;
    const until = told.recurring ? ` before ${moment(later)}` : '';
    const further = told.recurring ? `; every further ${epochs.count} times cost the same again` : '';
    sentences.push(`All answers${until} together cost ${inWords(told)}${further}.`);
  } else {
    sentences.push(`Each answer costs ${inWords(told)}.`);
  }
  const enough = charges === null ? 'any number' : `${charges}`;
  sentences.push(
    `Of population ${population}, ${inWords(spent)} is spent and the app allows ${inWords(limit)}. Remaining charges of this size: ${enough}.`,
    `Protected: the difference between ${guarantee.neighbors}.`,
    `Trusted party: ${guarantee.trust}.`,
  );
  if (told.seal.length) sentences.push('Collectors cannot read the answers.');
  if (told.tokens) sentences.push('Collectors learn who reports.');
  return sentences.join(' ');
}

/** @param {import('./epoch_clock.js').Epochs} epochs */
function length({ months, milliseconds }) {
  /** @type {[number, string][]} */
  const parts = months ? [[months, 'month']] : [];
  let rest = milliseconds;
  for (const [name, size] of SPANS) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count) parts.push([count, name]);
  }
  if (parts.length === 1 && parts[0][0] === 1) return parts[0][1];
  return parts.map(([count, name]) => `${count} ${name}${count > 1 ? 's' : ''}`).join(' and ');
}
