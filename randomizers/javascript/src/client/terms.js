/** Terms of joining a job, to show before anything is charged, as in `randomizers/client/terms.py`. */

import { inWords, spent as spentOf } from './account.js';
import { begins, horizonOf } from './epoch_clock.js';
import { eventSentences } from './event_terms.js';

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
  const { text: statement, job, population, deployed, guarantee, values, epochs, answers, recurring, tokens, events } = told;
  const spent = spentOf(account, population);
  const costs = /** @type {('epsilon' | 'delta')[]} */ (['epsilon', 'delta']).filter((name) => told[name] > 0n);
  const room = costs.map((name) => (limit[name] > spent[name] ? (limit[name] - spent[name]) / told[name] : 0n));
  const charges = room.length ? room.reduce((one, other) => (one < other ? one : other)) : null;
  const sealed = told.seal.length > 0;
  const description = inSentences(told, spent, limit, charges);
  return { statement, job, population, deployed, guarantee, values, epochs, answers, recurring, sealed, tokens, spent, limit, charges, events, description };
}

/** @param {Statement} told @param {Losses} spent @param {Losses} limit @param {bigint | null} charges */
function inSentences(told, spent, limit, charges) {
  const { job, population, epochs, guarantee } = told;
  /** @param {number} epoch */
  const moment = (epoch) => `${new Date(begins(epochs, epoch)).toISOString().slice(0, 16).replace('T', ' ')} UTC`;
  const last = epochs.last === null ? 'with no end date' : `at most ${epochs.last - epochs.first + 1} times`;
  const sentences = [`Job ${job} asks every ${every(epochs)}, ${last}, starting ${moment(epochs.first)}.`];
  if (told.events) sentences.push(...eventSentences(told.events, (count) => span(epochs.months * count, epochs.milliseconds * count)));
  if (told.answers !== null) {
    const [kept, again] = told.recurring ? [', and the same in all later rounds', ` and again every ${epochs.count} times`] : ['', ''];
    sentences.push(
      `In a round of ${epochs.count} times, this device answers ${told.answers}, drawn at random when it joins${kept}. An answer whose ` +
        `time has passed by then is skipped, and an answer that has not arrived ${span(0, Math.round(1000 * told.late))} after its time is lost.`,
      "An answer is random: the user's value at that time only makes some answers likelier.",
    );
    const { slots } = told.values;
    const levels = told.law.levels?.length ?? 1;
    if (slots !== null && slots > 1) sentences.push(`It is about one of ${slots} places for items, drawn at random, which may be empty.`);
    if (levels > 1) {
      sentences.push(
        `It is about a part of all possible values. Which of ${levels} divisions into such parts is used is drawn at random, and public.`,
      );
    }
    sentences.push(
      'Each time, the device sends an envelope of the same size, with or without an answer. ' +
        `It sends one more when it joins${again}, to count the user as a participant.`,
    );
  }
  const right = `that was 50 % likely is right in at most ${percentRight(guarantee)} of cases`;
  if (guarantee.unit === 'stream') {
    // A deployment within a horizon of the calendar covers only the rest of that horizon.
    const later = (horizonOf(epochs, epochs.first) + 1) * epochs.count + 1;
    const until = told.recurring ? ` before ${moment(later)}` : '';
    sentences.push(`All answers${until} together cost ${inWords(told)}: a guess about the user ${right}.`);
    if (told.recurring) sentences.push(`Every further ${epochs.count} times cost the same again.`);
    if (told.rolling) {
      const { epochs: row, epsilon } = told.rolling;
      sentences.push(
        `Whatever the user does within any ${row} times in a row costs ${inWords({ epsilon, delta: 0n })} in total, even if ` +
          `everything that this device ever sends is seen. What lasts longer costs more: ` +
          `${inWords({ epsilon: 2n * epsilon, delta: 0n })} for ${row + 1} to ${2 * row} times in a row, and so on. ` +
          'If the app is installed again, the device draws again, and its costs are added to the earlier ones.',
      );
    }
  } else {
    sentences.push(`Each answer costs ${inWords(told)}: a guess about it ${right}.`);
  }
  const enough = charges === null ? 'any number' : `${charges}`;
  sentences.push(
    `For population ${population}, ${inWords(spent)} of the ${inWords(limit)} that this app allows is already spent. Remaining charges of this size: ${enough}.`,
    `Protected: the difference between ${guarantee.neighbors}.`,
    `Trusted party: ${guarantee.trust}.`,
  );
  if (told.seal.length) sentences.push('Collectors cannot read the answers.');
  sentences.push(`Collectors see the network address and a random id${told.tokens ? ' and who reports' : ''}.`);
  return sentences.join(' ');
}

/**
 * Return the maximum success rate of a guess that was 50 % likely, rounded up.
 *
 * @param {{ epsilon: number, delta: number }} guarantee
 */
function percentRight({ epsilon, delta }) {
  const wrong = (100 * (1 - delta)) / (1 + Math.exp(epsilon));
  if (wrong > 1) return `${Math.ceil(Number(((100 - wrong) * 10).toFixed(9))) / 10} %`;
  // The difference to certainty has one digit, rounded down.
  const power = Math.floor(Math.log10(wrong));
  const left = Math.floor(Number((wrong / 10 ** power).toFixed(9))) * 10 ** power;
  return power < -4 ? '100 %' : `${(100 - left).toFixed(-power)} %`;
}

/** @param {import('./epoch_clock.js').Epochs} epochs */
function every({ months, milliseconds }) {
  const length = span(months, milliseconds);
  return length.includes(' and ') ? length : length.replace(/^1 /, '');
}

/** Return a length of time as text. @param {number} months @param {number} milliseconds */
export function span(months, milliseconds) {
  /** @type {[number, string][]} */
  const parts = months ? [[months, 'month']] : [];
  let rest = milliseconds;
  for (const [name, size] of SPANS) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count) parts.push([count, name]);
  }
  return parts.map(([count, name]) => `${count} ${name}${count > 1 ? 's' : ''}`).join(' and ');
}
