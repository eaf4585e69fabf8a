/** Counts by a hash drawn for every message (`randomizers/balls_into_bins`). */

import { Device, sorted, wordType } from '../device.js';
import { poissonOf, readNoise } from '../dummies.js';
import { AffineHashes } from '../hashes.js';
import { checkApproximate, constants, perEpoch, whole } from '../laws.js';
import { checkedSet } from './sets.js';

export class BallsIntoBins extends Device {
  /** @param {any} body */
  constructor(body) {
    const names = ['last_epoch', 'size', 'items', 'buckets', 'noise', 'epsilon', 'delta', 'stream_epsilon'];
    constants('balls_into_bins', body, names);
    checkApproximate(body);
    super(whole('last_epoch', body.last_epoch, 1, Number.MAX_SAFE_INTEGER));
    this.loss = perEpoch(body.epsilon, body.delta);
    this.size = whole('size', body.size, 1, 1 << 24);
    this.items = whole('items', body.items, 1, this.size);
    this.hashes = AffineHashes.forItems(body.buckets, this.size);
    this.dummies = poissonOf(readNoise(body.noise), body.buckets);
    this.wordType = wordType(this.hashes.words);
  }

  /** @param {any} value */
  checked(value) {
    return checkedSet(value, this.items, this.size);
  }

  /**
   * @param {number} epoch
   * @param {bigint[]} items
   * @param {import('../byte_generator.js').ByteGenerator} random
   */
  words(epoch, items, random) {
    const dummies = random.integers(this.hashes.words, this.dummies?.total(random) ?? 0);
    return sorted(this.wordType, [...dummies, ...this.hashes.draw(items.map(Number), random)]);
  }
}
