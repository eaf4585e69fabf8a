import assert from 'node:assert/strict';
import test from 'node:test';
import { DeviceError, PROTOCOLS, createDevice, restoreDevice } from '../src/index.js';
import { vectorsOf } from './support.js';

const WRONG = [null, undefined, 'x', '', -1, 0, 1.5, NaN, Infinity, 1e300, true, [], [[]], {}, [null], 1n << 70n];

/** Yield all variants of a value that differ in one place. */
function* mutations(value) {
  yield* WRONG;
  if (Array.isArray(value)) {
    yield [...value, ...value];
    yield value.slice(1);
    for (const [index, each] of value.slice(0, 3).entries()) {
      for (const wrong of mutations(each)) yield value.with?.(index, wrong) ?? Object.assign([...value], { [index]: wrong });
    }
  } else if (value !== null && typeof value === 'object') {
    yield { ...value, more: 1 };
    for (const key of Object.keys(value)) {
      const { [key]: _, ...without } = value;
      yield without;
      for (const wrong of mutations(value[key])) yield { ...value, [key]: wrong };
    }
  }
}

/** Return the message of the `DeviceError` that a call throws, or null if it does not throw. */
function rejection(call) {
  try {
    call();
  } catch (error) {
    assert.ok(error instanceof DeviceError, error.stack);
    assert.match(error.message, /^[\w"-].{8,250}$/s, error.message);
    return error.message;
  }
  return null;
}

for (const protocol of PROTOCOLS) {
  const { cases } = vectorsOf(protocol);
  test(`${protocol}: invalid mechanisms are rejected with a readable message`, () => {
    let [rejected, read] = [0, 0];
    for (const { law } of cases) {
      for (const wrong of mutations(law)) {
        if (rejection(() => createDevice(protocol, wrong)) === null) read++;
        else rejected++;
      }
    }
    // Some changed numbers are still valid.
    assert.ok(rejected > 8 * read, `${rejected} rejected, ${read} read`);
  });

  test(`${protocol}: invalid states and values are rejected with a readable message`, () => {
    for (const { law, runs } of cases) {
      const [[epoch, value]] = runs[0].epochs;
      for (const wrong of mutations(runs[0].state)) {
        const why = rejection(() => restoreDevice(protocol, law, wrong));
        if (why === null) assert.equal(typeof wrong.epoch, 'number');
      }
      assert.match(rejection(() => createDevice(protocol, law).report(epoch, value)), /not enrolled: call enroll once/);
      const device = restoreDevice(protocol, law, runs[0].enrolled[1]);
      assert.match(rejection(() => device.enroll()), /would cost privacy again/);
      assert.match(rejection(() => device.restore(runs[0].state)), /already enrolled: restore a new device/);
      const fits = Array.isArray(value) ? [0, true, 'x', null, {}, [0.5], ['1'], [-1], [1e17], [null]] : [[], [1], 'x', null, {}, 0.5, -1, 1e17, 1n];
      for (const wrong of fits) {
        assert.match(rejection(() => device.report(epoch, wrong)) ?? 'taken', /; expected (0|1|a list|at most)/);
      }
      for (const wrong of [0, -1, 1.5, '1', null, device.lastEpoch + 1, NaN]) {
        assert.match(rejection(() => device.report(wrong, value)) ?? 'taken', /expected an epoch after \d+ \(the last one/);
      }
      assert.deepEqual(device.state(), runs[0].enrolled[1]);
      device.report(epoch, value);
      assert.match(rejection(() => device.report(epoch, value)) ?? 'taken', /expected an epoch after \d+ \(the last one/);
    }
  });
}

test('protocols without a device implementation are rejected', () => {
  for (const name of ['bun', '', null, 3, '__proto__', 'toString', {}]) {
    assert.match(rejection(() => createDevice(name, {})), /does not support single devices/);
  }
});

test('a mechanism whose loss exceeds its epsilon is rejected', () => {
  const [{ law }] = vectorsOf('future_rand').cases;
  assert.match(rejection(() => createDevice('future_rand', { ...law, epsilon: law.epsilon * 0.9 })), /loss is .*; expected at most epsilon/);
  const [[, heavy], ...others] = law.laws[0].weights;
  const sharper = { weights: [[1, String(3n * BigInt(heavy))], ...others] };
  assert.match(rejection(() => createDevice('future_rand', { ...law, laws: [sharper, ...law.laws.slice(1)] })), /loss is .*; expected at most epsilon/);
  const [{ law: stream }] = vectorsOf('value_stream').cases;
  for (const change of [{ epsilon: stream.epsilon * 0.9 }, { noise: stream.noise / 2n }, { noise: 1 }]) {
    assert.match(rejection(() => createDevice('value_stream', { ...stream, ...change })), /loss is .*; expected at most epsilon/);
  }
});

test('the loss of range_values is the largest loss of any level with positive weight', () => {
  const [{ law }] = vectorsOf('range_values').cases;
  const [{ booleans }] = law.levels;
  const levels = law.levels.map((level, index) => {
    const epsilon = level.booleans.epsilon + Number(index === 2);
    return { ...level, booleans: { ...level.booleans, epsilon } };
  });
  assert.equal(createDevice('range_values', { ...law, levels }).loss.epsilon, levels[2].booleans.epsilon);
  const weights = law.level_weights.map((weight, index) => (index === 2 ? 0 : weight));
  assert.equal(createDevice('range_values', { ...law, levels, level_weights: weights }).loss.epsilon, booleans.epsilon);
});

test('a boost is rejected if items share buckets', () => {
  const { law } = vectorsOf('shuffled_counts').cases.find((each) => each.law.boost && each.law.buckets);
  assert.match(rejection(() => createDevice('shuffled_counts', { ...law, buckets: 3 })), /items that share buckets/);
});

test('a mechanism is rejected if JSON.parse, which loses digits, has read it', () => {
  const [{ law }] = vectorsOf('value_stream').cases;
  assert.match(rejection(() => createDevice('value_stream', { ...law, noise: Number(law.noise) })), /parseJson/);
});

test('contradictory cell codes are rejected', () => {
  const [{ law }] = vectorsOf('count_min').cases;
  for (const [code, why] of [
    [{ kind: 'prefixes', levels: [[4, 16], [4, 16]], seed: 'x' }, /length is 4; expected an integer from 5/],
    [{ kind: 'prefixes', levels: [], seed: 'x' }, /expected at least one/],
    [{ kind: 'rows', size: 5, rows: 2, buckets: 5, seed: '' }, /seed is empty for 2 rows/],
    [{ kind: 'levels', size: 9, branching: [2, 4] }, /branching has 8 leaves; expected 9 to/],
    [{ kind: 'grid', axes: [] }, /at least one axis/],
    [{ kind: 'grid', axes: [{ kind: 'rows', size: 5, rows: 1, buckets: 5, seed: '' }] }, /expected one of levels/],
    [{ kind: 'kept_nodes', size: 2 ** 33 }, /expected an integer from 1/],
  ]) {
    assert.match(rejection(() => createDevice('count_min', { ...law, code })) ?? 'read', why);
  }
});
