/** Several questions to users in public groups, each device in one panel (`randomizers/panels`). */

import { check, constants, large, list, oneOf, shown, whole } from '../laws.js';
import { MEAN_UNIT } from '../measures.js';
import { DividedDevice } from './divided.js';
import { HadamardValues } from './hadamard_values.js';
import { ShuffledNumberStream, ShuffledValueStream } from './shuffled_value_stream.js';
import { ValueStream } from './value_stream.js';

/** @typedef {import('../byte_generator.js').ByteGenerator} ByteGenerator */

const MOST_PANELS = 255;
const MOST_SHARE = 1000;

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
      check((part instanceof HadamardValues) === (answer === 'labels'), `a question with answer ${answer} has the constants of another answer`);
      const largest = part instanceof HadamardValues ? part.items : answer === 'mean' ? MEAN_UNIT : 1;
      return { answer, part, largest, share: large('share', question.share) };
    });
    const panels = groups * questions.length;
    check(panels >= 1 && panels <= MOST_PANELS, `got ${panels} panels; expected 1 to ${MOST_PANELS}`);
    const summed = questions.filter(({ part }) => part instanceof ShuffledValueStream).length;
    check(!summed || summed === questions.length, 'some questions are summed by the shuffler, and others are not');
    super('question', questions.map(({ part }) => part), questions.map(({ share }) => share));
    this.groups = groups;
    this.questions = questions;
    this.panels = panels;
    this.lasting = ['group'];
    const labels = questions.some(({ answer }) => answer === 'labels');
    if (summed) this.wordType = panels === 1 ? Uint16Array : Uint32Array;
    else this.wordType = labels ? Uint32Array : panels === 1 ? Uint8Array : Uint16Array;
    /** Factor of the panel's number in a message: above a message to be summed, a row, or a symbol. */
    this.factor = 2 ** (summed ? 16 : labels ? 24 : 8);
    /** True if devices compare numbers with a threshold, instead of sending them to be summed. */
    this.thresholds = !summed && questions.some(({ answer }) => answer === 'mean');
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
    const [word] = this.ofPart(epoch, answer, random);
    const panel = this.panels === 1 ? 0 : question[0] + group[0] * this.questions.length;
    return this.wordType.of(word + panel * this.factor);
  }
}

/** @param {any} law @param {string} answer */
function partOf(law, answer) {
  check(law !== null && typeof law === 'object', `the law of a question is ${shown(law)}; expected an object`);
  if ('booleans' in law) return new HadamardValues(law);
  if ('theta' in law) return new ValueStream(law);
  return answer === 'mean' ? new ShuffledNumberStream(law) : new ShuffledValueStream(law);
}
