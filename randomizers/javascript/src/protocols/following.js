/** Base class of devices that track changes of a Boolean (`randomizers/following_devices.py`). */

import { Device, narrowest } from '../device.js';

const UNKNOWN = 2;
const NEW = 4;
/** Threshold below which the tracked remainder of all changes counts as 0. */
const NOTHING = 2 ** -64;

export class FollowingDevice extends Device {
  /**
   * @param {number} lastEpoch
   * @param {number} maxChanges
   * @param {number} boost
   * @param {number} decay
   */
  constructor(lastEpoch, maxChanges, boost, decay) {
    super(lastEpoch);
    this.maxChanges = maxChanges;
    this.boost = boost;
    this.decay = decay;
  }

  /** @returns {Record<string, import('../device.js').Field>} */
  fields() {
    return {
      followed: { dtype: '<f8' },
      value: { dtype: '|u1' },
      changes: { dtype: narrowest(this.maxChanges + 2) },
    };
  }

  /** @param {import('../byte_generator.js').ByteGenerator} random @returns {Record<string, any>} */
  draw(random) {
    return { value: [NEW] };
  }

  /**
   * Update the state with the value of an epoch.
   *
   * @param {number} epoch
   * @param {number} now
   * @returns {number} x - 1/2 + f
   */
  follow(epoch, now) {
    const { followed, value, changes } = this.kept;
    let f = followed[0];
    for (let passed = this.epoch + 1; passed < epoch && f; passed++) f *= this.decay;
    let before = value[0];
    if (epoch > this.epoch + 1 && before < UNKNOWN) before |= UNKNOWN;
    if (before === NEW) before = 0;
    const changed = (before & 1) !== now;
    const boosted = changed && before < UNKNOWN && changes[0] < this.maxChanges;
    changes[0] = Math.min(changes[0] + Number(changed), this.maxChanges + 1);
    f *= this.decay;
    if (Math.abs(f) < NOTHING) f = 0;
    if (boosted) f += now ? this.boost : -this.boost;
    value[0] = now;
    followed[0] = f;
    return now - 0.5 + f;
  }
}
