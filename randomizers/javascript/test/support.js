import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { parseJson } from '../src/index.js';

/** Return a source of the vectors' pseudorandom bytes for a label, which counts the bytes it returns. */
export function countedBytes(label) {
  let rest = new Uint8Array(0);
  let counter = 0n;
  const source = {
    taken: 0,
    read(count) {
      const pieces = [rest];
      let missing = count - rest.length;
      for (; missing > 0; missing -= 32) {
        const block = Buffer.alloc(8);
        block.writeBigUInt64LE(counter++);
        pieces.push(createHash('sha256').update(label).update(block).digest());
      }
      const held = new Uint8Array(Buffer.concat(pieces));
      rest = held.slice(count);
      source.taken += count;
      return held.slice(0, count);
    },
  };
  return source;
}

export const vectorsOf = (protocol) =>
  parseJson(readFileSync(new URL(`../vectors/${protocol}.json`, import.meta.url), 'utf8'));

/** A store in memory that outlives its pages; replacing the text yields to other tasks first. */
export class MemoryStore {
  revision = 0;
  text = null;

  async read() {
    return { revision: this.revision, text: this.text };
  }

  async replace(revision, text) {
    await null;
    if (revision !== this.revision) return false;
    this.revision += 1;
    this.text = text;
    return true;
  }
}
