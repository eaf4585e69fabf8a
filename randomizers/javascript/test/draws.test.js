import assert from 'node:assert/strict';
import test from 'node:test';
import { ByteGenerator } from '../src/byte_generator.js';
import { createDevice, parseJson, systemRandom } from '../src/index.js';
import { sha512 } from '../src/hashes.js';
import { createHash } from 'node:crypto';
import { vectorsOf } from './support.js';

/** Significance level: maximum probability that a correct implementation fails a test. */
const FALSE_ALARM = 1e-9;

/** Return P(chi-square with these degrees of freedom > x), by Wilson and Hilferty. */
function tail(x, degrees) {
  const spread = 2 / (9 * degrees);
  const z = (Math.cbrt(x / degrees) - (1 - spread)) / Math.sqrt(spread);
  return z < 0 ? 1 : 0.5 * Math.exp(-0.717 * z - 0.416 * z * z);
}

/** Return the p-value of counts under these probabilities; rare outcomes are combined. */
function likelihood(counts, probabilities) {
  const draws = counts.reduce((sum, count) => sum + count, 0);
  let [x, cells, rareSeen, rareExpected] = [0, 0, 0, 0];
  counts.forEach((count, index) => {
    const expected = draws * probabilities[index];
    if (expected < 20) {
      rareSeen += count;
      rareExpected += expected;
    } else {
      x += (count - expected) ** 2 / expected;
      cells++;
    }
  });
  if (rareExpected > 0) {
    x += (rareSeen - rareExpected) ** 2 / Math.max(rareExpected, 1);
    cells++;
  }
  return tail(x, cells - 1);
}

/** Enroll a device again, which redraws everything that it draws in advance. */
function enrolledAgain(device) {
  Object.assign(device, { enrolled: false, epoch: 0 });
  device.enroll();
  return device;
}

/** Check that counts are consistent with one distribution and not with another. */
function follows(counts, law, other) {
  if (process.env.POWER) console.log(likelihood(counts, law), likelihood(counts, other));
  assert.ok(likelihood(counts, law) > FALSE_ALARM, `counts do not fit the distribution: ${counts}`);
  assert.ok(likelihood(counts, other) < FALSE_ALARM, `the test has no power: ${counts}`);
}

/** Return the number of times that `draw` returns each integer below `size`. */
function countsOf(draws, size, draw) {
  const counts = new Array(size).fill(0);
  for (let index = 0; index < draws; index++) counts[draw()]++;
  return counts;
}

const lawsOf = (protocol) => vectorsOf(protocol).cases.map(({ law }) => law);

test('drawn integers are uniform over any range', () => {
  const random = new ByteGenerator(systemRandom);
  for (const values of [3, 200, 1000, 70000, 5e9, 1n << 63n]) {
    const cells = values < 300 ? Number(values) : 100;
    const counts = new Array(cells).fill(0);
    for (const drawn of random.integers(values, 50_000)) {
      counts[values < 300 ? drawn : Number((BigInt(drawn) * 100n) / BigInt(values))]++;
    }
    const even = new Array(cells).fill(1 / cells);
    const tilted = even.map((each, cell) => each * (cell % 2 ? 1.2 : 1 - 0.2 * (Math.floor(cells / 2) / Math.ceil(cells / 2))));
    follows(counts, even, tilted);
  }
});

test('random integers of every width are redrawn from the largest multiple of the range on', () => {
  for (const [values, width] of [[192, 1], [40_000, 2], [3 * 2 ** 30, 4], [3n << 62n, 8]]) {
    const bytes = new Uint8Array(2 * width);
    const write = (number, at) => {
      for (let each = 0; each < width; each++) bytes[at + each] = Number((BigInt(number) >> BigInt(8 * each)) & 255n);
    };
    write(values, 0);
    write(BigInt(values) - 1n, width);
    let taken = 0;
    const random = new ByteGenerator((count) => bytes.slice(taken, (taken += count)));
    assert.equal(BigInt(random.integers(values, 1)[0]), BigInt(values) - 1n);
    assert.equal(taken, 2 * width);
  }
});

test('symbols of input-independent value_stream devices are Gaussian', () => {
  const [law] = lawsOf('value_stream');
  const device = createDevice('value_stream', law);
  const counts = countsOf(6_000, 145, () => {
    enrolledAgain(device).kept.noise[0] = 1;
    return device.report(1, 1)[0] - 8;
  });
  const normal = (deviation) => {
    const weights = counts.map((_, symbol) => Math.exp(-(((symbol - 72) / 8 / deviation) ** 2) / 2));
    const total = weights.reduce((sum, each) => sum + each);
    return weights.map((each) => each / total);
  };
  // The alternative has half the standard deviation.
  follows(counts, normal(1), normal(0.5));
});

test('value_stream devices are input-independent with probability m, else their symbols are tilted', () => {
  const [, law] = lawsOf('value_stream');
  const device = createDevice('value_stream', law);
  const counts = new Array(145).fill(0);
  const noise = countsOf(8_000, 2, () => {
    const isNoise = enrolledAgain(device).kept.noise[0];
    if (!isNoise) counts[device.report(1, 1)[0] - 8]++;
    return isNoise;
  });
  const share = Number(law.noise) / 2 ** 64;
  follows(noise, [1 - share, share], [1 - share / 2, share / 2]);
  // The step of the first epoch, with the boost of a change from 0.
  const { boost, reserve, squaredNormBudget } = device;
  const step = Math.min(0.5 + boost, Math.sqrt(squaredNormBudget - reserve));
  const tiltedBy = (pull) => {
    const weights = counts.map((_, symbol) => {
      const z = (symbol - 72) / 8;
      return Math.exp(-(z * z) / 2) * device.reach(pull * z, squaredNormBudget - step * step);
    });
    const total = weights.reduce((sum, each) => sum + each);
    return weights.map((each) => each / total);
  };
  follows(counts, tiltedBy(step), tiltedBy(2 * step));
});

test('orders and sign distances of future_rand have their declared distributions', () => {
  const law = lawsOf('future_rand')[0];
  const orders = law.order_weights.map(Number);
  const total = orders.reduce((sum, each) => sum + each);
  const device = createDevice('future_rand', law);
  const { composed } = device.booleans;
  const most = Math.max(...composed.map(({ k }) => k));
  const longest = composed.findIndex(({ k }, order) => k === most && orders[order]);
  const sums = new Array(most + 1).fill(0);
  const counts = countsOf(12_000, orders.length, () => {
    const { order, signs } = enrolledAgain(device).kept;
    if (order[0] === longest) {
      let kept = 0;
      for (let index = 0; index < most; index++) kept += (signs[index >> 3] >> (index & 7)) & 1;
      sums[most - kept]++;
    }
    return order[0];
  });
  const shares = orders.map((each) => each / total);
  follows(counts, shares, [...shares].reverse());
  const { masses } = composed[longest];
  const all = Number(masses.reduce((sum, each) => sum + each));
  const probabilities = masses.map((mass) => Number(mass) / all);
  // The alternative has half the probability of every distance above 0.
  const [near, ...far] = probabilities;
  const halved = [1 - (1 - near) / 2, ...far.map((each) => each / 2)];
  follows(sums, probabilities, halved);
});

test('unchanged values of future_rand are reported as fair coins', () => {
  const device = createDevice('future_rand', lawsOf('future_rand')[0]);
  const counts = countsOf(10_000, 2, () => {
    enrolledAgain(device).kept.order[0] = 0;
    return device.report(1, 0)[0] & 1;
  });
  follows(counts, [0.5, 0.5], [0.6, 0.4]);
});

test('the number of dummies has its declared distribution', () => {
  const laws = lawsOf('count_min');
  const ofCell = (law, epochs) => {
    const device = createDevice('count_min', { ...law, last_epoch: epochs });
    device.enroll();
    return countsOf(epochs, 400, () => device.report(device.epoch + 1, []).length);
  };
  const poisson = (mean) => {
    const weights = [Math.exp(-mean)];
    for (let count = 1; count < 400; count++) weights.push((weights[count - 1] * mean) / count);
    return weights;
  };
  const few = laws[0].noise.mean * laws[0].code.buckets;
  follows(ofCell(laws[0], 4_000), poisson(few), poisson(few / 2));
  const binomial = (trials, share) => {
    const weights = [(1 - share) ** trials];
    for (let count = 1; count < 400; count++) {
      weights.push((weights[count - 1] * (trials + 1 - count) * share) / (1 - share) / count);
    }
    return weights.map((each) => Math.max(each, 0));
  };
  const { mean, minimum } = laws[1].noise;
  follows(ofCell(laws[1], 4_000), binomial(40, mean / minimum), binomial(40, mean / minimum / 2));
  const clustered = (shape, each) => {
    const stop = each / (shape + each);
    const weights = [(1 - stop) ** shape];
    for (let count = 1; count < 400; count++) {
      weights.push((weights[count - 1] * (shape + count - 1) * stop) / count);
    }
    return weights;
  };
  const { noise, code } = laws[5];
  const [shape, average] = [noise.shape, noise.mean].map((each) => (each * code.size) / noise.minimum);
  follows(ofCell(laws[5], 4_000), clustered(shape, average), clustered(shape / 2, average / 2));
});

test('hashed messages of shuffled_counts are uniform over the messages that contain the item', () => {
  const law = lawsOf('shuffled_counts').find(({ buckets, boost }) => buckets && !boost);
  const held = { ...law.held, dummies: 'shuffle' };
  const device = createDevice('shuffled_counts', { ...law, held, size: 6, buckets: 3, last_epoch: 8_000 });
  device.enroll();
  const words = Number(device.wordCount);
  const counts = countsOf(8_000, words, () => device.report(device.epoch + 1, 5)[0]);
  const own = counts.map((count) => Number(count > 0));
  assert.equal(own.reduce((sum, each) => sum + each), words / 3);
  const counted = counts.filter((count) => count);
  const even = counted.map(() => 3 / words);
  const tilted = even.map((each, index) => each * (index % 2 ? 1.2 : 0.8));
  follows(counted, even, tilted);
});

test('single messages are randomized with their declared probabilities', () => {
  const laws = lawsOf('single_message');
  const device = createDevice('single_message', { ...laws[0], last_epoch: 8_000 });
  device.enroll();
  const { items, odds } = laws[0];
  const counts = countsOf(8_000, items + 1, () => device.report(device.epoch + 1, [2])[0]);
  const [own, other] = odds.weights.map(([, weight]) => Number(weight));
  const answers = (truth) => counts.map((_, item) => (item === 2 ? truth : other) / (truth + other * items));
  follows(counts, answers(own), answers(2 * own));
  const rappor = createDevice('single_message', { ...laws[3], last_epoch: 8_000 });
  rappor.enroll();
  const [kept, reversed] = laws[3].odds.weights.map(([, weight]) => Number(weight));
  const masks = countsOf(8_000, 8, () => rappor.report(rappor.epoch + 1, [1])[0]);
  const of = (flip) =>
    masks.map((_, mask) =>
      [1, 0, 0].reduce((all, bit, index) => all * (((mask >> index) & 1) === bit ? 1 - flip : flip), 1),
    );
  follows(masks, of(reversed / (kept + reversed)), of(reversed / (kept + reversed) / 2));
});

test('phases and flips of sampled_response have their declared distributions', () => {
  const laws = lawsOf('sampled_response');
  const { last_epoch: epochs, flips: { weights } } = laws[1];
  const device = createDevice('sampled_response', laws[1]);
  const flips = new Array(8).fill(0);
  const phases = countsOf(12_000, epochs, () => {
    const { phase, flips: drawn } = enrolledAgain(device).kept;
    flips[drawn[0]]++;
    return phase[0];
  });
  const even = phases.map(() => 1 / epochs);
  follows(phases, even, even.map((each, phase) => each * (phase % 2 ? 1.2 : 0.8)));
  const ones = (pattern) => [0, 1, 2].reduce((sum, bit) => sum + ((pattern >> bit) & 1), 0);
  const byDistance = weights.flatMap(([run, weight]) => new Array(run).fill(Number(weight)));
  const total = flips.reduce((sum, _, pattern) => sum + byDistance[ones(pattern)], 0);
  const declared = flips.map((_, pattern) => byDistance[ones(pattern)] / total);
  // The alternative has half the probability of every pattern that reverses an answer.
  follows(flips, declared, declared.map((each, pattern) => (pattern ? each / 2 : (1 + each) / 2)));
});

test('answers of sampled_response are likelier in the set of the value, and uniform inside and outside', () => {
  const { law } = vectorsOf('sampled_response').cases.find(({ law: { items } }) => items === 5);
  const device = createDevice('sampled_response', { ...law, last_epoch: 1 });
  const counts = countsOf(20_000, device.sets.points, () => enrolledAgain(device).report(1, 2)[0]);
  const own = new Set(Array.from({ length: device.sets.block }, (_, number) => device.sets.choose(2, true, number, 0)));
  assert.equal(own.size, device.sets.block);
  const [inside, outside] = law.flips.weights.map(([, weight]) => Number(weight));
  const answers = (weight) => {
    const weights = counts.map((_, point) => (own.has(point) ? weight : outside));
    const total = weights.reduce((sum, each) => sum + each);
    return weights.map((each) => each / total);
  };
  follows(counts, answers(inside), answers(2 * inside));
});

/** Return the probabilities of the points of a set system that answer about an equally likely value of some. */
function answersAbout(sets, values, odds) {
  const counts = new Array(sets.points).fill(0);
  const each = 1 / (values.length * (odds * sets.block + sets.outside));
  for (const value of values) {
    for (let number = 0; number < sets.block; number++) counts[sets.choose(value, true, number, 0)] += odds * each;
    for (let number = 0; number < sets.outside; number++) counts[sets.choose(value, false, 0, number)] += each;
  }
  return counts;
}

test('answers of sampled_response are about a uniform slot of a set, or about a uniform level', () => {
  const oddsOf = ({ flips: { weights: [[, own], [, other]] } }) => Number(own) / Number(other);
  const { law } = vectorsOf('sampled_response').cases.find(({ law: { items, slots } }) => items === 5 && slots === 3);
  const slots = createDevice('sampled_response', { ...law, last_epoch: 1 });
  const about = countsOf(20_000, slots.sets.points, () => enrolledAgain(slots).report(1, [4, 2])[0]);
  const [right, wrong] = [[2, 4, 0], [2, 2, 4]].map((values) => answersAbout(slots.sets, values, oddsOf(law)));
  follows(about, right, wrong);

  const { law: tree } = vectorsOf('sampled_response').cases.find(({ law: { code } }) => code?.kind === 'levels');
  const levels = tree.levels.map((level) => ({ ...level, last_epoch: 1 }));
  const device = createDevice('sampled_response', { ...tree, levels });
  const words = device.levels.reduce((sum, { sets }) => sum + sets.points, 0);
  const counts = countsOf(40_000, words, () => enrolledAgain(device).report(1, 38)[0]);
  // Bucket 38 of 64 is in the third node of 4, and in the tenth of 16.
  const each = device.levels.map(({ sets }, index) => answersAbout(sets, [[2, 9, 37][index]], oddsOf(tree.levels[index])));
  const mixed = (shares) => each.flatMap((level, index) => level.map((probability) => probability * shares[index]));
  follows(counts, mixed([1 / 3, 1 / 3, 1 / 3]), mixed([0.4, 0.3, 0.3]));
});

test('messages of shuffled_counts are rounded up with a probability equal to their fraction', () => {
  const law = lawsOf('shuffled_counts').find((each) => 'squared_norm_budget' in each);
  const device = createDevice('shuffled_counts', law);
  const ups = countsOf(40_000, 2, () => {
    const word = enrolledAgain(device).report(1, 1)[0];
    return word - 32768 - Math.floor((0.5 + device.boost) * 256);
  });
  const share = ((0.5 + device.boost) * 256) % 1;
  follows(ups, [1 - share, share], [1 - share / 2, share / 2]);
});

test('devices draw random bytes from WebCrypto by default', (context) => {
  const asked = [];
  context.mock.method(globalThis.crypto, 'getRandomValues', (array) => {
    asked.push(array.length);
    return array.fill(7);
  });
  assert.deepEqual(systemRandom(70_000), new Uint8Array(70_000).fill(7));
  assert.deepEqual(asked, [65536, 4464]);
  const device = createDevice('value_stream', lawsOf('value_stream')[0]);
  device.enroll();
  device.report(1, 1);
  assert.ok(asked.length > 3);
});

test('a short read of random bytes is rejected and leaves the state unchanged', () => {
  const device = createDevice('value_stream', lawsOf('value_stream')[0]);
  device.enroll();
  const before = device.state();
  assert.throws(() => device.report(1, 1, (count) => new Uint8Array(count - 1)), /read 7 random bytes; expected 8/);
  assert.deepEqual(device.state(), before);
  device.report(1, 1);
});

test('SHA-512 matches FIPS 180-4', () => {
  for (const length of [0, 1, 111, 112, 127, 128, 300]) {
    const message = new Uint8Array(length).fill(97);
    assert.deepEqual([...sha512(message)], [...createHash('sha512').update(message).digest()]);
  }
});

test('large integers are parsed exactly', () => {
  const text = '{"a":[9007199254740991,-9007199254740993,18446744073709551615,1.2345678901234567891,1e30,0],"12345678901234567890":"-99999999999999999999"}';
  const read = parseJson(text);
  assert.deepEqual(read.a, [9007199254740991, -9007199254740993n, 18446744073709551615n, 1.2345678901234568, 1e30, 0]);
  assert.equal(read['12345678901234567890'], '-99999999999999999999');
  assert.deepEqual(parseJson('{"a\\"b":"\\\\", "c":[true,null]}'), { 'a"b': '\\', c: [true, null] });
  assert.throws(() => parseJson('{"a": 1'), SyntaxError);
});
