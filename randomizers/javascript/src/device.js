/** Common base of devices: enrollment, reports in order of epochs, and state. */

import { ByteGenerator, systemRandom } from './byte_generator.js';
import { DeviceError, check, perStream, shown } from './laws.js';

/** @typedef {import('./byte_generator.js').ReadBytes} ReadBytes */
/** @typedef {{ epoch: number, arrays: Record<string, { dtype: string, shape: number[], data: string }> }} DeviceState */
/** @typedef {Uint8Array | Uint16Array | Uint32Array | BigUint64Array} Words */

/** Array types by numpy's dtype. */
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
 * @property {keyof TYPES} dtype
 * @property {number} [length] - second dimension, if any
 * @property {number | bigint} [least] - minimum and maximum of its values
 * @property {number | bigint} [most]
 */

/** @param {number} most */
export const narrowest = (most) => (most < 256 ? '|u1' : most < 65536 ? '<u2' : '<u4');

/** Return the type of words below a bound. @param {number | bigint} bound */
export const wordType = (bound) =>
  bound <= 256 ? Uint8Array : bound <= 65536 ? Uint16Array : bound <= 2 ** 32 ? Uint32Array : BigUint64Array;

/**
 * Return words of a type in ascending order.
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
    /** Last epoch reported, or 0. */
    this.epoch = 0;
    this.enrolled = false;
    /** @type {Record<string, any>} arrays of the state, by name */
    this.kept = {};
    /** Privacy loss of its reports, by its mechanism. */
    this.loss = perStream(Infinity, 1);
    /** Number of contributors to a window that the loss assumes; 0 if it assumes none. */
    this.assumedContributors = 0;
    /** Number of words of a message. */
    this.width = 1;
    /** @type {any} type of its words */
    this.wordType = Uint8Array;
  }

  /** Return a lower bound on delta at the stated epsilon, from the stated noise. */
  leastDelta() {
    return 0;
  }

  /** Number of bytes of a word. */
  get wordBytes() {
    return this.wordType.BYTES_PER_ELEMENT;
  }

  /**
   * Return the arrays of the state.
   *
   * @returns {Record<string, Field>}
   */
  fields() {
    return {};
  }

  /**
   * Draw the initial state, with everything that is drawn in advance.
   *
   * @param {ByteGenerator} random
   * @returns {Record<string, ArrayLike<any>>} by name of the array; others are zero
   */
  draw(random) {
    return {};
  }

  /**
   * Validate and normalize a value, without a change of state.
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
   * Return the words of a validated epoch and update the state.
   *
   * @param {number} epoch
   * @param {any} value
   * @param {ByteGenerator} random
   * @returns {Words}
   */
  words(epoch, value, random) {
    throw new DeviceError('an unknown device');
  }

  /**
   * Draw the initial state, once. Throw if the device is enrolled: another draw would cost privacy.
   *
   * @param {ReadBytes} [read]
   */
  enroll(read = systemRandom) {
    check(!this.enrolled, 'the device is already enrolled: drawing again would cost privacy again');
    const drawn = this.draw(new ByteGenerator(read));
    for (const [name, { dtype, length = 1 }] of Object.entries(this.fields())) {
      this.kept[name] = new TYPES[dtype](length);
      if (name in drawn) this.kept[name].set(drawn[name]);
    }
    this.enrolled = true;
  }

  /**
   * Return the words due at an epoch; a device is absent at epochs left out. Throw, with the state
   * unchanged, if epoch or value is invalid.
   *
   * @param {number} epoch - after the last one reported, at most the last of the horizon
   * @param {any} value - 0 or 1; an item from 1, 0 for none; or an array of items
   * @param {ReadBytes} [read]
   * @returns {Words} sorted; messages of several words one after another
   */
  report(epoch, value, read = systemRandom) {
    check(this.enrolled, 'the device is not enrolled: call enroll once, before reporting');
    check(
      Number.isSafeInteger(epoch) && epoch > this.epoch && epoch <= this.lastEpoch,
      `epoch ${shown(epoch)} is out of range; expected an epoch after the last one reported, ${this.epoch}, and ` +
        `at most ${this.lastEpoch}, the horizon`,
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
   * Return the complete state as JSON values, to store and keep secret; equal to Python's
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
   * Restore a state: drawing again would spend the privacy loss again. Throw if it is malformed.
   *
   * @param {any} state
   */
  restore(state) {
    check(!this.enrolled, 'the device is already enrolled: restore a new device');
    const epoch = state?.epoch;
    const known = Number.isSafeInteger(epoch) && epoch >= 0 && epoch <= this.lastEpoch;
    check(known, `not a state: epoch is ${shown(epoch)}; expected 0 to ${this.lastEpoch}`);
    const fields = this.fields();
    const named = Object.keys(fields).length ? fields : { population: { dtype: '<i8', least: 1n, most: 1n } };
    const given = state.arrays;
    check(
      given && typeof given === 'object' && `${Object.keys(given).sort()}` === `${Object.keys(named).sort()}`,
      `not a state of such a device: expected the arrays ${Object.keys(named).sort().join(', ')}`,
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
  check(littleEndian(), 'states are written on little-endian machines');
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
    `state array ${name} is invalid; expected ${dtype} of shape (${shape})`,
  );
  let text = '';
  try {
    text = atob(body.data);
  } catch {
    // Rejected by its size.
  }
  check(text.length === size, `state array ${name} has a wrong size; expected ${size} bytes in base64`);
  const array = new TYPES[dtype](Uint8Array.from(text, (byte) => byte.charCodeAt(0)).buffer);
  for (const value of array) {
    check(
      (least === undefined || value >= least) && (most === undefined || value <= most),
      `state array ${name} has the value ${value}; expected ${least} to ${most}. The state belongs to another law`,
    );
  }
  return array;
}
