/** Device for apps: it stores the result of each step of `steps`, then sends. */

import { systemRandom } from '../byte_generator.js';
import { inWords, limitOf, lossesOf, spent } from './account.js';
import { fromBase64 } from './bytes.js';
import { LAST_MOMENT, epochAt } from './epoch_clock.js';
import { ClientError } from './errors.js';
import { fetching } from './fetching.js';
import { IndexedDbStore } from './indexed_db_store.js';
import { checkRandomizer } from './randomizers.js';
import { sealing } from './sealing.js';
import { readStatement, signedStatement } from './statements.js';
import * as steps from './steps.js';
import { termsOf } from './terms.js';
import { numberOf } from './values.js';

/** @typedef {import('./steps.js').Document} Document */
/** @typedef {{ waiting: number, after: number, gone: boolean }} Sending */

/** One user's device in one job; `index.d.ts` documents its options. */
export class Device {
  #signers;
  #limit;
  #population;
  #since;
  #token;
  #store;
  #transport;
  #read;
  #now;
  #monotonic;
  #jitter;
  #failures = 0;
  #quietUntil = -1;
  /** @type {Map<string, number>} monotonic time before which an early report is not sent, by report */
  #early = new Map();

  /** @param {any} options */
  constructor({
    url,
    job,
    signers,
    limit,
    population = job,
    since = 0,
    token = null,
    store = new IndexedDbStore(),
    transport = fetching(url),
    read = systemRandom,
    now = Date.now,
    monotonic = () => performance.now() / 1000,
    jitter = () => new DataView(systemRandom(4).buffer).getUint32(0) / 2 ** 32,
  }) {
    if (!/^[a-z0-9][a-z0-9_-]*$/.test(job)) throw new ClientError('app', "not a job name; expected lower-case letters, digits, '-' and '_', starting with a letter or digit");
    this.job = job;
    this.#signers = [signers].flat();
    this.#limit = limitOf(limit);
    this.#population = population;
    this.#since = since;
    this.#token = token;
    this.#store = store;
    this.#transport = transport;
    this.#read = read;
    this.#now = now;
    this.#monotonic = monotonic;
    this.#jitter = jitter;
  }

  /** Return the terms of joining: the server's verified statement, as numbers and sentences. */
  async terms() {
    const told = await this.#checkedStatement(await this.#signed());
    const document = await this.#document();
    steps.checkNewer(document, told);
    return termsOf(told, document.account, this.#limit);
  }

  /**
   * Join the job's running deployment; a device that already joined it sends no request.
   *
   * @param {{ statement?: string, again?: boolean, attributes?: Record<string, string> }} [options]
   */
  async join({ statement, again = false, attributes } = {}) {
    const member = (await this.#document()).members[this.job];
    if (statement === undefined && member && !member.gone) {
      const { epochs, guarantee } = readStatement(member.statement);
      if (epochs.last === null || epochAt(epochs, this.#now()) <= epochs.last) {
        if (attributes === undefined) return guarantee;
        statement = member.statement;
      }
    }
    const told = await this.#checkedStatement(statement ?? (await this.#signed()));
    const device = this.#read(16);
    const now = await this.#time(told.deployed);
    const seal = told.seal.length ? await sealing() : null;
    const changed = await this.#change((document) =>
      steps.joined(document, told, device, this.#limit, now, again, this.#read, seal, attributes),
    );
    if (changed && told.answers !== null) await this.send();
    return told.guarantee;
  }

  /**
   * Record an event of the user on this device, in jobs with measures; no request is made.
   *
   * @param {string} [event]
   * @param {{ number?: number, label?: string, numbers?: Record<string, number>, labels?: Record<string, string>, at?: number }} [options]
   */
  async record(event = '', { at, ...columns } = {}) {
    const moment = this.#moment(at);
    await this.#change((document) => steps.recorded(document, this.job, moment, event, columns));
  }

  /**
   * Set private attributes of the user, in jobs with measures.
   *
   * @param {Record<string, string>} labels
   * @param {{ at?: number }} [options]
   */
  async attributes(labels, { at } = {}) {
    const moment = this.#moment(at);
    await this.#change((document) => steps.labeled(document, this.job, moment, labels));
  }

  /**
   * Report the value of an epoch, by default the current one: draw once, store, and send if there is a
   * network. In jobs with measures, report all ended epochs from recorded events, without a value.
   *
   * @param {any} [value]
   * @param {{ ago?: number }} [options]
   */
  async report(value, { ago = 0 } = {}) {
    if (!Number.isSafeInteger(ago) || ago < 0) throw new ClientError('app', 'ago must be a number of epochs, 0 or more');
    const statement = readStatement(steps.presentMember(await this.#document(), this.job).statement);
    if (statement.events) {
      if (value !== undefined || ago) {
        throw new ClientError(
          'value',
          `job ${this.job} computes its answers from recorded events: call report without a value, and record for events`,
        );
      }
      return this.#reportEvents(statement);
    }
    if (value === undefined) throw new ClientError('value', `job ${this.job} has no measures: pass a value to report`);
    const number = numberOf(statement.values, value);
    const epoch = steps.reportedEpoch(statement, await this.#time(statement.deployed), ago);
    const seal = statement.seal.length ? await sealing() : null;
    const drawn = await this.#change((document) =>
      steps.drawn(document, this.job, epoch, number, this.#limit, this.#read, seal),
    );
    return { epoch, drawn, sending: await this.send() };
  }

  /** @param {import('./statements.js').Statement} statement */
  async #reportEvents(statement) {
    const now = await this.#time(statement.deployed);
    const seal = statement.seal.length ? await sealing() : null;
    const { first, last } = steps.endedEpochs(await this.#document(), this.job, now);
    let drawn = false;
    for (let epoch = first; epoch <= last; epoch++) {
      const changed = await this.#change((document) => steps.drawn(document, this.job, epoch, null, this.#limit, this.#read, seal));
      drawn ||= changed;
    }
    const after = steps.secondsToReport(statement, now, this.#jitter());
    return { epoch: last, drawn, sending: await this.send(), after };
  }

  /** @param {number | undefined} at */
  #moment(at) {
    const now = Math.min(Math.max(this.#now(), 0), LAST_MOMENT);
    if (at === undefined) return now;
    if (!(Number.isSafeInteger(at) && at >= 0 && at <= now + steps.CLOCK_TOLERANCE)) {
      throw new ClientError('value', 'the time of an event is invalid; expected milliseconds since 1970, up to now');
    }
    return at;
  }

  /**
   * Send waiting reports unchanged, except during pauses; the next call retries failures.
   *
   * @returns {Promise<Sending>}
   */
  async send() {
    let failed = false;
    const quiet = this.#monotonic() < this.#quietUntil;
    for (const waiting of quiet ? [] : ((await this.#document()).members[this.job]?.waiting ?? [])) {
      if (this.#monotonic() < (this.#early.get(waiting.report) ?? -1)) {
        if (steps.enrolls(waiting)) break;
        continue;
      }
      // After an acknowledged enrollment, others of the same horizon are no longer waiting.
      if (steps.enrolls(waiting) && !(await this.#isWaiting(waiting))) continue;
      const { outcome, retryAfter } = await this.#sendOne(waiting);
      if (outcome.begins !== null) {
        // The wait is at most a day, even if the server sends a false time.
        const now = await this.#time(outcome.begins);
        const wait = steps.secondsToBegin(outcome.begins, now, this.#jitter());
        this.#early.set(waiting.report, this.#monotonic() + wait);
      }
      if (outcome.kind === 'again' && !failed) {
        failed = true;
        this.#failures += 1;
        this.#quietUntil = this.#monotonic() + steps.secondsToWait(this.#failures, retryAfter, this.#jitter());
      }
      await this.#change((document) => steps.settled(document, this.job, waiting, outcome.kind));
      if (!outcome.others || (steps.enrolls(waiting) && ['again', 'early'].includes(outcome.kind))) break;
    }
    if (!failed && this.#monotonic() >= this.#quietUntil) this.#failures = 0;
    const member = (await this.#document()).members[this.job];
    const left = member?.waiting ?? [];
    this.#early = new Map(left.map(({ report }) => [report, this.#early.get(report) ?? -1]));
    const until = Math.max(this.#quietUntil, Math.min(...this.#early.values()));
    const after = left.length ? Math.max(0, until - this.#monotonic()) : 0;
    return { waiting: left.length, after, gone: member?.gone ?? false };
  }

  /**
   * Send repeatedly until no reports are waiting, or for at most `seconds`.
   *
   * @param {number} seconds
   */
  async deliver(seconds) {
    const end = this.#monotonic() + seconds;
    let sending = await this.send();
    while (sending.waiting && this.#monotonic() + sending.after < end) {
      const milliseconds = 1000 * sending.after;
      await new Promise((resolve) => setTimeout(resolve, milliseconds));
      sending = await this.send();
    }
    return sending;
  }

  /** Delete state, id and waiting reports, but not the account. */
  async leave() {
    await this.#change((document) => steps.left(document, this.job));
  }

  /** Return the device's spent amounts and the app's limit. */
  async account() {
    const { account } = await this.#document();
    const entries = account.filter(({ population }) => population === this.#population);
    const total = spent(account, this.#population);
    const lines = entries.map(
      (entry) =>
        `job ${entry.job}, deployment ${entry.deployment.slice(0, 8)}: ` +
        `${entry.charges === 1 ? '' : `${entry.charges} x `}${inWords(lossesOf(entry))}`,
    );
    const head = `population ${this.#population}: ${inWords(total)} spent, ${inWords(this.#limit)} allowed`;
    return { spent: total, limit: this.#limit, entries, text: [head, ...lines].join('\n  ') };
  }

  /** @param {import('./steps.js').Waiting} waiting */
  async #isWaiting({ report }) {
    const member = (await this.#document()).members[this.job];
    return member?.waiting.some((each) => each.report === report) ?? false;
  }

  /** @param {import('./steps.js').Waiting} waiting */
  async #sendOne(waiting) {
    /** @type {Record<string, string>} */
    const headers = { 'Content-Type': 'application/vnd.dpstream.reports' };
    let answer;
    try {
      if (this.#token) {
        const token = await this.#token();
        if (!token) throw new Error('no token');
        headers.Authorization = `Bearer ${token}`;
      }
      const path = `/v1/jobs/${this.job}/reports`;
      answer = await this.#transport('POST', path, fromBase64(waiting.body), headers);
    } catch {
      return { outcome: steps.outcomeOf(0, null), retryAfter: null };
    }
    const asked = /^\d{1,9}$/.test(answer.retryAfter ?? '') ? Number(answer.retryAfter) : null;
    return { outcome: steps.outcomeOf(answer.status, jsonOf(answer.text)), retryAfter: asked };
  }

  async #signed() {
    return signedStatement(await this.#ask(''), this.#signers);
  }

  /** Parse a statement; throw unless it matches the app's options and the app supports it. @param {string} text */
  async #checkedStatement(text) {
    const told = readStatement(text);
    if (told.job !== this.job || told.population !== this.#population) {
      throw new ClientError(
        'statement',
        `the statement is about job ${told.job} and population ${told.population}; the app expects job ` +
          `${this.job} and population ${this.#population}`,
      );
    }
    if (told.deployed < this.#since) {
      throw new ClientError(
        'statement',
        `the server offers a deployment of job ${told.job} that is older than the app allows: the device does not join`,
      );
    }
    // Code is loaded now, while there is a network and before any charge.
    await checkRandomizer(told);
    if (told.seal.length) await sealing();
    return told;
  }

  /** @param {number} deployed */
  async #time(deployed) {
    const own = this.#now();
    let told = null;
    try {
      told = jsonOf(await this.#ask('/time'))?.time;
    } catch {
      // Without an answer, the device's own clock is used.
    }
    return steps.corrected(own, told, deployed);
  }

  /** @param {string} path */
  async #ask(path) {
    const { status, text } = await this.#transport('GET', `/v1/jobs/${this.job}${path}`, null, {}).catch(() => {
      throw new ClientError('unreachable', 'no response from the server: try again later');
    });
    if (status !== 200) throw new ClientError('unreachable', `the server returned status ${status} for a job request`);
    return text;
  }

  async #document() {
    return steps.documentOf((await this.#store.read()).text);
  }

  /**
   * Apply a step and store the result; repeat if another tab or process stored a document first.
   *
   * @param {(document: Document) => Document | Promise<Document>} step
   */
  async #change(step) {
    for (;;) {
      const { revision, text } = await this.#store.read();
      const document = steps.documentOf(text);
      const changed = await step(document);
      if (changed === document) return false;
      if (await this.#store.replace(revision, JSON.stringify(changed))) return true;
    }
  }
}

/** @param {string} text */
function jsonOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
