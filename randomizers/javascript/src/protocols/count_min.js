/** Device of count_min, also for trees: an item raises one cell per row (`randomizers/count_min`). */

import { readCode } from '../cell_codes.js';
import { Device, sorted } from '../device.js';
import { dummiesOf, readNoise } from '../dummies.js';
import { check, checkApproximate, constants, oneOf, perEpoch, whole } from '../laws.js';
import { ofCells } from '../least_delta.js';
import { checkedSet } from './sets.js';

export class CountMin extends Device {
  /** @param {any} body */
  constructor(body) {
    const names = ['last_epoch', 'epsilon', 'delta', 'stream_epsilon', 'items', 'code', 'noise', 'calibration'];
    constants('count_min', body, names);
    checkApproximate(body);
    oneOf('calibration', body.calibration, ['exact', 'published']);
    check(body.stream_epsilon >= body.epsilon, `stream_epsilon is ${body.stream_epsilon}; expected at least ${body.epsilon}, the epsilon of an epoch`);
    super(whole('last_epoch', body.last_epoch, 1, Number.MAX_SAFE_INTEGER));
    this.loss = perEpoch(body.epsilon, body.delta);
    this.items = whole('items', body.items, 1, 1024);
    this.once = this.items > 1 && body.calibration === 'exact';
    this.code = readCode(body.code);
    this.noise = readNoise(body.noise);
    this.assumedContributors = this.noise.dummies === 'shuffle' ? 0 : this.noise.minimum;
    this.dummies = dummiesOf(this.noise, this.code.cells);
    this.messages = this.items * this.code.messages + (this.dummies?.mean ?? 0);
    this.wordType = Uint32Array;
  }

  leastDelta() {
    const { size, encode } = this.code;
    const items = Array.from({ length: Math.min(this.items, Math.max(1, Math.floor(size / 2))) }, (_, index) => index + 1);
    const last = new Set(items.flatMap((item) => encode(BigInt(size + 1 - item))));
    const first = new Set(items.flatMap((item) => encode(BigInt(item))).filter((cell) => !last.has(cell)));
    return ofCells(this.noise, first.size || 1, first.size || 1, this.loss.epsilon);
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
