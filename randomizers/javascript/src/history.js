/**
 * History of a device's events, from which its measures are answered, as in
 * `randomizers/event_histories.py`: small sums per epoch, only of epochs that a window can still
 * contain. Answers are pure functions of the recorded events, in whatever order they arrive.
 */

import { DeviceError, check, shown } from './laws.js';
import { MOST_NUMBER, answerOf, scaled } from './measures.js';

/** @typedef {import('./measures.js').Measure} Measure */
/** @typedef {{ epoch: number, moment: number, event: string, numbers: Record<string, number>, labels: Record<string, string> }} Event */

/** Microseconds of a day. */
const DAY = 86_400_000_000;
const MOST_STEPS = 32;
const [NEW, RETAINED, RESURRECTED, DORMANT] = [1, 2, 3, 4];

/** Events of one user, for measures, latest labels and first events. */
export class EventHistory {
  #tracks;
  #latest;
  #firsts;
  /** @type {number | null} last closed epoch */
  closed = null;

  /**
   * @param {Measure[]} measures - different measures, to answer
   * @param {Record<string, string[]>} [latest] - declared labels of columns of which the latest is kept
   * @param {string[][]} [firsts] - different names of events, all if empty, whose first event is kept
   * @param {Record<string, Record<string, number>>} [starts] - first epoch of labels, by column; undeclared in earlier epochs
   */
  constructor(measures, latest = {}, firsts = [], starts = {}) {
    this.#tracks = measures.map((measure) => new Track(measure));
    this.#latest = Object.entries(latest).map(([column, labels]) => ({ column, latest: new Latest(labels, starts[column] ?? {}) }));
    this.#firsts = /** @type {{ events: string[], first: [number, number] | null }[]} */ (firsts.map((events) => ({ events, first: null })));
  }

  /**
   * Record an event of any epoch: open, closed, or before epoch 1.
   *
   * @param {Event} event - `moment` in microseconds since 1970; an empty label is no label
   */
  record({ epoch, moment, event = '', numbers = {}, labels = {} }) {
    check(Object.values(numbers).every(Number.isFinite), 'an event has an invalid number; expected a finite number');
    for (const track of this.#tracks) track.record(this.closed, { epoch, moment, event, numbers, labels });
    this.recordLabels({ epoch, moment, labels });
    for (const each of this.#firsts) {
      const counts = !each.events.length || each.events.includes(event);
      const { first } = each;
      if (counts && (!first || epoch < first[0] || (epoch === first[0] && moment < first[1]))) each.first = [epoch, moment];
    }
  }

  /** Record labels without an event: only `latest` depends on them. @param {{ epoch: number, moment: number, labels: Record<string, string> }} noted */
  recordLabels({ epoch, moment, labels }) {
    for (const { column, latest } of this.#latest) {
      const label = Object.hasOwn(labels, column) ? labels[column] : '';
      latest.record(this.closed, epoch, moment, label);
    }
  }

  /** End all epochs up to an epoch, and delete what no later window contains. @param {number} epoch */
  close(epoch) {
    check(this.closed === null || epoch >= this.closed, `epoch ${epoch} is already closed: the last is ${this.closed}`);
    this.closed = epoch;
    for (const track of this.#tracks) track.close(epoch);
    for (const { latest } of this.#latest) latest.close(epoch);
  }

  /** Return the answer of a measure, given its index, for the last closed epoch. @param {number} measure @param {number} epoch */
  answer(measure, epoch) {
    this.#check(epoch);
    return this.#tracks[measure].answer(epoch);
  }

  /** Return the number of the latest label until the last closed epoch, from 1; 0 for none. @param {string} column @param {number} epoch */
  latest(column, epoch) {
    this.#check(epoch);
    const found = this.#latest.find((each) => each.column === column);
    return /** @type {NonNullable<typeof found>} */ (found).latest.value;
  }

  /** Return epoch and moment of the first of some events until the last closed epoch. @param {string[]} events @param {number} epoch */
  first(events, epoch) {
    this.#check(epoch);
    const first = this.#firsts.find((each) => `${each.events.length} ${each.events}` === `${events.length} ${events}`)?.first;
    return first && first[0] <= epoch ? first : null;
  }

  /** @param {number} epoch */
  #check(epoch) {
    check(epoch === this.closed, `epoch ${shown(epoch)} has no answer: expected the last closed epoch, ${this.closed}`);
  }

  /** Return the contents as JSON values, the same as in Python. @returns {any} */
  toJson() {
    return {
      closed: this.closed,
      measures: this.#tracks.map((track) => track.toJson()),
      latest: this.#latest.map(({ latest }) => latest.toJson()),
      firsts: this.#firsts.map(({ first }) => first),
    };
  }

  /** Replace the contents by those of `toJson` of a history with the same arguments; throw if they are invalid. @param {any} saved */
  restore(saved) {
    const parts = /** @type {[any[], any[]][]} */ ([[this.#tracks, saved?.measures], [this.#latest, saved?.latest], [this.#firsts, saved?.firsts]]);
    const same = parts.every(([own, given]) => Array.isArray(given) && own.length === given.length);
    check(same && (saved.closed === null || Number.isSafeInteger(saved.closed)), 'the recorded events belong to other measures');
    try {
      this.closed = saved.closed;
      this.#tracks.forEach((track, index) => track.restore(saved.measures[index]));
      this.#latest.forEach(({ latest }, index) => latest.restore(saved.latest[index]));
      this.#firsts.forEach((each, index) => (each.first = saved.firsts[index]));
    } catch {
      throw new DeviceError('the recorded events are damaged');
    }
  }
}

/** Sums of one measure by epoch. */
class Track {
  /** @type {Map<number, any>} */
  cells = new Map();
  /** @type {number | null} epoch of the first event that counts */
  first = null;
  /** @type {number | null} latest epoch with an event, of those that no window contains any more */
  before = null;

  /** @param {Measure} measure */
  constructor(measure) {
    this.measure = measure;
  }

  /** @param {number | null} closed @param {Event} event */
  record(closed, { epoch, moment, event, numbers, labels }) {
    const { number, label, values, steps, scale, within } = this.measure;
    const counted = steps.length ? steps : this.measure.event;
    if (counted.length && !counted.includes(event)) return;
    let amount = 0;
    if (number !== null) {
      if (!Object.hasOwn(numbers, number)) return;
      amount = scaled(numbers[number], scale);
    } else if (label !== null) {
      amount = labelNumber(Object.hasOwn(labels, label) ? labels[label] : '', values);
      if (!amount) return;
    } else if (steps.length) amount = steps.indexOf(event) + 1;
    this.first = this.first === null ? epoch : Math.min(this.first, epoch);
    if (closed !== null && epoch <= closed - within) this.#leave(epoch);
    else this.cells.set(epoch, added(this.measure, this.cells.get(epoch), moment, amount));
  }

  /** @param {number} epoch */
  close(epoch) {
    for (const left of [...this.cells.keys()].filter((each) => each <= epoch - this.measure.within)) {
      this.cells.delete(left);
      this.#leave(left);
    }
  }

  /** @param {number} epoch */
  #leave(epoch) {
    this.before = this.before === null ? epoch : Math.max(this.before, epoch);
  }

  /** @param {number} epoch */
  answer(epoch) {
    const epochs = this.#epochs().filter((each) => each <= epoch);
    if (this.measure.type === 'lifecycle') return this.#lifecycle(epoch, epochs);
    return answerOf(this.measure, combined(this.measure, epochs.map((each) => this.cells.get(each))));
  }

  #epochs() {
    return [...this.cells.keys()].sort((one, other) => one - other);
  }

  /** @param {number} epoch @param {number[]} epochs */
  #lifecycle(epoch, epochs) {
    const { within } = this.measure;
    if (this.first === null || this.first > epoch) return 0;
    if (!epochs.length) return DORMANT;
    if (epoch - this.first < within) return NEW;
    // Only the first epoch in the window can end a gap of more than a window.
    return this.before !== null && epochs[0] - this.before > within ? RESURRECTED : RETAINED;
  }

  toJson() {
    const cells = this.#epochs().map((epoch) => [epoch, this.measure.type === 'sum' ? `${this.cells.get(epoch)}` : this.cells.get(epoch)]);
    return { cells, first: this.first, before: this.before };
  }

  /** @param {any} saved */
  restore({ cells, first, before }) {
    this.cells = new Map(cells.map((/** @type {[number, any]} */ [epoch, cell]) => [epoch, this.measure.type === 'sum' ? BigInt(cell) : cell]));
    Object.assign(this, { first, before });
  }
}

/**
 * Return an epoch's sum after one more event, without changing the sum before it.
 *
 * @param {Measure} measure
 * @param {any} cell - sum before the event, or undefined
 * @param {number} moment
 * @param {number} amount
 */
function added({ type, labels }, cell, moment, amount) {
  switch (type) {
    case 'days':
      return [...new Set([...(cell ?? []), Math.floor(moment / DAY)])].sort((one, other) => one - other);
    case 'sum':
      return (cell ?? 0n) + BigInt(amount);
    case 'max':
      return cell === undefined ? amount : Math.max(cell, amount);
    case 'last':
      // Of events at the same time, the one recorded last counts.
      return cell === undefined || moment >= cell[0] ? [moment, amount] : cell;
    case 'most':
      return labels.map((_, index) => (cell?.[index] ?? 0) + Number(index === amount - 1));
    case 'steps': {
      const steps = /** @type {[number, number][]} */ (cell ?? []);
      if (steps.some(([time, step]) => time === moment && step === amount)) return steps;
      return [...steps, [moment, amount]].sort((one, other) => one[0] - other[0] || one[1] - other[1]).slice(0, MOST_STEPS);
    }
  }
  return (cell ?? 0) + 1;
}

/**
 * Return the value of a window, an integer or null, from the sums of its epochs in order.
 *
 * @param {Measure} measure
 * @param {any[]} cells
 * @returns {number | bigint | null}
 */
function combined({ type, labels }, cells) {
  switch (type) {
    case 'active':
      return Number(cells.length > 0);
    case 'count':
      return cells.reduce((all, cell) => all + cell, 0);
    case 'days':
      return new Set(cells.flat()).size;
    case 'sum': {
      const sum = /** @type {bigint} */ (cells.reduce((all, cell) => all + cell, 0n));
      return sum > MOST_NUMBER ? MOST_NUMBER : sum < -MOST_NUMBER ? -MOST_NUMBER : sum;
    }
    case 'max':
      return cells.length ? Math.max(...cells) : null;
    case 'last':
      return cells.length ? cells[cells.length - 1][1] : null;
    case 'most': {
      if (!cells.length) return null;
      const counts = labels.map((_, index) => cells.reduce((all, cell) => all + cell[index], 0));
      return counts.indexOf(Math.max(...counts)) + 1;
    }
  }
  let reached = 0;
  for (const [, step] of cells.flat()) if (step === reached + 1) reached = step;
  return reached;
}

/** Latest label of a column, until the last closed epoch and in each open epoch. */
class Latest {
  /** @type {[number, number] | null} moment and number of the label */
  closed = null;
  /** @type {Map<number, [number, number]>} */
  open = new Map();

  /** @param {string[]} labels @param {Record<string, number>} starts */
  constructor(labels, starts) {
    this.labels = labels;
    this.starts = starts;
  }

  get value() {
    return this.closed ? this.closed[1] : 0;
  }

  /** @param {number | null} closed @param {number} epoch @param {number} moment @param {string} label */
  record(closed, epoch, moment, label) {
    const early = Object.hasOwn(this.starts, label) && epoch < this.starts[label];
    const number = early ? this.labels.length + 1 : labelNumber(label, this.labels);
    if (!number) return;
    if (closed !== null && epoch <= closed) this.closed = later(this.closed, [moment, number]);
    else this.open.set(epoch, later(this.open.get(epoch) ?? null, [moment, number]));
  }

  /** @param {number} epoch */
  close(epoch) {
    for (const [ended, latest] of this.#sorted().filter(([each]) => each <= epoch)) {
      this.open.delete(ended);
      this.closed = later(this.closed, latest);
    }
  }

  #sorted() {
    return [...this.open].sort((one, other) => one[0] - other[0]);
  }

  toJson() {
    return { closed: this.closed, open: this.#sorted() };
  }

  /** @param {any} saved */
  restore({ closed, open }) {
    this.closed = closed;
    this.open = new Map(open);
  }
}

/** @param {[number, number] | null} one @param {[number, number]} other */
const later = (one, other) => (!one || other[0] >= one[0] ? other : one);

/** Return the number of a label among `values` from 1, the next number, or 0 if it is empty. @param {string} label @param {string[]} values */
function labelNumber(label, values) {
  if (!label) return 0;
  return values.includes(label) ? values.indexOf(label) + 1 : values.length + 1;
}
