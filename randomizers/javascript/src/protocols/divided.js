/**
 * Base class of devices that permanently belong to one part of a population, with a device of its own
 * kind in each part (`randomizers/value_stream/divided.py`).
 */

import { Device } from '../device.js';
import { Categories } from '../draws.js';
import { check, perStream } from '../laws.js';

/** @typedef {import('../byte_generator.js').ByteGenerator} ByteGenerator */
/** @typedef {import('../device.js').Field} Field */

/** Types of unsigned integers, which can differ between parts. */
const WIDTHS = ['|u1', '<u2', '<u4'];

export class DividedDevice extends Device {
  /**
   * @param {string} name - field with the part of the device, numbered from 1
   * @param {Device[]} parts
   * @param {bigint[]} weights - of the parts when a device draws its own
   */
  constructor(name, parts, weights) {
    const [{ lastEpoch }] = parts;
    check(parts.every((part) => part.lastEpoch === lastEpoch), 'parts have different horizons; expected the same last epoch');
    super(lastEpoch);
    this.partName = name;
    this.parts = parts;
    this.weights = weights;
    const losses = parts.filter((_, index) => weights[index] > 0n).map(({ loss }) => loss);
    this.loss = perStream(Math.max(...losses.map(({ epsilon }) => epsilon)), Math.max(...losses.map(({ delta }) => delta)));
  }

  leastDelta() {
    return Math.max(...this.parts.map((part) => part.leastDelta()));
  }

  /** Return the fields of all parts, as wide as the widest part needs. @returns {Record<string, Field>} */
  fields() {
    /** @type {Record<string, Field>} */
    const fields = { [this.partName]: { dtype: '|u1', least: 1, most: this.parts.length } };
    for (const part of this.parts) {
      for (const [name, { dtype, length }] of Object.entries(part.fields())) {
        const other = fields[name]?.dtype ?? dtype;
        fields[name] = { dtype: WIDTHS.indexOf(dtype) > WIDTHS.indexOf(other) ? dtype : other, length };
      }
    }
    return fields;
  }

  /** @param {ByteGenerator} random @returns {Record<string, any>} */
  draw(random) {
    const [index] = new Categories(this.weights).draw(1, random);
    return { ...this.parts[index].draw(random), [this.partName]: [index + 1] };
  }

  /** @param {Record<string, any>} kept */
  checkKept(kept) {
    for (const [name, { least, most }] of Object.entries(this.parts[kept[this.partName][0] - 1].fields())) {
      const [value] = kept[name];
      check(
        (least === undefined || value >= least) && (most === undefined || value <= most),
        `state array '${name}' has the value ${value}; expected ${least} to ${most}. The state belongs to another job`,
      );
    }
  }

  /**
   * Return the messages of the device's own part, which changes the arrays of this device in place.
   *
   * @param {number} epoch
   * @param {any} value
   * @param {ByteGenerator} random
   * @returns {any}
   */
  ofPart(epoch, value, random) {
    const part = this.parts[this.kept[this.partName][0] - 1];
    part.kept = this.kept;
    part.epoch = this.epoch;
    return part.words(epoch, value, random);
  }
}
