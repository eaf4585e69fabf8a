/** Sampled response: answers at few epochs of a horizon (`randomizers/sampled_response`). */

import { readCode } from '../cell_codes.js';
import { Device, sorted, wordType } from '../device.js';
import { Categories } from '../draws.js';
import { check, checkLoss, constants, float, list, perStream, shown, whole } from '../laws.js';
import { readSets } from '../set_systems.js';
import { drawDiffering, readComposed } from './future_rand.js';
import { checkedItem } from './items.js';
import { checkedSet } from './sets.js';

/** @typedef {import('../byte_generator.js').ByteGenerator} ByteGenerator */

const MOST_REPORTS = 8;

/**
 * Devices of one horizon, each with a public phase; a subclass defines what they answer.
 *
 * @typedef {object} Phased
 * @property {number} lastEpoch
 * @property {number} answers - number of answers in a horizon
 * @property {number} items - number of items; 1 for yes or no
 * @property {boolean} complete - true if every user has an item; a device without one answers for a random one
 * @property {number} slots - maximum number of items; an answer is about one of these slots
 * @property {number} epsilon - privacy loss of the answers
 * @property {number} points - number of words
 */
class PhasedDevice extends Device {
  /** @param {Phased} phased */
  constructor({ lastEpoch, answers, items, complete, slots, epsilon, points }) {
    super(lastEpoch);
    this.answers = answers;
    this.items = items;
    this.complete = complete;
    this.slots = slots;
    this.wordType = wordType(points);
    this.lasting = ['phase'];
    if (answers === 1) this.rolling = { epochs: lastEpoch, epsilon };
    this.loss = perStream(epsilon);
  }

  /** @returns {Record<string, import('../device.js').Field>} */
  fields() {
    return { phase: { dtype: '<u4', least: 0, most: this.lastEpoch - 1 } };
  }

  /** @param {ByteGenerator} random @returns {Record<string, any>} */
  draw(random) {
    return { phase: random.integers(this.lastEpoch, 1) };
  }

  /** Return the epochs at which the device answers, ascending. */
  asked() {
    const { lastEpoch, answers } = this;
    const phase = this.kept.phase[0];
    return Array.from({ length: answers }, (_, answer) => ((phase + Math.floor((answer * lastEpoch) / answers)) % lastEpoch) + 1).sort(
      (one, other) => one - other,
    );
  }

  /** @param {any} value */
  checked(value) {
    if (this.slots > 1) return checkedSet(value, this.slots, this.items);
    return this.items > 1 || this.complete ? checkedItem(value, this.items) : super.checked(value);
  }

  /**
   * @param {number} epoch
   * @param {any} value
   * @param {ByteGenerator} random
   */
  words(epoch, value, random) {
    // A slot is drawn at every epoch, as in Python.
    let number = this.slots > 1 ? value[random.integers(this.slots, 1)[0]] ?? 0n : value;
    const answer = this.asked().indexOf(epoch);
    if (answer < 0) return sorted(this.wordType, []);
    if (this.complete) {
      const [drawn] = random.integers(this.items, 1);
      number ||= drawn + 1;
    }
    return sorted(this.wordType, [this.word(answer, number, random)]);
  }

  /**
   * Draw an answer.
   *
   * @param {number} answer - number of answers given before
   * @param {number | bigint} number - item from 1 on, or 0 for none; never 0 if all users have an item
   * @param {ByteGenerator} random
   * @returns {number}
   */
  word(answer, number, random) {
    throw new Error('a device with phases has no answers of its own');
  }
}

export class SampledResponse extends PhasedDevice {
  /** @param {any} body */
  constructor(body) {
    constants('sampled_response', body, ['last_epoch', 'epsilon', 'flips', 'sets', 'items', 'complete', 'slots']);
    const lastEpoch = whole('last_epoch', body.last_epoch, 1, 1 << 20);
    const flips = readComposed(body.flips);
    const answers = flips.k;
    check(
      answers <= Math.min(MOST_REPORTS, lastEpoch),
      `${answers} answers in ${lastEpoch} epochs; expected at most one at an epoch, and at most ${MOST_REPORTS}`,
    );
    const sets = readSets(body.sets);
    const items = whole('items', body.items, 1, 1 << 20);
    const { complete } = body;
    check(
      typeof complete === 'boolean' && items + Number(!complete) <= sets.mostValues,
      `complete is ${shown(complete)} with ${items} items; expected true or false, and at most ${sets.mostValues} values`,
    );
    const slots = whole('slots', body.slots, 1, items);
    check(slots === 1 || !(complete || answers > 1), `slots is ${slots}; expected 1 with 'complete' or several answers`);
    checkLoss(flips.loss, float('epsilon', body.epsilon));
    super({ lastEpoch, answers, items, complete, slots, epsilon: flips.loss, points: sets.points });
    this.sets = sets;
    // Total weight of all sequences with d answers outside their sets, for d = 0 to r.
    const [block, outside] = [BigInt(sets.block), BigInt(sets.outside)];
    this.masses = flips.masses.map((mass, distance) => mass * block ** BigInt(answers - distance) * outside ** BigInt(distance));
  }

  /** @returns {Record<string, import('../device.js').Field>} */
  fields() {
    return { ...super.fields(), flips: { dtype: '|u1', least: 0, most: 2 ** this.answers - 1 } };
  }

  /** @param {ByteGenerator} random @returns {Record<string, any>} */
  draw(random) {
    const { phase } = super.draw(random);
    // Bit i, counted from the lowest: the i-th answer in time is outside the set of its value.
    const differing = drawDiffering({ k: this.answers, masses: this.masses }, random);
    const flips = differing.reduce((bits, differs, answer) => bits | (Number(differs) << answer), 0);
    return { phase, flips: [flips] };
  }

  /**
   * @param {number} answer
   * @param {number | bigint} number
   * @param {ByteGenerator} random
   */
  word(answer, number, random) {
    const inside = ((this.kept.flips[0] >> answer) & 1) === 0;
    return this.sets.draw(Number(number) - Number(this.complete), inside, random);
  }
}

/** A device that answers about one level of a tree or of prefixes (`randomizers/sampled_response/leveled_response.py`). */
export class LeveledResponse extends PhasedDevice {
  /** @param {any} body */
  constructor(body) {
    constants('leveled_response', body, ['code', 'levels']);
    const code = readCode(body.code, ['levels', 'prefixes']);
    // The root of a tree is shared by all items, and no answer is about it.
    const shared = Number(body.code.kind === 'levels');
    const levels = list('levels', body.levels).map((level) => new SampledResponse(level));
    check(
      levels.length && levels.length === code.messages - shared,
      `got ${levels.length} levels; expected ${code.messages - shared}, at least 1`,
    );
    const cells = levels.reduce((sum, level) => sum + level.items, shared);
    check(cells === code.cells, `levels have ${cells} cells; expected ${code.cells}`);
    const [{ lastEpoch, complete, slots }] = levels;
    check(
      levels.every((level) => level.answers === 1 && level.lastEpoch === lastEpoch && level.complete === complete && level.slots === slots),
      "levels have different constants; expected one answer, and the same 'last_epoch', 'complete' and 'slots'",
    );
    const epsilon = Math.max(...levels.map((level) => level.loss.epsilon));
    const points = levels.reduce((sum, level) => sum + level.sets.points, 0);
    super({ lastEpoch, answers: 1, items: code.size, complete, slots, epsilon, points });
    this.code = code;
    this.shared = shared;
    this.levels = levels.map(({ sets, items, masses }) => ({ sets, items, flips: new Categories(masses) }));
  }

  /**
   * @param {number} answer
   * @param {number | bigint} number
   * @param {ByteGenerator} random
   */
  word(answer, number, random) {
    const [drawn] = random.integers(this.levels.length, 1);
    const { sets, flips } = this.levels[drawn];
    const before = this.levels.slice(0, drawn);
    const start = before.reduce((sum, level) => sum + level.items, this.shared);
    const cell = number ? this.code.encode(BigInt(number))[this.shared + drawn] - start + 1 : 0;
    const inside = flips.draw(1, random)[0] === 0;
    return before.reduce((sum, level) => sum + level.sets.points, 0) + sets.draw(cell - Number(this.complete), inside, random);
  }
}
