/** One message per user: randomized response or RAPPOR (`randomizers/single_message`). */

import { Categories } from '../draws.js';
import { Device, sorted, wordType } from '../device.js';
import { check, checkApproximate, constants, oneOf, perEpoch, whole } from '../laws.js';
import { ofCoins } from '../least_delta.js';
import { readComposed } from './future_rand.js';
import { checkedSet } from './sets.js';

const MOST_BITS = 4096;

export class SingleMessage extends Device {
  /** @param {any} body */
  constructor(body) {
    const names = ['items', 'slots', 'response', 'minimum', 'last_epoch', 'odds', 'epsilon', 'delta', 'stream_epsilon'];
    constants('single_message', body, names);
    checkApproximate(body);
    super(whole('last_epoch', body.last_epoch, 1, Number.MAX_SAFE_INTEGER));
    this.loss = perEpoch(body.epsilon, body.delta);
    this.assumedContributors = whole('minimum', body.minimum, 1, Number.MAX_SAFE_INTEGER);
    this.items = whole('items', body.items, 1, 1 << 20);
    this.slots = whole('slots', body.slots, 1, this.items);
    oneOf('response', body.response, ['randomized_response', 'rappor']);
    const { k, weights } = readComposed(body.odds);
    check(k === 1 && weights[0] >= weights[1], `odds are ${weights}; expected two weights, the larger first`);
    this.bits = body.response === 'rappor';
    check(this.bits || this.slots === 1, `slots is ${this.slots}; expected 1 for response 'randomized_response'`);
    check(!this.bits || this.items <= MOST_BITS, `items is ${this.items}; expected at most ${MOST_BITS} for response 'rappor'`);
    const [own, other] = weights;
    /** Probabilities that a message contains an item that its user has, or does not have. */
    this.probabilities = weights.map((weight) => Number(weight) / Number(own + other * BigInt(this.bits ? 1 : this.items)));
    this.false = new Categories(this.bits ? weights : [own, BigInt(this.items) * other]);
    this.width = this.bits ? Math.ceil(this.items / 8) : 1;
    this.wordType = this.bits ? Uint8Array : wordType(this.items + 1);
  }

  leastDelta() {
    const [own, other] = this.probabilities;
    const others = this.assumedContributors - 1;
    return Math.max(...[other, own].map((each) => ofCoins(others, each, 1, this.loss.epsilon, own, other)));
  }

  /** @param {any} value */
  checked(value) {
    return checkedSet(value, this.slots, this.items);
  }

  /**
   * @param {number} epoch
   * @param {bigint[]} held
   * @param {import('../byte_generator.js').ByteGenerator} random
   */
  words(epoch, held, random) {
    /** @type {number[]} */
    const items = held.map(Number);
    if (this.bits) {
      const bits = this.false.draw(this.items, random);
      for (const item of items) bits[item - 1] = 1 - bits[item - 1];
      const words = new Uint8Array(this.width);
      bits.forEach((bit, index) => {
        words[index >> 3] |= bit << (index & 7);
      });
      return words;
    }
    const [own = 0] = items;
    const [lies] = this.false.draw(1, random);
    const [drawn] = random.integers(this.items, 1);
    return sorted(this.wordType, [lies ? drawn + Number(drawn >= own) : own]);
  }
}
