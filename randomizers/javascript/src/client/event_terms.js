/** Sentences about what a device computes, as in `randomizers/client/event_terms.py`. */

import { numberText } from '../measures.js';

/** @typedef {import('../measures.js').Measure} Measure */

/**
 * Return all sentences about measures and attributes, in the order of the questions.
 *
 * @param {import('./events.js').Events} events
 * @param {(epochs: number) => string} span - length of a number of epochs as text
 */
export function eventSentences(events, span) {
  const measures = [...new Map(events.questions.map(({ name, measure }) => [name, measure])).values()];
  const sentences = [
    'The app records on this device what the user does. Each time, the device computes the following from it, and ' +
      'sends a randomized answer:',
    ...measures.map((measure) => measureSentence(measure, span)),
    ...events.private.map((each) => `Hidden in the answer as well: ${ofPrivate(each)}.`),
  ];
  if (events.questions.length > 1) {
    sentences.push(
      `The device answers one of ${events.questions.length} questions. Which one is drawn at random, and visible to everyone.`,
    );
  }
  sentences.push(...events.public.map(({ name, values }) => `Visible to everyone: your ${name}, as one of: ${values.join(', ')}.`));
  if (events.public.length) sentences.push('A change of what is visible counts only from the next round on, if there is one.');
  return sentences;
}

/** Return what a measure tells about the user, as a sentence. @param {Measure} measure @param {(epochs: number) => string} span */
export function measureSentence(measure, span) {
  const { type, number, label } = measure;
  const length = span(measure.within);
  const done = used(measure.event);
  const window = `the last ${length.includes(' and ') ? length : length.replace(/^1 /, '')}`;
  switch (type) {
    case 'active':
      return `Whether ${done} in ${window}.`;
    case 'lifecycle':
      return (
        `Whether you never ${done.slice('you '.length)}, did so for the first time less than ${length} ago (new), came back ` +
        `less than ${length} ago after a longer pause (resurrected), stayed away for ${length} (dormant), or none of these ` +
        '(retained).'
      );
  }
  const days = window.endsWith(' days') && !window.includes(' and ');
  const what = {
    count: `How often ${done} in ${window}`,
    days: `On how many ${days ? `of ${window}` : `days of ${window}`} ${done}`,
    sum: `The sum of ${number} when ${done} in ${window}`,
    max: `The largest ${number} when ${done} in ${window}`,
    last: `The latest ${number ?? label} when ${done} in ${window}`,
    most: `The most frequent ${label} when ${done} in ${window}`,
    steps: `The last step that you reached in ${window}, in this order`,
  }[type];
  return `${what}, ${answer(measure)}.`;
}

/** @param {import('./events.js').PrivateAttribute} attribute */
function ofPrivate({ name, column, labels, spare, event }) {
  if (column === null) return `when ${used(event)} for the first time`;
  const later = spare ? `, or one that is named later (${spare} at most)` : '';
  return `your ${name}, as one of: ${['none', ...labels, 'other'].join(', ')}${later}`;
}

/** @param {string[]} events */
const used = (events) => `you used ${events.join(' or ') || 'the app'}`;

/** @param {Measure} measure */
function answer({ atLeast, mean, equal, canBeNone, labels }) {
  if (atLeast !== null) return `only as whether it is at least ${numberText(atLeast)}`;
  if (mean) return `only as whether it is above a random number between ${numberText(mean.low)} and ${numberText(mean.high)}`;
  if (equal) return `as one of ${equal.count} equal ranges from ${numberText(equal.low)} to ${numberText(equal.high)}`;
  return `as one of: ${[...(canBeNone ? ['none'] : []), ...labels].join(', ')}`;
}
