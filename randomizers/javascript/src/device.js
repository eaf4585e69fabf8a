/** Common base class of devices: enrollment, reports in the order of epochs, and state. */

import { ByteGenerator, systemRandom } from './byte_generator.js';
import { DeviceError, check, perStream, shown } from './laws.js';

/** @typedef {import('./byte_generator.js').ReadBytes} ReadBytes */
/** @typedef {{ epoch: number, arrays: Record<string, { dtype: string, shape: number[], data: string }> }} DeviceState */
/** @typedef {Uint8Array | Uint16Array | Uint32Array | BigUint64Array} Words */

/** Array types by numpy dtype. */
const TYPES = {
  '|u1': Uint8Array,
  '|i1': Int8Array,
  '<u2': Uint16Array,
  '<u4': Uint32Array,
  '<i8': BigInt64Array,
  '<f8': Float64Array,
};

/**
 * An array in the state of a device.
 *
 * @typedef {object} Field
 * @property {keyof typeof TYPES} dtype
 * @property {number} [length] - length of the second dimension, if any
 * @property {number | bigint} [least] - `least` and `most` bound the values
 * @property {number | bigint} [most]
 */

/** @param {number} most */
export const narrowest = (most) => (most < 256 ? '|u1' : most < 65536 ? '<u2' : '<u4');

/** Return the array type for integers below a bound. @param {number | bigint} bound */
export const wordType = (bound) =>
  bound <= 256 ? Uint8Array : bound <= 65536 ? Uint16Array : bound <= 2 ** 32 ? Uint32Array : BigUint64Array;

/**
 * Return integers as an array of a type, in ascending order.
 *
 * @param {any} type
 * @param {ArrayLike<number | bigint>} values
 * @returns {Words}
 */
export function sorted(type, values) {
  const convert = type === BigUint64Array ? BigInt : Number;
  return type.from(values, convert).sort();
}

/** @param {number} order */
const littleEndian = (order = 1) => new Uint8Array(new Uint16Array([order]).buffer)[0] === 1;

/** A device of one horizon. Subclasses define its state, its draws and its reports. */
export class Device {
  /** @param {number} lastEpoch */
  constructor(lastEpoch) {
    this.lastEpoch = lastEpoch;
    /** Last reported epoch, or 0. */
    this.epoch = 0;
    this.enrolled = false;
    /** @type {Record<string, any>} arrays of the state, by name */
    this.kept = {};
    /** Privacy loss of the reports, computed from the mechanism. */
    this.loss = perStream(Infinity, 1);
    /** Number of contributors to a window that the loss assumes; 0 if it assumes none. */
    this.assumedContributors = 0;
    /** @type {number | null} number of epochs in a horizon at which the device answers; null: at all */
    this.answers = null;
    /** @type {{ epochs: number, epsilon: number } | null} loss for any `epochs` consecutive epochs of a recurring job */
    this.rolling = null;
    /** Fields of the state that a device keeps for all horizons of a recurring job. */
    this.lasting = /** @type {string[]} */ ([]);
    /** Number of integers that encode a message. */
    this.width = 1;
    /** @type {any} array type of these integers */
    this.wordType = Uint8Array;
  }

  /** Return a lower bound on delta at the declared epsilon, computed from the declared noise. */
  leastDelta() {
    return 0;
  }

  /** Number of bytes of each integer in a message. */
  get wordBytes() {
    return this.wordType.BYTES_PER_ELEMENT;
  }

  /**
   * Return the fields of the state, by name.
   *
   * @returns {Record<string, Field>}
   */
  fields() {
    return {};
  }

  /**
   * Draw the initial state, including everything that is drawn in advance.
   *
   * @param {ByteGenerator} random
   * @returns {Record<string, ArrayLike<any>>} initial values by field name; other fields are zero
   */
  draw(random) {
    return {};
  }

  /**
   * Validate and normalize a value without changing the state.
   *
   * @param {any} value
   * @returns {any}
   */
  checked(value) {
    const number = value === true ? 1 : value === false ? 0 : value;
    check(number === 0 || number === 1, `value is ${shown(value)}; expected 0 or 1`);
    return number;
  }

  /**
   * Return the report of a validated epoch, as integers, and update the state.
   *
   * @param {number} epoch
   * @param {any} value
   * @param {ByteGenerator} random
   * @returns {Words}
   */
  words(epoch, value, random) {
    throw new DeviceError('this device has no randomizer: use createDevice');
  }

  /**
   * Draw the initial state. Throw if the device is enrolled, since another draw would cost privacy.
   *
   * @param {ReadBytes} [read]
   * @param {{ group?: number }} [given] - number of the device's public group, from 0, in jobs with groups
   */
  enroll(read = systemRandom, given = {}) {
    check(!this.enrolled, 'the device is already enrolled: enrolling again would cost privacy again');
    /** @type {Record<string, ArrayLike<any>>} */
    const drawn = this.draw(new ByteGenerator(read));
    if (given.group !== undefined) drawn.group = [given.group];
    for (const [name, { dtype, length = 1 }] of Object.entries(this.fields())) {
      this.kept[name] = new TYPES[dtype](length);
      if (name in drawn) this.kept[name].set(drawn[name]);
    }
    this.enrolled = true;
  }

  /**
   * Draw the state of another horizon, but keep the `lasting` fields of an earlier state.
   *
   * @param {DeviceState} state - result of `state()` in an earlier horizon
   * @param {ReadBytes} [read]
   * @param {{ group?: number }} [given] - as in `enroll`; by default the group is kept
   */
  renew(state, read = systemRandom, given = {}) {
    this.restore(state);
    const earlier = this.kept;
    Object.assign(this, { epoch: 0, enrolled: false, kept: {} });
    this.enroll(read, given);
    for (const name of this.lasting) if (!(name in given)) this.kept[name] = earlier[name];
  }

  /**
   * Return the messages due at an epoch; a device is absent at epochs that are skipped. If epoch or
   * value is invalid, throw without changing the state.
   *
   * @param {number} epoch - an epoch after the last reported one, within the horizon
   * @param {any} value - 0 or 1; an item from 1 on, or 0 for none; or an array of items
   * @param {ReadBytes} [read]
   * @returns {Words} messages in ascending order, each of `width` integers
   */
  report(epoch, value, read = systemRandom) {
    check(this.enrolled, 'the device is not enrolled: call enroll once before reporting');
    check(
      Number.isSafeInteger(epoch) && epoch > this.epoch && epoch <= this.lastEpoch,
      `epoch ${shown(epoch)} is out of range; expected an epoch after ${this.epoch} (the last one reported) and ` +
        `within the horizon (at most ${this.lastEpoch})`,
    );
    const given = this.checked(value);
    const before = Object.fromEntries(Object.entries(this.kept).map(([name, array]) => [name, array.slice()]));
    try {
      const words = this.words(epoch, given, new ByteGenerator(read));
      this.epoch = epoch;
      return words;
    } catch (error) {
      this.kept = before;
      throw error;
    }
  }

  /**
   * Return the complete state as JSON values, to store and keep secret; the same as Python's
   * `OneDevice.state`.
   *
   * @returns {DeviceState}
   */
  state() {
    const fields = Object.entries(this.fields());
    const arrays = fields.map(([name, { dtype, length }]) => {
      const array = this.enrolled ? this.kept[name] : new TYPES[dtype](0);
      const first = this.enrolled ? 1 : 0;
      return [name, encoded(dtype, length === undefined ? [first] : [first, length], array)];
    });
    if (!fields.length) {
      arrays.push(['population', encoded('<i8', [1], BigInt64Array.of(this.enrolled ? 1n : 0n))]);
    }
    return { epoch: this.epoch, arrays: Object.fromEntries(arrays) };
  }

  /**
   * Restore a stored state instead of drawing, which would cost privacy again. Throw if it is invalid.
   *
   * @param {any} state
   */
  restore(state) {
    check(!this.enrolled, 'the device is already enrolled: restore a new device');
    const epoch = state?.epoch;
    const known = Number.isSafeInteger(epoch) && epoch >= 0 && epoch <= this.lastEpoch;
    check(known, `the epoch of the state is ${shown(epoch)}; expected 0 to ${this.lastEpoch}`);
    const fields = this.fields();
    const named = Object.keys(fields).length ? fields : { population: { dtype: '<i8', least: 1n, most: 1n } };
    const given = state.arrays;
    check(
      given && typeof given === 'object' && `${Object.keys(given).sort()}` === `${Object.keys(named).sort()}`,
      `the state belongs to another kind of device; expected the arrays ${Object.keys(named).sort().join(', ')}`,
    );
    const kept = Object.fromEntries(
      Object.entries(named).map(([name, field]) => [name, decoded(name, /** @type {Field} */ (field), given[name])]),
    );
    this.checkKept(kept);
    this.kept = Object.keys(fields).length ? kept : {};
    this.epoch = epoch;
    this.enrolled = true;
  }

  /**
   * Throw if arrays contradict the mechanism or each other.
   *
   * @param {Record<string, any>} kept
   */
  checkKept(kept) {}
}

/**
 * @param {string} dtype
 * @param {number[]} shape
 * @param {any} array
 */
function encoded(dtype, shape, array) {
  check(littleEndian(), 'this machine is big-endian; states require a little-endian machine');
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  return { dtype, shape, data: btoa(String.fromCharCode(...bytes)) };
}

/**
 * @param {string} name
 * @param {Field} field
 * @param {any} body
 */
function decoded(name, { dtype, length, least, most }, body) {
  const shape = length === undefined ? [1] : [1, length];
  const size = shape.reduce((all, each) => all * each) * TYPES[dtype].BYTES_PER_ELEMENT;
  check(
    body?.dtype === dtype && `${body.shape}` === `${shape}` && typeof body.data === 'string',
    `state array '${name}' has another type; expected ${dtype} of shape (${shape})`,
  );
  let text = '';
  try {
    text = atob(body.data);
  } catch {
    // Invalid base64 is rejected because of its size.
  }
  check(text.length === size, `state array '${name}' has ${text.length} bytes; expected ${size} bytes in base64`);
  const array = new TYPES[dtype](Uint8Array.from(text, (byte) => byte.charCodeAt(0)).buffer);
  for (const value of array) {
    check(
      (least === undefined || value >= least) && (most === undefined || value <= most),
      `state array '${name}' has the value ${value}; expected ${least} to ${most}. The state belongs to another job`,
    );
  }
  return array;
}
