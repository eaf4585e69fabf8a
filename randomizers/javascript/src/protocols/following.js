/** Base class of devices that track changes of a Boolean (`randomizers/following_devices.py`). */

import { Device, narrowest } from '../device.js';
import { MEAN_UNIT as ONE } from '../measures.js';

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
    const { value, changes } = this.kept;
    const before = this.before(epoch);
    const changed = (before & 1) !== now;
    const boosted = changed && before < UNKNOWN && changes[0] < this.maxChanges;
    changes[0] = Math.min(changes[0] + Number(changed), this.maxChanges + 1);
    value[0] = now;
    return now - 0.5 + this.faded(epoch, boosted ? (now ? this.boost : -this.boost) : 0);
  }

  /**
   * Update the state with a number from 0 to 1, in units of 2^-32, which is stored in the last bit of
   * `value` and in `fraction`. The length of its path is `changes` minus `spare`.
   *
   * @param {number} epoch
   * @param {number} now
   * @returns {number} x - 1/2 + f
   */
  followNumber(epoch, now) {
    const { value, changes, fraction, spare } = this.kept;
    const before = this.before(epoch);
    const moved = now - (before & 1) * ONE - fraction[0];
    const most = this.maxChanges * ONE;
    const path = changes[0] * ONE - spare[0];
    const left = before < UNKNOWN ? Math.max(most - path, 0) : 0;
    const boosted = Math.min(Math.max(moved, -left), left);
    const longer = Math.min(path + Math.abs(moved), most + ONE);
    changes[0] = Math.ceil(longer / ONE);
    spare[0] = changes[0] * ONE - longer;
    value[0] = Number(now === ONE);
    fraction[0] = now % ONE;
    return now / ONE - 0.5 + this.faded(epoch, this.boost * (boosted / ONE));
  }

  /** Return the stored value as of the epoch before, with its flags. @param {number} epoch */
  before(epoch) {
    const [value] = this.kept.value;
    if (value === NEW) return 0;
    return epoch > this.epoch + 1 ? value | UNKNOWN : value;
  }

  /** Return f at an epoch, with what a change adds to it. @param {number} epoch @param {number} more */
  faded(epoch, more) {
    const { followed } = this.kept;
    let f = followed[0];
    for (let passed = this.epoch + 1; passed < epoch && f; passed++) f *= this.decay;
    f *= this.decay;
    if (Math.abs(f) < NOTHING) f = 0;
    followed[0] = f + more;
    return followed[0];
  }
}
