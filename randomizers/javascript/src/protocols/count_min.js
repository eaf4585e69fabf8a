/** Count-Min and trees of cells: an item raises a cell in each row (`randomizers/count_min`). */

import { readCode } from '../cell_codes.js';
import { Device, sorted } from '../device.js';
import { dummiesOf, readNoise } from '../dummies.js';
import { check, checkApproximate, constants, oneOf, perEpoch, whole } from '../laws.js';
import { checkedSet } from './sets.js';

export class CountMin extends Device {
  /** @param {any} body */
  constructor(body) {
    const names = ['last_epoch', 'epsilon', 'delta', 'stream_epsilon', 'items', 'code', 'noise', 'calibration'];
    constants('count_min', body, names);
    checkApproximate(body);
    oneOf('calibration', body.calibration, ['exact', 'published']);
    check(body.stream_epsilon >= body.epsilon, `stream_epsilon is ${body.stream_epsilon}, less than that of an epoch`);
    super(whole('last_epoch', body.last_epoch, 1, Number.MAX_SAFE_INTEGER));
    this.loss = perEpoch(body.epsilon, body.delta);
    this.items = whole('items', body.items, 1, 1024);
    this.once = this.items > 1 && body.calibration === 'exact';
    this.code = readCode(body.code);
    this.dummies = dummiesOf(readNoise(body.noise), this.code.cells);
    this.messages = this.items * this.code.messages + (this.dummies?.mean ?? 0);
    this.wordType = Uint32Array;
  }

  /** @param {any} value */
  checked(value) {
    return checkedSet(value, this.items, this.code.size);
  }

  /**
   * @param {number} epoch
   * @param {bigint[]} items
   * @param {import('../byte_generator.js').ByteGenerator} random
   */
  words(epoch, items, random) {
    const { cells, encode } = this.code;
    const raised = items.flatMap(encode);
    const real = this.once ? [...new Set(raised)] : raised;
    const few = this.messages < cells;
    const dummies = few ? this.dummies?.draw(cells, random) : this.dummies?.ordered(cells, random);
    return sorted(Uint32Array, [...real, ...(dummies ?? [])]);
  }
}
