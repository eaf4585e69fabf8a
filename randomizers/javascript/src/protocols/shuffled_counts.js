/** Continual counts, of Booleans and of items, with a trusted shuffler (`randomizers/shuffled_counts`). */

import { readCode } from '../cell_codes.js';
import { Device, narrowest, sorted, wordType } from '../device.js';
import { dummiesOf, poissonOf, readNoise } from '../dummies.js';
import { AffineHashes } from '../hashes.js';
import { check, checkApproximate, constants, oneOf, perStream, whole } from '../laws.js';
import { ofCells } from '../least_delta.js';
import { checkedItem } from './items.js';

/** @typedef {import('../byte_generator.js').ByteGenerator} ByteGenerator */

const MOST_CHANGES = 1 << 20;
const MOST_BOOST = 1 << 16;
/** Flags of the stored value: the device was absent since then, or is new. */
const ABSENT = 2;
const NEW = 4;
/** Time of the last report: the last epoch, an earlier epoch, or never. */
const KNOWN = 0;
const SILENT_SINCE = 1;
const NEVER = 2;

/** @param {any} body @param {string} name @param {string[]} others */
function readCommon(body, name, others) {
  constants(name, body, ['last_epoch', 'epsilon', 'delta', 'max_changes', 'boost', ...others]);
  checkApproximate(body);
  const maxChanges = whole('max_changes', body.max_changes, 0, MOST_CHANGES);
  const boost = whole('boost', body.boost, 0, MOST_BOOST);
  check((boost === 0) === (maxChanges === 0), `boost is ${boost} and max_changes is ${maxChanges}; expected both to be 0 or both positive`);
  // JavaScript's clock does not reach epochs beyond this limit.
  const lastEpoch = Math.min(Number(body.last_epoch), Number.MAX_SAFE_INTEGER);
  return { maxChanges, boost, lastEpoch: whole('last_epoch', lastEpoch, 1, Number.MAX_SAFE_INTEGER) };
}

/** @param {{ dummies: string, minimum: number }} noise */
const assumedBy = ({ dummies, minimum }) => (dummies === 'shuffle' ? 0 : minimum);

export class ShuffledCounts extends Device {
  /** @param {any} body */
  constructor(body) {
    const { maxChanges, boost, lastEpoch } = readCommon(body, 'shuffled_counts', ['calibration', 'noise']);
    oneOf('calibration', body.calibration, ['rigorous', 'exact']);
    check((boost === 0) === (body.calibration === 'exact'), `calibration is ${body.calibration}; expected 'exact' for boost 0, else 'rigorous', but boost is ${boost}`);
    super(lastEpoch);
    this.loss = perStream(body.epsilon, body.delta);
    this.maxChanges = maxChanges;
    this.boost = boost;
    this.noise = readNoise(body.noise);
    this.assumedContributors = assumedBy(this.noise);
    this.dummies = dummiesOf(this.noise, 1);
  }

  leastDelta() {
    const { boost, maxChanges, lastEpoch, loss, noise } = this;
    const turns = Math.floor((Math.min(maxChanges, lastEpoch) + 1) / 2);
    const tests = [[lastEpoch, lastEpoch + boost]];
    if (turns) tests.push([turns, (2 * turns - 1) * boost + turns]);
    return Math.max(...tests.map(([cells, shift]) => ofCells(noise, cells, shift, loss.epsilon)));
  }

  /** @returns {Record<string, import('../device.js').Field>} */
  fields() {
    return { value: { dtype: '|u1' }, changes: { dtype: narrowest(this.maxChanges + 2) } };
  }

  /** @param {ByteGenerator} random @returns {Record<string, any>} */
  draw(random) {
    return { value: [NEW] };
  }

  /**
   * @param {number} epoch
   * @param {number} now
   * @param {ByteGenerator} random
   */
  words(epoch, now, random) {
    let messages = this.boost + now;
    if (this.boost) messages += this.boost * this.#boosted(epoch, now);
    if (this.dummies) messages += this.dummies.draw(1, random).length;
    return new Uint8Array(messages);
  }

  /** Return 1 for a boosted change to 1, -1 for a boosted change to 0, else 0. @param {number} epoch @param {number} now */
  #boosted(epoch, now) {
    const { value, changes } = this.kept;
    let before = value[0];
    if (epoch > this.epoch + 1 && before < ABSENT) before |= ABSENT;
    if (before === NEW) before = 0;
    const changed = (before & 1) !== now;
    const boosted = changed && before < ABSENT && changes[0] < this.maxChanges;
    changes[0] = Math.min(changes[0] + Number(changed), this.maxChanges + 1);
    value[0] = now;
    return boosted ? 2 * now - 1 : 0;
  }
}

/** Device for items, or for numbers in a tree. */
export class ShuffledItemCounts extends Device {
  /** @param {any} body */
  constructor(body) {
    const tree = 'levels' in body;
    const own = tree ? ['levels'] : ['size', 'buckets'];
    const { maxChanges, boost, lastEpoch } = readCommon(
      body,
      tree ? 'shuffled_level_counts' : 'shuffled_item_counts',
      ['held', 'left', ...own],
    );
    const noises = [body.held, ...(body.left === null ? [] : [body.left])].map(readNoise);
    check((boost === 0) === (noises.length === 1), `boost is ${boost}; expected noise 'left' with a boost, and null without`);
    check(
      noises.every(({ minimum }) => minimum === noises[0].minimum),
      "the noises have different minimums; expected the minimum of 'held'",
    );
    super(lastEpoch);
    this.loss = perStream(body.epsilon, body.delta);
    this.maxChanges = maxChanges;
    this.boost = boost;
    this.noise = noises[0];
    this.assumedContributors = assumedBy(this.noise);
    /** Number of cells that the first item raises and the last item does not. */
    this.apart = 1;
    let noisyCells = 0;
    if (tree) {
      const code = readCode(body.levels, ['levels']);
      // Messages about the root are sent only without a boost.
      const without = Number(boost > 0);
      this.size = code.size;
      this.wordCount = BigInt(code.cells - without);
      noisyCells = code.cells - without;
      const [first, last] = [1n, BigInt(code.size)].map(code.encode);
      this.apart = first.filter((cell) => !last.includes(cell)).length || 1;
      /** @type {(items: number[], random: ByteGenerator) => bigint[]} */
      this.encode = (items) =>
        items.flatMap((item) => code.encode(BigInt(item)).slice(without).map((cell) => BigInt(cell - without)));
    } else {
      this.size = whole('size', body.size, 1, 1 << 20);
      const hashes = AffineHashes.forItems(body.buckets, this.size);
      check(!boost || hashes.digits === 1, `boost is ${boost}; expected 0 for items that share buckets`);
      this.wordCount = hashes.words;
      noisyCells = body.buckets;
      this.encode = (items, random) => hashes.draw(items, random);
    }
    this.dummies = noises.map((noise) => poissonOf(noise, noisyCells));
    this.wordType = wordType(this.wordCount * BigInt(noises.length));
  }

  leastDelta() {
    const { apart, boost, maxChanges, lastEpoch, loss, noise } = this;
    const turns = Math.floor((Math.min(maxChanges, lastEpoch) + 1) / 2);
    const tests = [[lastEpoch, lastEpoch + boost]];
    if (turns) tests.push([turns, turns * (boost + 1)]);
    return Math.max(...tests.map(([cells, shift]) => ofCells(noise, cells * apart, shift * apart, loss.epsilon)));
  }

  /** @returns {Record<string, import('../device.js').Field>} */
  fields() {
    return {
      item: { dtype: '<u4' },
      seen: { dtype: '|u1' },
      changes: { dtype: narrowest(this.maxChanges + 2) },
    };
  }

  /** @param {ByteGenerator} random @returns {Record<string, any>} */
  draw(random) {
    return { seen: [NEVER] };
  }

  /** @param {any} value */
  checked(value) {
    return checkedItem(value, this.size);
  }

  /**
   * @param {number} epoch
   * @param {number} item
   * @param {ByteGenerator} random
   */
  words(epoch, item, random) {
    /** @type {number[][]} */
    const [held, left] = [item ? [item] : [], []];
    if (this.boost && this.#boosted(epoch, item)) {
      const before = this.kept.item[0];
      if (item) held.push(...new Array(this.boost).fill(item));
      if (before) left.push(...new Array(this.boost).fill(before));
    }
    if (this.boost) {
      this.kept.item[0] = item;
      this.kept.seen[0] = KNOWN;
    }
    const words = [held, left].flatMap((items, kind) =>
      this.encode(items, random).map((word) => word + BigInt(kind) * this.wordCount),
    );
    this.dummies.forEach((dummies, kind) => {
      if (!dummies) return;
      const first = BigInt(kind) * this.wordCount;
      // A Poisson number of dummies, uniform over the messages of a kind.
      const drawn = random.integers(this.wordCount, dummies.total(random));
      for (const word of drawn) words.push(BigInt(word) + first);
    });
    return sorted(this.wordType, words);
  }

  /** Return whether a change is boosted. @param {number} epoch @param {number} item */
  #boosted(epoch, item) {
    const { item: before, seen, changes } = this.kept;
    if (epoch > this.epoch + 1 && seen[0] === KNOWN) seen[0] = SILENT_SINCE;
    const changed = before[0] !== item;
    const boosted = changed && seen[0] !== SILENT_SINCE && changes[0] < this.maxChanges;
    changes[0] = Math.min(changes[0] + Number(changed), this.maxChanges + 1);
    return boosted;
  }
}
