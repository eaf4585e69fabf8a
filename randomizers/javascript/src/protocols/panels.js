/** Several questions to users in public groups, each device in one panel (`randomizers/panels`). */

import { wordType } from '../device.js';
import { check, constants, large, list, oneOf, shown, whole } from '../laws.js';
import { MEAN_UNIT } from '../measures.js';
import { DividedDevice } from './divided.js';
import { HadamardValues } from './hadamard_values.js';
import { SampledResponse } from './sampled_response.js';
import { ShuffledNumberStream, ShuffledValueStream } from './shuffled_value_stream.js';
import { ValueStream } from './value_stream.js';

/** @typedef {import('../byte_generator.js').ByteGenerator} ByteGenerator */

const MOST_PANELS = 255;
const MOST_SHARE = 1000;

/** Mechanisms of questions, and who adds their noise and when. */
const MECHANISMS = [
  { device: HadamardValues, kind: 'followed', messages: 2 ** 24 },
  { device: ValueStream, kind: 'followed', messages: 2 ** 8 },
  { device: ShuffledValueStream, kind: 'summed', messages: 2 ** 16 },
  { device: SampledResponse, kind: 'sampled', messages: 0 },
];

export class Panels extends DividedDevice {
  /** @param {any} body */
  constructor(body) {
    constants('panels', body, ['groups', 'questions']);
    const groups = whole('groups', body.groups, 1, MOST_PANELS);
    const questions = list('questions', body.questions).map((question) => {
      constants('a question', question, ['answer', 'share', 'law']);
      const answer = oneOf('answer', question.answer, ['boolean', 'mean', 'labels']);
      whole('share', question.share, 1, MOST_SHARE);
      const part = partOf(question.law, answer);
      const labels = answer === 'labels';
      const fits =
        part instanceof SampledResponse ? (labels || part.items === 1) && !part.complete && part.slots === 1 : part instanceof HadamardValues === labels;
      check(fits, `a question with answer ${answer} has the constants of another answer`);
      const largest = labels ? /** @type {any} */ (part).items : answer === 'mean' ? MEAN_UNIT : 1;
      return { answer, part, largest, share: large('share', question.share) };
    });
    const panels = groups * questions.length;
    check(panels >= 1 && panels <= MOST_PANELS, `got ${panels} panels; expected 1 to ${MOST_PANELS}`);
    const kinds = new Set(questions.map(({ part }) => MECHANISMS.find(({ device }) => part instanceof device)?.kind));
    check(kinds.size === 1, `questions are ${[...kinds].join(' and ')}; expected mechanisms of the same kind`);
    super('question', questions.map(({ part }) => part), questions.map(({ share }) => share));
    this.groups = groups;
    this.questions = questions;
    this.panels = panels;
    this.sampled = kinds.has('sampled');
    this.lasting = this.sampled ? ['group', 'phase'] : ['group'];
    const rolling = this.sampled && this.parts.every((part) => part.rolling);
    if (rolling) this.rolling = { epochs: this.lastEpoch, epsilon: this.loss.epsilon };
    const most = Math.max(...questions.map(({ part }) => messagesOf(part)));
    const bits = most <= 2 ** 8 ? 8 : most <= 2 ** 16 ? 16 : 24;
    this.wordType = wordType(2 ** (bits + (panels === 1 ? 0 : 8)));
    /** Factor of the panel's number in a message: above the message of the mechanism. */
    this.factor = 2 ** bits;
    /** True if devices compare numbers with a threshold, instead of sending them to be summed. */
    this.thresholds = !kinds.has('summed') && questions.some(({ answer }) => answer === 'mean');
  }

  /** @returns {Record<string, import('../device.js').Field>} */
  fields() {
    /** @type {Record<string, import('../device.js').Field>} */
    const fields = { ...super.fields(), group: { dtype: '|u1', least: 0, most: this.groups - 1 } };
    return this.thresholds ? { ...fields, threshold: { dtype: '<u4' } } : fields;
  }

  /** @param {ByteGenerator} random @returns {Record<string, any>} */
  draw(random) {
    const drawn = super.draw(random);
    return this.thresholds ? { ...drawn, threshold: random.integers(MEAN_UNIT, 1) } : drawn;
  }

  /**
   * @param {import('../byte_generator.js').ReadBytes} [read]
   * @param {{ group?: number }} [given]
   */
  enroll(read, given = {}) {
    const { group = this.groups === 1 ? 0 : undefined } = given;
    if (!this.enrolled) whole('group', group, 0, this.groups - 1);
    super.enroll(read, { group });
  }

  /** @param {any} value */
  checked(value) {
    const answers = list('value', value);
    check(answers.length === this.questions.length, `got ${answers.length} answers; expected a list of ${this.questions.length}`);
    this.questions.forEach(({ largest }, index) =>
      check(
        Number.isSafeInteger(answers[index]) && answers[index] >= 0 && answers[index] <= largest,
        `answer ${index + 1} is ${shown(answers[index])}; expected 0 to ${largest}`,
      ),
    );
    return answers;
  }

  /**
   * @param {number} epoch
   * @param {number[]} answers
   * @param {ByteGenerator} random
   * @returns {any}
   */
  words(epoch, answers, random) {
    const { question, group, threshold } = this.kept;
    const index = question[0] - 1;
    const compared = this.thresholds && this.questions[index].answer === 'mean';
    const answer = compared ? Number(answers[index] > threshold[0]) : answers[index];
    const { part } = this.questions[index];
    // A device that is not asked at an epoch states that, as the number of points.
    const [word = messagesOf(part) - 1] = this.ofPart(epoch, answer, random);
    const panel = this.panels === 1 ? 0 : question[0] + group[0] * this.questions.length;
    return this.wordType.of(word + panel * this.factor);
  }
}

/** @param {any} law @param {string} answer */
function partOf(law, answer) {
  check(law !== null && typeof law === 'object', `the law of a question is ${shown(law)}; expected an object`);
  if ('booleans' in law) return new HadamardValues(law);
  if ('flips' in law) return new SampledResponse(law);
  if ('theta' in law) return new ValueStream(law);
  return answer === 'mean' ? new ShuffledNumberStream(law) : new ShuffledValueStream(law);
}

/** Return the exclusive upper bound of a mechanism's messages. @param {any} part */
function messagesOf(part) {
  if (part instanceof SampledResponse) return part.sets.points + 1;
  return MECHANISMS.find(({ device }) => part instanceof device)?.messages ?? 0;
}
