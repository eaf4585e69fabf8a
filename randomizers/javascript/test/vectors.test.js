import assert from 'node:assert/strict';
import test from 'node:test';
import { ByteGenerator } from '../src/byte_generator.js';
import { Categories } from '../src/draws.js';
import { PROTOCOLS, createDevice, restoreDevice } from '../src/index.js';
import { dummiesOf } from '../src/dummies.js';
import { tables } from '../src/lattice.js';
import { distributionFunction } from '../src/normal.js';
import { poissonTable } from '../src/noise_tables.js';
import { countedBytes, vectorsOf } from './support.js';

const plain = (words) => Array.from(words, (word) => (Number.isSafeInteger(Number(word)) ? Number(word) : word));

for (const protocol of PROTOCOLS) {
  const { cases } = vectorsOf(protocol);
  cases.forEach(({ law, loss, runs }, number) => {
    test(`${protocol} ${number}: the loss is the same as in Python`, () => {
      const own = createDevice(protocol, law).loss;
      assert.ok(Math.abs(own.epsilon - loss.epsilon) <= 1e-9 * loss.epsilon, `${own.epsilon}`);
      assert.deepEqual([own.delta, own.unit], [loss.delta, loss.unit]);
    });

    test(`${protocol} ${number}: draws and states are the same as in Python`, () => {
      for (const { label, group, enrolled, epochs, halfway, state } of runs) {
        const source = countedBytes(label);
        const device = createDevice(protocol, law);
        device.enroll(source.read, { group });
        assert.deepEqual([source.taken, device.state()], enrolled, label);
        epochs.forEach(([epoch, value, words, bytes], index) => {
          if (index === Math.floor(epochs.length / 2)) assert.deepEqual(device.state(), halfway, label);
          const before = source.taken;
          const sent = device.report(epoch, value, source.read);
          assert.deepEqual(plain(sent), words, `${label}, epoch ${epoch}`);
          assert.equal(sent.length % device.width, 0);
          assert.equal(source.taken - before, bytes, `${label}, epoch ${epoch}`);
        });
        assert.deepEqual(device.state(), state, label);
      }
    });

    test(`${protocol} ${number}: a device resumes from its own state and from Python's`, () => {
      for (const { label, enrolled, epochs, halfway, state } of runs) {
        const source = countedBytes(label);
        source.read(enrolled[0]);
        let device = restoreDevice(protocol, law, enrolled[1]);
        epochs.forEach(([epoch, value, words], index) => {
          if (index === Math.floor(epochs.length / 2)) assert.deepEqual(device.state(), halfway);
          device = restoreDevice(protocol, law, JSON.parse(JSON.stringify(device.state())));
          assert.deepEqual(plain(device.report(epoch, value, source.read)), words);
        });
        assert.deepEqual(device.state(), state);
      }
    });
  });
}

test('rare draws match those of Python', () => {
  for (const { masses, mean, rate, words, drawn, taken } of vectorsOf('rare_draws').draws) {
    const view = new DataView(new ArrayBuffer(8 * words.length));
    words.forEach((word, index) => view.setBigUint64(8 * index, BigInt(word), true));
    let at = 0;
    const random = new ByteGenerator((count) => new Uint8Array(view.buffer.slice(at, (at += count))));
    const dummies = rate && dummiesOf({ dummies: 'poisson', mean: rate, minimum: 1, shape: null }, 1);
    const law = masses ? new Categories(masses.map(BigInt)) : poissonTable(mean ?? rate);
    const found = dummies ? dummies.draw(1, random).length : law.draw(1, random)[0];
    assert.deepEqual([found, at], [drawn, 8 * taken], `${masses ?? mean ?? rate}: ${words}`);
  }
});

test('weights and distribution function of value_stream are bit-identical to those of Python', () => {
  const { weights, normal } = vectorsOf('rare_draws');
  let total = 0n;
  assert.deepEqual(tables().sums, weights.map((weight) => (total += BigInt(weight))));
  for (const [point, value] of normal) assert.equal(distributionFunction(point), value, `at ${point}`);
});
