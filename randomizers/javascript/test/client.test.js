import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import test from 'node:test';
import { amount, read, written } from '../src/client/amounts.js';
import { begins, epochAt } from '../src/client/epoch_clock.js';
import { ClientError, Device, fetching } from '../src/client/index.js';
import { PROTOCOLS as LOADED, checkRandomizer } from '../src/client/randomizers.js';
import { measureSentence } from '../src/client/event_terms.js';
import { readStatement, signedStatement } from '../src/client/statements.js';
import { documentOf, outcomeOf, secondsToBegin, secondsToWait } from '../src/client/steps.js';
import { span } from '../src/client/terms.js';
import { numberOf, readValues } from '../src/client/values.js';
import { PROTOCOLS } from '../src/index.js';
import { readMeasure } from '../src/measures.js';
import { MemoryStore, countedBytes } from './support.js';

const vectors = JSON.parse(readFileSync(new URL('../vectors/client/client.json', import.meta.url), 'utf8'));

test('losses have the same digits as in Python', () => {
  for (const [number, digits, up, units, text] of vectors.amounts) {
    assert.equal(amount(number, digits, up), BigInt(units), String(number));
    assert.equal(written(BigInt(units), digits), text);
    assert.equal(read(text, digits), BigInt(units));
  }
  for (const wrong of [-1, NaN, Infinity, '1', null, true, 1n]) assert.throws(() => amount(wrong, 9, true));
  for (const wrong of ['', '-1', '1.50', '01', '1.', '.5', '1e3', ' 1', '1_0', null]) assert.throws(() => read(wrong, 9));
});

test('devices and jobs compute the same epochs', () => {
  for (const { epochs, begins: starts, at } of vectors.calendars) {
    for (const [epoch, moment] of starts) assert.equal(begins(epochs, epoch), moment, JSON.stringify([epochs, epoch]));
    for (const [moment, epoch] of at) assert.equal(epochAt(epochs, moment), epoch, JSON.stringify([epochs, moment]));
  }
});

test('values are converted to numbers in the domain, and error messages do not reveal them', () => {
  for (const { values, numbers } of vectors.values) {
    for (const [value, number] of numbers) {
      const told = readValues(values);
      if (number === null) assert.throws(() => numberOf(told, value), { kind: 'value' }, JSON.stringify([values, value]));
      else assert.deepEqual(numberOf(told, value), number, JSON.stringify([values, value]));
    }
  }
  const told = readValues(vectors.values[1].values);
  assert.throws(() => numberOf(told, 'bicycle'), (error) => !error.message.includes('bicycle'));
});

test('every number and every set is accepted, so that absence does not depend on values', () => {
  const numbers = { kind: 'numbers', size: 5, slots: null, low: 0, high: 8, buckets: 4 };
  for (const optional of [false, true]) {
    const told = readValues({ ...numbers, optional });
    const given = [NaN, -Infinity, -1, 0, 7.99, 8, 1e300, Infinity];
    assert.deepEqual(given.map((value) => numberOf(told, value)), [optional ? 0 : 1, 1, 1, 1, 4, 4, 4, 4]);
    for (const wrong of [true, '3', undefined, 5n, [1]]) assert.throws(() => numberOf(told, wrong), { kind: 'value' });
  }
  const sets = readValues({ kind: 'items', size: 4, slots: 2, labels: ['walk', 'bus', 'car'] });
  assert.deepEqual(numberOf(sets, new Set(['car', 'walk', 'bus', 3])), [1, 2]);
  assert.deepEqual(numberOf(sets, ['car', 'car']), [3]);
});

test('composed and decomposed accents are the same label', () => {
  const told = readValues({ kind: 'items', size: 3, slots: null, labels: ['tea', 'caf\u00e9'] });
  assert.deepEqual(['caf\u00e9', 'cafe\u0301'].map((label) => numberOf(told, label)), [2, 2]);
});

test('server responses are handled as in Python', () => {
  for (const [status, told, kind, others, begins] of vectors.outcomes) {
    assert.deepEqual(outcomeOf(status, told), { kind, others, begins }, JSON.stringify([status, told]));
  }
  assert.deepEqual(outcomeOf(503, null), { kind: 'again', others: false, begins: null });
  for (const [begins, now, jitter, seconds] of vectors.pausesBeforeEpochs) {
    assert.ok(Math.abs(secondsToBegin(begins, now, jitter) - seconds) < 1e-9 * seconds);
  }
  for (const [failures, asked, jitter, seconds] of vectors.pauses) {
    assert.ok(Math.abs(secondsToWait(failures, asked, jitter) - seconds) < 1e-9 * seconds);
  }
});

test('users read the same sentences about measures as in Python', () => {
  for (const [body, months, milliseconds, sentence] of vectors.sentences) {
    assert.equal(measureSentence(readMeasure(body), (count) => span(months * count, milliseconds * count)), sentence);
  }
});

test('a statement is accepted if one of the signers signed it', async () => {
  const { signers, good, bad } = vectors.signatures;
  assert.equal(await signedStatement(good, signers), Buffer.from(JSON.parse(good).statement, 'base64').toString());
  await assert.rejects(signedStatement(good, [signers[0]]), { kind: 'statement' });
  await assert.rejects(signedStatement(good, []), { kind: 'statement' });
  for (const wrong of bad) await assert.rejects(signedStatement(wrong, signers), { kind: 'statement' }, wrong);
});

test('a signed statement is rejected if its noise is too small for its guarantee', async () => {
  let tried = 0;
  for (const { steps } of vectors.scenarios) {
    const text = steps.flatMap(({ requests }) => requests).find(({ text }) => text?.includes('"statement"'))?.text;
    const told = text && JSON.parse(Buffer.from(JSON.parse(text).statement, 'base64').toString());
    if (!['count_min', 'single_message', 'shuffled_counts'].includes(told?.protocol) || told.events) continue;
    tried++;
    const { law } = told;
    const quiet = law.odds ? { odds: { weights: [[1, '1' + '0'.repeat(30)], [1, '1']] } } : { noise: { ...law.noise, mean: 1e-9 } };
    const check = (change) => checkRandomizer(readStatement(JSON.stringify({ ...told, ...change })));
    await check({});
    await assert.rejects(check({ law: { ...law, ...quiet } }), /noise of job [\w-]+ is too small for epsilon 1, delta 0.000001/);
    await assert.rejects(check({ minimum: told.minimum - 1 }), /assumes \d+ contributors in each window/);
  }
  assert.ok(tried >= 3);
});

test('too little noise, or a larger loss, in any question of shuffled panels is rejected', async () => {
  const { steps } = vectors.scenarios.find(({ label }) => label === 'client shuffled_panels');
  const told = JSON.parse(atob(JSON.parse(steps[0].requests[0].text).statement));
  await checkRandomizer(readStatement(JSON.stringify(told)));
  for (const index of [0, 1]) {
    for (const [name, factor, message] of [['deviation', 0.5, /noise of job sums is too small/], ['delta', 2, /the statement guarantees/], ['epsilon', 2, /the statement guarantees/]]) {
      const forged = structuredClone(told);
      const { law } = forged.law.questions[index];
      law[name] = name === 'deviation' ? Math.floor(law[name] * factor) : law[name] * factor;
      await assert.rejects(checkRandomizer(readStatement(JSON.stringify(forged))), { kind: 'statement', message });
    }
  }
});

test('a mechanism that ends before the horizon or exceeds its epsilon is rejected', async () => {
  const tried = new Set();
  for (const { label, steps } of vectors.scenarios) {
    if (!PROTOCOLS.includes(label.slice('client '.length))) continue;
    const told = JSON.parse(atob(JSON.parse(steps[0].requests[0].text).statement));
    tried.add(told.protocol);
    const longer = { ...told, epochs: { ...told.epochs, count: 1000 } };
    await assert.rejects(checkRandomizer(readStatement(JSON.stringify(longer))), {
      kind: 'statement',
      message: /ends with epoch \d, but the horizon has 1000 epochs/,
    });
    if (told.epochs.answers) {
      for (const [section, change] of [
        ['epochs', { answers: 2 }],
        ['epochs', { answers: null }],
        ['guarantee', { rolling: { epochs: 5, epsilon: 9 } }],
        ['guarantee', { rolling: { epochs: 4, epsilon: told.guarantee.epsilon * 0.9 } }],
      ]) {
        const forged = { ...told, [section]: { ...told[section], ...change } };
        const message = /how often a device answers|an epsilon for consecutive epochs/;
        await assert.rejects(checkRandomizer(readStatement(JSON.stringify(forged))), { kind: 'statement', message });
      }
    }
    for (const change of [{ theta: '0x1.8p+1' }, { noise: 2 ** 60 }, { theta: '0x1.8p-30' }]) {
      const forged = structuredClone(told);
      const { levels, booleans } = forged.law;
      const laws = levels?.map((level) => level.booleans) ?? [booleans ?? forged.law];
      if (!laws.every((law) => 'theta' in law)) continue;
      for (const law of laws) Object.assign(law, change);
      const checked = checkRandomizer(readStatement(JSON.stringify(forged)));
      // A smaller goal has a smaller loss.
      if (change.theta?.endsWith('-30')) await checked;
      else await assert.rejects(checked, { kind: 'app' }, label);
      tried.add(`${told.protocol} ${Object.values(change)}`);
    }
  }
  assert.equal(tried.size, PROTOCOLS.length + 9);
});

/** Replay of a scenario of the vectors, which checks every request of the device. */
class Replay {
  constructor({ label, job, limit }) {
    this.source = countedBytes(label);
    this.store = new MemoryStore();
    this.requests = [];
    this.options = {
      job,
      limit,
      signers: [vectors.signer],
      store: this.store,
      read: (count) => this.source.read(count),
      now: () => this.step.now,
      monotonic: () => this.step.seconds,
      jitter: () => 0.5,
      transport: async (method, path, body) => {
        const request = this.requests.shift();
        assert.deepEqual([method, path], [request?.method, request?.path]);
        if (body) assert.equal(Buffer.from(body).toString('base64'), request.body);
        if (!('status' in request)) throw new ClientError('unreachable', 'no server');
        return request;
      },
    };
  }

  async take(device, step) {
    this.step = step;
    this.requests = [...step.requests];
    const actions = {
      terms: async () => (await device.terms()).description,
      join: () => device.join(),
      'join terms': async () => device.join(await device.terms()),
      'join again': () => device.join({ again: true }),
      'join with': () => device.join(step.options),
      record: () => device.record(step.value, step.options),
      attributes: () => device.attributes(step.value, step.options),
      'report events': () => device.report(),
      report: () => device.report(step.value, { ago: step.ago }),
      send: () => device.send(),
      leave: () => device.leave(),
    };
    if ('error' in step) {
      await assert.rejects(actions[step.do](), { name: 'ClientError', kind: step.error });
    } else {
      const result = await actions[step.do]();
      if (step.result !== null) assert.deepEqual(result, step.result);
    }
    assert.deepEqual(this.requests, []);
    if ('document' in step) this.document = step.document;
    assert.deepEqual(JSON.parse(this.store.text), this.document ?? null);
    assert.equal((await device.account()).text, step.account);
    assert.equal(this.source.taken, step.taken);
  }
}

for (const scenario of vectors.scenarios) {
  test(`${scenario.label}: requests, sends and stores the same data as Python`, async () => {
    const replay = new Replay(scenario);
    const device = new Device(replay.options);
    for (const step of scenario.steps) await replay.take(device, step);
  });

  test(`${scenario.label}: each step resumes in a new page from state that Python stored`, async () => {
    const replay = new Replay(scenario);
    let text = null;
    for (const step of scenario.steps) {
      // The page keeps pauses in memory, not in the document.
      if (step.do === 'send' && !step.requests.length) continue;
      replay.store.text = text;
      if (step.result?.sending?.after || step.result?.after) replay.step = step;
      const device = new Device(replay.options);
      const { sending } = step.result ?? {};
      const after = sending ? undefined : step.result?.after;
      if (after || sending?.after) {
        replay.step = step;
        replay.requests = [...step.requests];
        const result = step.do === 'send' ? await device.send() : await device.report(step.value, { ago: step.ago });
        assert.equal((result.sending ?? result).waiting, (sending ?? step.result).waiting);
        if ('document' in step) replay.document = step.document;
      } else {
        await replay.take(device, step);
      }
      if ('document' in step) text = JSON.stringify(step.document);
    }
  });
}

test('several tabs draw and charge each epoch only once', async () => {
  const scenario = vectors.scenarios.find(({ label }) => label === 'client future_rand');
  const sent = [];
  const collector = async (method, path, body) => {
    if (method === 'GET') {
      const { text } = scenario.steps[0].requests[0];
      return path.endsWith('/time') ? { status: 500, text: '', retryAfter: null } : { status: 200, text, retryAfter: null };
    }
    sent.push(Buffer.from(body).toString('hex'));
    return { status: sent.length < 30 ? 503 : 202, text: '', retryAfter: null };
  };
  const store = new MemoryStore();
  let seconds = 0;
  const options = {
    job: 'logins',
    signers: [vectors.signer],
    limit: { epsilon: 1 },
    store,
    transport: collector,
    now: () => scenario.steps[0].now,
    monotonic: () => (seconds += 5000),
  };
  const tabs = Array.from({ length: 6 }, () => new Device(options));
  await Promise.all(tabs.map((tab) => tab.join()));
  const reports = await Promise.all(tabs.map((tab, index) => tab.report(index % 2 === 0)));
  assert.equal(reports.filter(({ drawn }) => drawn).length, 1);
  for (let round = 0; round < 30; round++) await Promise.all(tabs.map((tab) => tab.send()));
  assert.equal(new Set(sent).size, 1);
  assert.equal((await tabs[0].send()).waiting, 0);
  assert.equal((await tabs[0].account()).spent.epsilon, 1_000_000_000n);
});

test('a page that is closed at any moment draws each epoch only once', async () => {
  const scenario = vectors.scenarios.find(({ label }) => label === 'client single_message');
  const description = scenario.steps[0].requests[0].text;
  const run = async (deaths) => {
    let actions = 0;
    const store = new MemoryStore();
    const sent = new Map();
    const carryOut = async (action) => {
      const done = await action();
      actions += 1;
      if (actions === deaths) throw new Error('the page is closed');
      return done;
    };
    let day = 0;
    const start = () =>
      new Device({
        job: 'fruits',
        signers: [vectors.signer],
        limit: { epsilon: 50, delta: 1 },
        store: {
          read: () => store.read(),
          replace: (revision, text) => carryOut(() => store.replace(revision, text)),
        },
        transport: (method, path, body) =>
          carryOut(() => {
            if (method === 'GET') return { status: path.endsWith('time') ? 404 : 200, text: description, retryAfter: null };
            const epoch = Buffer.from(body).readBigUInt64LE(40);
            sent.set(epoch, (sent.get(epoch) ?? new Set()).add(Buffer.from(body).toString('hex')));
            return { status: day === 2 ? 503 : 202, text: '', retryAfter: null };
          }),
        now: () => scenario.steps[0].now + day * 86_400_000,
        monotonic: () => day * 86_400,
      });
    let device = start();
    for (; day < 4; day++) {
      for (let turn = 0; turn < 2; turn++) {
        try {
          await device.join();
          await device.report(['pear', null, 1][(day + turn) % 3]);
        } catch {
          device = start();
        }
      }
    }
    day += 1;
    await device.send();
    for (const bodies of sent.values()) assert.equal(bodies.size, 1);
    assert.equal((await device.account()).spent.epsilon, 4_000_000_000n);
    assert.equal(sent.size, 4);
    return actions;
  };
  const actions = await run(Infinity);
  assert.ok(actions > 20);
  for (let deaths = 1; deaths <= actions; deaths++) await run(deaths);
});

test('clients include all randomizers, and reject jobs with unknown protocols', async () => {
  assert.deepEqual(LOADED, PROTOCOLS);
  const { good } = vectors.signatures;
  const told = JSON.parse(Buffer.from(JSON.parse(good).statement, 'base64').toString());
  for (const more of [{ protocol: 'later' }, { protocol: 'toString' }, { law: {} }]) {
    const store = new MemoryStore();
    const device = new Device({ url: 'https://localhost', job: 'logins', signers: [], limit: { epsilon: 9 }, store });
    await assert.rejects(device.join({ statement: JSON.stringify({ ...told, ...more }) }), { kind: 'app' });
    assert.equal(store.text, null);
  }
});

test('a statement that understates the loss of its mechanism is rejected', async () => {
  for (const { label, job, steps } of vectors.scenarios) {
    if (!PROTOCOLS.includes(label.slice('client '.length))) continue;
    const told = JSON.parse(atob(JSON.parse(steps[0].requests[0].text).statement));
    const { guarantee } = told;
    const { epsilon, delta, unit } = guarantee;
    const wrong = [{ epsilon: 0 }, { epsilon: epsilon * (1 - 1e-6) }, { unit: unit === 'stream' ? 'epoch' : 'stream' }];
    if (delta) wrong.push({ delta: 0 }, { delta: delta * (1 - 1e-6) });
    const store = new MemoryStore();
    const device = new Device({ url: 'https://localhost', job, signers: [], limit: { epsilon: 99, delta: 1 }, store });
    const join = (change) => device.join({ statement: JSON.stringify({ ...told, guarantee: { ...guarantee, ...change } }) });
    for (const change of wrong) {
      await assert.rejects(join(change), { kind: 'statement', message: /the mechanism of job .* has epsilon/ }, label);
      assert.equal(store.text, null);
    }
  }
});

test('an invalid stored account or membership is rejected', () => {
  const steps = vectors.scenarios.find(({ label }) => label === 'client future_rand').steps;
  const good = steps.at(-1).document;
  assert.equal(documentOf(JSON.stringify(good)).account.length, 1);
  const [entry] = good.account;
  const entries = [
    { charges: -1 },
    { charges: 0 },
    { charges: 1.5 },
    { charges: '2' },
    { last: -2 },
    { last: null },
    { unit: 'week' },
    { epsilon: '-1' },
    { epsilon: 1 },
    { delta: '1e-9' },
    { population: 5 },
    { deployment: null },
    { deployed: -1 },
  ];
  for (const change of entries) {
    const text = JSON.stringify({ ...good, account: [{ ...entry, ...change }] });
    assert.throws(() => documentOf(text), { kind: 'store', message: /damaged/ }, text);
  }
  for (const account of [[null], [5], {}, null]) {
    assert.throws(() => documentOf(JSON.stringify({ ...good, account })), { kind: 'store' });
  }
  const { logins } = good.members;
  const changes = [{ statement: 5 }, { device: 'xyz' }, { epoch: -1 }, { epoch: '1' }, { horizon: 0.5 }, { state: 'old' }];
  for (const change of [...changes, { waiting: null }, { waiting: [{}] }, { gone: 'no' }]) {
    const text = JSON.stringify({ ...good, members: { logins: { ...logins, ...change } } });
    assert.throws(() => documentOf(text), { kind: 'store', message: /damaged/ }, text);
  }
  for (const members of [null, [5], { logins: 5 }, 'text']) {
    assert.throws(() => documentOf(JSON.stringify({ ...good, members })), { kind: 'store' });
  }
});

test('a job can have the name of an inherited property, such as constructor', async () => {
  const { good } = vectors.signatures;
  const told = JSON.parse(Buffer.from(JSON.parse(good).statement, 'base64').toString());
  const job = 'constructor';
  const store = new MemoryStore();
  const options = { url: 'https://localhost', job, signers: [], limit: { epsilon: 9 }, store, now: () => told.epochs.start };
  const transport = async () => ({ status: 202, text: '', retryAfter: null });
  const device = new Device({ ...options, transport });
  await assert.rejects(device.report(true), { kind: 'not-joined' });
  assert.deepEqual(await device.send(), { waiting: 0, after: 0, gone: false });
  await device.join({ statement: JSON.stringify({ ...told, job, population: job }) });
  assert.equal((await device.report(true)).drawn, true);
  await device.leave();
  await assert.rejects(device.join({ statement: JSON.stringify({ ...told, job, population: job }) }), { kind: 'not-joined' });
});

test('a report without a token waits until a token is available', async () => {
  const { good, signers } = vectors.signatures;
  const told = JSON.parse(Buffer.from(JSON.parse(good).statement, 'base64').toString());
  const tokens = [() => Promise.reject(new Error('offline')), () => null, () => { throw new Error('bug'); }, () => 'good'];
  const said = [];
  let seconds = 0;
  const device = new Device({
    job: told.job,
    signers,
    limit: { epsilon: 9 },
    store: new MemoryStore(),
    now: () => told.epochs.start,
    monotonic: () => seconds,
    token: () => tokens.shift()(),
    transport: async (method, path, body, headers) => {
      if (method === 'POST') said.push(headers.Authorization);
      return { status: method === 'POST' ? 202 : path.endsWith('/time') ? 404 : 200, text: good, retryAfter: null };
    },
  });
  await device.join();
  assert.equal((await device.report(true)).sending.waiting, 1);
  for (const left of [1, 1, 0]) {
    seconds += 4000;
    const { waiting, after } = await device.send();
    assert.equal(waiting, left);
    assert.equal(after > 0, left > 0);
  }
  assert.deepEqual(said, ['Bearer good']);
});

test('malformed documents and documents of later versions are rejected', () => {
  for (const text of ['', '{}', '[]', 'null', '{"version":2}', '{"version":1}', '['.repeat(99_999)]) {
    assert.throws(() => documentOf(text), { kind: 'store' }, text.slice(0, 20));
  }
});

test('unencrypted addresses and invalid job names are rejected', () => {
  for (const url of ['http://example.org', 'ftp://example.org']) assert.throws(() => fetching(url), { kind: 'app' });
  assert.equal(typeof fetching('https://example.org'), 'function');
  assert.equal(typeof fetching('http://127.0.0.1:8080'), 'function');
  for (const job of ['', 'a/b', '..', 'A', 'a?b']) {
    assert.throws(() => new Device({ url: 'https://a.org', job, signers: [], limit: { epsilon: 1 } }), { kind: 'app' });
  }
});
