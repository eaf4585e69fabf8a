/** Sampled response: answers at few epochs of a horizon (`randomizers/sampled_response`). */

import { Device } from '../device.js';
import { check, checkLoss, constants, float, perStream, whole } from '../laws.js';
import { drawDiffering, readComposed } from './future_rand.js';

/** @typedef {import('../byte_generator.js').ByteGenerator} ByteGenerator */

const MOST_REPORTS = 8;

export class SampledResponse extends Device {
  /** @param {any} body */
  constructor(body) {
    constants('sampled_response', body, ['last_epoch', 'epsilon', 'flips', 'sets', 'items', 'complete']);
    super(whole('last_epoch', body.last_epoch, 1, 1 << 20));
    this.flips = readComposed(body.flips);
    this.answers = this.flips.k;
    check(
      this.answers <= Math.min(MOST_REPORTS, this.lastEpoch),
      `${this.answers} answers in ${this.lastEpoch} epochs; expected at most one at an epoch, and at most ${MOST_REPORTS}`,
    );
    check(
      body.items === 1 && body.complete === false && body.sets?.values === 2 && body.sets?.size === 1,
      `the law has ${body.items} items; expected 1: this library answers yes or no only`,
    );
    checkLoss(this.flips.loss, float('epsilon', body.epsilon));
    this.lasting = ['phase'];
    if (this.answers === 1) this.rolling = { epochs: this.lastEpoch, epsilon: this.flips.loss };
    this.loss = perStream(this.flips.loss);
  }

  /** @returns {Record<string, import('../device.js').Field>} */
  fields() {
    return {
      phase: { dtype: '<u4', least: 0, most: this.lastEpoch - 1 },
      flips: { dtype: '|u1', least: 0, most: 2 ** this.answers - 1 },
    };
  }

  /** @param {ByteGenerator} random @returns {Record<string, any>} */
  draw(random) {
    const phase = random.integers(this.lastEpoch, 1);
    // Bit i, counted from the lowest, reverses the i-th answer in time.
    const flips = drawDiffering(this.flips, random).reduce((bits, differs, answer) => bits | (Number(differs) << answer), 0);
    return { phase, flips: [flips] };
  }

  /** Return the epochs at which the device answers, ascending. */
  asked() {
    const { lastEpoch, answers } = this;
    const phase = this.kept.phase[0];
    return Array.from({ length: answers }, (_, answer) => ((phase + Math.floor((answer * lastEpoch) / answers)) % lastEpoch) + 1).sort(
      (one, other) => one - other,
    );
  }

  /** @param {number} epoch @param {number} value */
  words(epoch, value) {
    const answer = this.asked().indexOf(epoch);
    return Uint8Array.from(answer < 0 ? [] : [value ^ ((this.kept.flips[0] >> answer) & 1)]);
  }
}
