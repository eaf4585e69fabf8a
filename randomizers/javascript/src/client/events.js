/** What a device computes from its own events, as in `randomizers/client/events.py`. */

import { EventHistory } from '../history.js';
import { MEAN_UNIT, OTHER, readMeasure } from '../measures.js';
import { epochAt } from './epoch_clock.js';
import { ClientError } from './errors.js';

/** @typedef {import('../measures.js').Measure} Measure */
/** @typedef {{ name: string, values: string[] }} PublicAttribute */
/** @typedef {{ name: string, column: string | null, labels: string[], cells: number, event: string[], periods: import('./epoch_clock.js').Epochs | null, spare: number, starts: Record<string, number> }} PrivateAttribute */
/** @typedef {{ name: string, measure: Measure, private: PrivateAttribute[] }} Question */
/** @typedef {{ questions: Question[], public: PublicAttribute[], private: PrivateAttribute[], several: boolean, sets: boolean, text: string }} Events */

const MOST_CELLS = 4096;
/** Microseconds in a millisecond. */
const MICROSECONDS = 1000;

/**
 * Parse the events of a statement; throw if they are malformed, or do not match the values and the
 * mechanism of the statement.
 *
 * @param {any} body - the statement
 * @returns {Events | null} null if the app passes values
 */
export function readEvents({ events, epochs, values, law, protocol }) {
  if (events === undefined) return null;
  const private_ = events.private.map((/** @type {any} */ each) => readPrivate(each, epochs.start));
  const columns = private_.flatMap((/** @type {PrivateAttribute} */ { column }) => (column === null ? [] : [column]));
  if (new Set(columns).size < columns.length) throw new Error('private attributes have the same column');
  const questions = events.questions.map((/** @type {any} */ each) => ({
    name: text(each.name),
    measure: readMeasure(each.measure),
    private: each.private.map((/** @type {string} */ name) => named(private_, name)),
  }));
  const attributes = events.public.map((/** @type {any} */ { name, values }) => ({ name: text(name), values: texts(values) }));
  const several = ['panels', 'sampled_panels', 'shuffled_panels'].includes(protocol);
  const groups = attributes.reduce((/** @type {number} */ all, /** @type {PublicAttribute} */ each) => all * each.values.length, 1);
  const fits = several
    ? law.groups === groups && law.questions.length === questions.length
    : questions.length === 1 && !attributes.length && largest(questions[0]) === values.size - 1;
  if (!fits) throw new Error('the mechanism does not fit the measures and attributes');
  return { questions, public: attributes, private: private_, several, sets: values.slots !== null, text: JSON.stringify(events) };
}

/** @param {any} body @param {number} start @returns {PrivateAttribute} */
function readPrivate({ name, column, values, spare = 0, named: starts = {}, first_seen: length, event, periods: count }, start) {
  text(name);
  if (length !== undefined) {
    const { months, milliseconds } = length;
    const periods = { start, months, milliseconds, count: counted(count), first: 1, last: null };
    return { name, column: null, labels: [], cells: 2 + count, event: texts(event), periods, spare: 0, starts: {} };
  }
  const labels = texts(values);
  const later = Object.keys(starts);
  const last = labels.slice(labels.length - later.length);
  Object.values(starts).forEach((each) => counted(each));
  if (later.length > labels.length || !later.every((label) => last.includes(label))) {
    throw new Error('named values are not the last ones of an attribute');
  }
  const cells = 2 + labels.length + counted(spare, 0);
  return { name, column: text(column), labels, cells, event: [], periods: null, spare, starts };
}

/**
 * Return whether the events of two statements are the same, but one names more spare values.
 *
 * @param {any} one
 * @param {any} other
 */
export function sameButForNames(one, other) {
  const [first, second] = [one, other].map((events) => key({ ...events, private: events.private.length }));
  return (
    first === second &&
    one.private.every((/** @type {any} */ each, /** @type {number} */ at) => {
      const also = other.private[at];
      return sorted(each) === sorted(also) || namesMore(each, also) || namesMore(also, each);
    })
  );
}

/** @param {any} earlier @param {any} later */
function namesMore(earlier, later) {
  if (!later.named || !earlier.values) return false;
  const more = later.values.slice(earlier.values.length);
  const starts = Object.fromEntries(more.map((/** @type {string} */ label) => [label, later.named[label]]));
  const spare = later.spare ?? 0;
  const values = [...earlier.values, ...more];
  const extended = { ...earlier, values, spare, named: { ...earlier.named, ...starts } };
  return spare + more.length === (earlier.spare ?? 0) && sorted(extended) === sorted({ spare: 0, ...later });
}

/** Return JSON with sorted keys. @param {any} value @returns {string} */
function sorted(value) {
  const inOrder = (/** @type {string} */ _, /** @type {any} */ each) =>
    each && typeof each === 'object' && !Array.isArray(each) ? Object.fromEntries(Object.entries(each).sort(([a], [b]) => (a < b ? -1 : 1))) : each;
  return JSON.stringify(value, (name, each) => (typeof each === 'bigint' ? `${each}` : inOrder(name, each)));
}

/** @param {PrivateAttribute[]} attributes @param {string} name */
function named(attributes, name) {
  const found = attributes.find((each) => each.name === name);
  if (!found) throw new Error('a question has an unknown attribute');
  return found;
}

/** @param {any} number @param {number} [least] @returns {number} */
function counted(number, least = 1) {
  if (!(Number.isSafeInteger(number) && number >= least && number <= MOST_CELLS)) throw new Error(`an attribute has too many values; expected at most ${MOST_CELLS}`);
  return number;
}

/** @param {any} name @returns {string} */
function text(name) {
  if (typeof name !== 'string' || !name) throw new Error('a name is malformed; expected a text');
  return name;
}

/** @param {any} names @returns {string[]} */
function texts(names) {
  if (!Array.isArray(names) || new Set(names.map(text)).size < names.length) throw new Error('names are not a list of distinct texts');
  return names;
}

/** Return the largest answer; the smallest one is 0, or 1 with private attributes. @param {Question} question */
function largest({ measure, private: attributes }) {
  if (measure.equal) return measure.equal.count;
  const own = measure.answer === 'mean' ? MEAN_UNIT : measure.labels.length || 1;
  return attributes.length ? attributes.reduce((all, { cells }) => all * cells, 1 + own) : own;
}

/**
 * Return the history with the contents of `EventHistory.toJson`, or an empty one.
 *
 * @param {Events} events
 * @param {any} [saved]
 */
export function historyOf({ questions, private: attributes }, saved) {
  const ofColumns = attributes.flatMap(({ column, ...others }) => (column === null ? [] : [{ column, ...others }]));
  // No label is empty: spare values count, but no label has them.
  const latest = Object.fromEntries(ofColumns.map(({ column, labels, spare }) => [column, [...labels, ...Array(spare).fill('')]]));
  const starts = Object.fromEntries(ofColumns.map((each) => [each.column, each.starts]));
  const firsts = distinct(attributes.filter(({ column }) => column === null).map(({ event }) => event));
  const history = new EventHistory(distinct(questions.map(({ measure }) => measure)), latest, firsts, starts);
  if (saved) history.restore(saved);
  return history;
}

/** @template T @param {T[]} values @returns {T[]} */
const distinct = (values) => [...new Map(values.map((value) => [key(value), value])).values()];

/** @param {any} value */
const key = (value) => JSON.stringify(value, (_, each) => (typeof each === 'bigint' ? `${each}` : each));

/**
 * Return the randomizer's input for the last closed epoch.
 *
 * @param {Events} events
 * @param {EventHistory} history
 * @param {number} epoch
 * @returns {number | number[]}
 */
export function valueOf({ questions, several, sets }, history, epoch) {
  const measures = distinct(questions.map(({ measure }) => measure)).map(key);
  const answers = questions.map(({ measure, private: attributes }) => {
    const number = history.answer(measures.indexOf(key(measure)), epoch);
    if (!attributes.length) return number;
    // The answer of the measure and the values of the attributes are digits of a number.
    return 1 + attributes.reduce((all, each) => all * each.cells + numberOf(each, history, epoch), number);
  });
  if (sets) return answers.filter((answer) => answer);
  return several ? answers : answers[0];
}

/** Return the value of a private attribute at the end of an epoch, from 0. @param {PrivateAttribute} attribute @param {EventHistory} history @param {number} epoch */
function numberOf({ column, labels, cells, event, periods }, history, epoch) {
  if (column !== null) {
    const label = history.latest(column, epoch);
    // Values start with "none" and "other"; histories number "other" last.
    return label > labels.length ? 1 : label + Number(label > 0);
  }
  const first = history.first(event, epoch);
  if (!first || !periods) return 0;
  return Math.min(Math.max(epochAt(periods, Math.floor(first[1] / MICROSECONDS)), 0) + 1, cells - 1);
}

/** Return the number of a device's public group, from 0. @param {Events} events @param {Record<string, string>} attributes */
export const groupOf = (events, attributes) =>
  events.public.reduce((number, { name, values }) => number * values.length + values.indexOf(attributes[name]), 0);

/**
 * Return the public attributes that a job uses, each as one of its values; throw if one is missing.
 *
 * @param {Events} events
 * @param {string} job
 * @param {Record<string, string>} given
 */
export function publicValues(events, job, given) {
  const missing = events.public.map(({ name }) => name).filter((name) => typeof given[name] !== 'string');
  if (missing.length) {
    throw new ClientError(
      'value',
      `job ${job} divides users by ${missing.join(' and ')}, visible to everyone: pass ` +
        'attributes with a text for each to join',
    );
  }
  return Object.fromEntries(
    events.public.map(({ name, values }) => {
      const own = given[name].normalize('NFC');
      return [name, values.includes(own) ? own : OTHER];
    }),
  );
}

/**
 * Return the labels of private attributes by column; throw for unknown attributes.
 *
 * @param {Events} events
 * @param {string} job
 * @param {Record<string, string>} given
 */
export function privateLabels(events, job, given) {
  const settable = events.private.filter(({ column }) => column !== null);
  return Object.fromEntries(
    Object.entries(given).map(([name, label]) => {
      const found = settable.find((each) => each.name === name);
      if (!found) {
        throw new ClientError(
          'value',
          `job ${job} has no private attribute of this name; expected ${settable.map((each) => each.name).join(' or ') || 'none'}. ` +
            'Pass public attributes to join',
        );
      }
      return [found.column, labelOf(label)];
    }),
  );
}

/**
 * Return an event's numbers and labels by column, without those that the job does not use; throw if
 * `number` or `label` is ambiguous, or a number is not finite.
 *
 * @param {Events} events
 * @param {string} job
 * @param {{ number?: any, label?: any, numbers?: Record<string, any>, labels?: Record<string, any> }} given
 */
export function columnsOf({ questions, private: attributes }, job, { number, label, numbers = {}, labels = {} }) {
  /** @param {'number' | 'label'} name @returns {string[]} */
  const used = (name) => [...new Set(questions.flatMap(({ measure }) => measure[name] ?? []))];
  const texts = used('label');
  const every = [...new Set([...texts, ...attributes.flatMap(({ column }) => column ?? [])])];
  const told = { ...only(job, 'number', number, used('number')), ...numbers };
  const said = { ...only(job, 'label', label, texts), ...labels };
  /** @param {Record<string, any>} from @param {string[]} columns @param {(value: any) => any} read */
  const picked = (from, columns, read) =>
    Object.fromEntries(columns.filter((column) => Object.hasOwn(from, column)).map((column) => [column, read(from[column])]));
  return { numbers: picked(told, used('number'), finite), labels: picked(said, every, labelOf) };
}

/** @param {string} job @param {string} name @param {any} value @param {string[]} columns */
function only(job, name, value, columns) {
  if (value === undefined || value === null || !columns.length) return {};
  if (columns.length > 1) {
    throw new ClientError('value', `job ${job} has several columns: pass '${name}s' with ${columns.join(' or ')}, instead of '${name}'`);
  }
  return { [columns[0]]: value };
}

/** @param {any} value */
function finite(value) {
  if (!Number.isFinite(value)) throw new ClientError('value', 'an event has an invalid number; expected a finite number');
  return value;
}

/** @param {any} value */
function labelOf(value) {
  if (typeof value !== 'string') throw new ClientError('value', 'a label is invalid; expected a text');
  return value.normalize('NFC');
}
