/**
 * Steps of a device, as functions from one document to the next, without input or output. Steps and
 * documents are the same as in `randomizers/client/steps.py`. A step without effect returns its input.
 */

import { charged, entryOf, isEntry, newest, opened } from './account.js';
import { fromBase64, fromHex, joined as bytesOf, littleEndian, toBase64, toHex, utf8 } from './bytes.js';
import { LAST_MOMENT, begins, epochAt, hasEpoch, horizonOf, localEpoch } from './epoch_clock.js';
import { ClientError } from './errors.js';
import { columnsOf, groupOf, historyOf, privateLabels, publicValues, valueOf } from './events.js';
import { randomizer } from './randomizers.js';
import { areRevisions, chargeIndex, keyAt, readStatement } from './statements.js';

/** @typedef {import('./statements.js').Statement} Statement */
/** @typedef {import('./account.js').Losses} Losses */
/** @typedef {import('./account.js').Entry} Entry */
/** @typedef {{ epoch: number, report: string, body: string }} Waiting */
/** @typedef {{ statement: string, device: string, epoch: number, horizon: number | null, state: any, waiting: Waiting[], gone: boolean, enrolled?: number, history?: any, public?: Record<string, string> }} Member */
/** @typedef {{ version: 1, account: Entry[], members: Record<string, Member | null> }} Document */
/** @typedef {(content: Uint8Array, key: Uint8Array, info: Uint8Array) => Promise<{ box: Uint8Array, keyId: Uint8Array }>} Seal */

const MOST_WAITING = 32;
export const CLOCK_TOLERANCE = 60_000;
/** Maximum time, in milliseconds, that a server can put a device ahead of a plausible clock. */
const MOST_AHEAD = 86_400_000;
const FIRST_WAIT = 1;
const LAST_WAIT = 3_600;
const LONGEST_WAIT = 86_400;
const IDENTITY_BYTES = 16;
/** Offset of an envelope's purpose in a body of one envelope, and the purpose of enrollments. */
const PURPOSE = 88;
const ENROLLMENT = 2;
const REJECTIONS = [400, 403, 413, 415];
/** Prefix of collectors' problem types; a 400 or 403 without it comes from an intermediary. */
const PROBLEMS = '/problems/';

/**
 * Parse the stored document; throw if it is damaged or was written by a later version.
 *
 * @param {string | null} text
 * @returns {Document}
 */
export function documentOf(text) {
  if (text === null) return { version: 1, account: [], members: membersOf({}) };
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    body = {};
  }
  if (Number.isInteger(body?.version) && body.version > 1) {
    throw new ClientError('store', 'the device state was written by a later version of the app. Update the app');
  }
  const members = body?.members;
  if (
    body?.version !== 1 ||
    !(Array.isArray(body.account) && body.account.every(isEntry)) ||
    !(members && typeof members === 'object' && Object.values(members).every((each) => each === null || isMember(each)))
  ) {
    throw new ClientError(
      'store',
      'the device state is damaged. Randomizing again could cost more privacy than the app allows, so '  +
        'the device does not report',
    );
  }
  return { ...body, members: membersOf(members) };
}

/** Return members without inherited properties, such as `constructor`. @param {any} members @returns {Document['members']} */
const membersOf = (members) => Object.assign(Object.create(null), members);

/** @param {any} member */
function isMember(member) {
  const { statement, device, epoch, horizon, state, waiting, gone, enrolled, history, public: attributes = {} } = member;
  return (
    typeof statement === 'string' &&
    /^[0-9a-f]{32}$/.test(device) &&
    isCount(epoch) &&
    (horizon === null || isCount(horizon)) &&
    (state === null || typeof state === 'object') &&
    Array.isArray(waiting) &&
    waiting.every((each) => isCount(each?.epoch) && typeof each.report === 'string' && typeof each.body === 'string') &&
    typeof gone === 'boolean' &&
    (enrolled === undefined || isCount(enrolled)) &&
    (history === undefined || (history !== null && typeof history === 'object')) &&
    attributes !== null &&
    Object.values(attributes).every((value) => typeof value === 'string')
  );
}

/** @param {any} number */
const isCount = (number) => Number.isSafeInteger(number) && number >= 0;

/** @param {Document} document @param {string} job @param {Member | null} member @returns {Document} */
const withMember = (document, job, member) => ({
  ...document,
  members: membersOf({ ...document.members, [job]: member }),
});

/**
 * Throw if a statement is older than the joined one or contradicts it. Within a deployment, a later
 * revision can change the last epoch and give values to spare cells; everything else is pinned.
 *
 * @param {Document} document
 * @param {Statement} statement
 */
export function checkNewer(document, statement) {
  const { job, text, deployment, deployed, revision } = statement;
  const member = document.members[job];
  const pinned = member ? readStatement(member.statement) : null;
  if (pinned?.deployment === deployment) {
    if (pinned.text === text) return;
    if (!areRevisions(pinned, statement)) {
      throw new ClientError(
        'statement',
        "the server's statement of this deployment changed since the device joined: the device keeps the " +
          'statement it joined with',
      );
    }
    if (revision <= pinned.revision) {
      throw new ClientError(
        'statement',
        "the server's statement of this deployment is older than the device's: the device keeps its own",
      );
    }
  } else if (deployed < newest(document.account, job)) {
    throw new ClientError(
      'statement',
      `the server offers a deployment of job ${job} that is older than one the device joined: the device ` +
        'does not join',
    );
  }
}

/**
 * Join a deployment; without effect if the device has already joined it. In jobs that ask at few
 * epochs, the device enrolls at once.
 *
 * @param {Document} document
 * @param {Statement} statement - verified
 * @param {Uint8Array} device - the new id, 16 random bytes
 * @param {Losses} limit
 * @param {number} now
 * @param {boolean} again - true if a user who left the job wants to join again
 * @param {(count: number) => Uint8Array} read - cryptographic randomness
 * @param {Seal | null} seal
 * @param {Record<string, string>} [attributes] - public attributes of the user; by default those of the
 *   present membership. They count from the next horizon on
 * @returns {Promise<Document>}
 */
export async function joined(document, statement, device, limit, now, again, read, seal, attributes) {
  const { job, epochs, text, answers, events } = statement;
  checkNewer(document, statement);
  const member = document.members[job];
  const earlier = member ? readStatement(member.statement) : null;
  const given = events ? publicValues(events, job, attributes ?? member?.public ?? {}) : {};
  const names = Object.keys(given);
  const more = names.length ? { public: given } : {};
  if (member && earlier?.deployment === statement.deployment) {
    const same = names.every((name) => member.public?.[name] === given[name]);
    if (member.statement === text && !member.gone && same) return document;
    return withMember(document, job, { ...member, statement: text, gone: false, ...more });
  }
  if (member === null && !again) {
    throw new ClientError('not-joined', 'the user has left this job. Join again only with the user\'s consent');
  }
  if (entryOf(document.account, statement)) {
    throw new ClientError(
      'statement',
      'the device has already joined and left this deployment: joining again would cost privacy again, so the device ' +
        'waits for another deployment',
    );
  }
  const epoch = Math.max(epochAt(epochs, now), epochs.first);
  if (!hasEpoch(epochs, epoch)) throw new ClientError('closed', `job ${job} has ended`);
  const account = opened(document.account, statement, limit);
  const joined = withMember({ ...document, account }, job, {
    statement: text,
    device: toHex(device),
    epoch: 0,
    horizon: null,
    state: null,
    waiting: [],
    gone: false,
    ...(events ? { history: historyBefore(epoch, statement, earlier, member) } : {}),
    ...more,
  });
  return answers === null ? joined : enrolled(joined, job, epoch, limit, read, seal);
}

/**
 * Return the history of a device that joins at an epoch, with the events of an earlier deployment if
 * it has the same measures and epochs.
 *
 * @param {number} epoch
 * @param {Statement} statement
 * @param {Statement | null} earlier
 * @param {Member | null | undefined} member
 */
function historyBefore(epoch, statement, earlier, member) {
  /** @param {Statement} told */
  const meaning = ({ epochs: { start, months, milliseconds }, events }) => JSON.stringify([start, months, milliseconds, events?.text]);
  const { events } = statement;
  if (!events) return undefined;
  const same = earlier && member?.history && meaning(earlier) === meaning(statement);
  const history = historyOf(events, same ? member.history : null);
  if (history.closed === null || history.closed < epoch - 1) history.close(epoch - 1);
  return history.toJson();
}

/** Return a membership, its statement, events and history; throw if the job has no measures. @param {Document} document @param {string} job */
function eventsOf(document, job) {
  const member = document.members[job];
  if (!member) throw new ClientError('not-joined', `the device has not joined job ${job}: call join first`);
  const statement = readStatement(member.statement);
  const { events } = statement;
  if (!events) throw new ClientError('value', `job ${job} has no measures, so it has no events: pass the value to report`);
  try {
    return { member, statement, events, history: historyOf(events, member.history) };
  } catch {
    throw new ClientError('store', `the recorded events of job ${job} are damaged: leave the job to delete them`);
  }
}

/**
 * Record an event of the user; throw if the job has no measures, or for values that it cannot have.
 *
 * @param {Document} document
 * @param {string} job
 * @param {number} moment - milliseconds since 1970
 * @param {string} event
 * @param {any} columns - as in `columnsOf`
 */
export function recorded(document, job, moment, event, columns) {
  const { member, statement, events, history } = eventsOf(document, job);
  history.record({ epoch: epochAt(statement.epochs, moment), moment: 1000 * moment, event, ...columnsOf(events, job, columns) });
  return withMember(document, job, { ...member, history: history.toJson() });
}

/** Record private attributes as of a moment; see `recorded`. @param {Document} document @param {string} job @param {number} moment @param {Record<string, string>} attributes */
export function labeled(document, job, moment, attributes) {
  const { member, statement, events, history } = eventsOf(document, job);
  const labels = privateLabels(events, job, attributes);
  history.recordLabels({ epoch: epochAt(statement.epochs, moment), moment: 1000 * moment, labels });
  return withMember(document, job, { ...member, history: history.toJson() });
}

/**
 * Return the ended epochs that the device has not reported and that are still accepted, as the first
 * and the last one; throw if the job has ended.
 *
 * @param {Document} document
 * @param {string} job
 * @param {number} now
 */
export function endedEpochs(document, job, now) {
  const { member, statement, history } = eventsOf(document, job);
  const { epochs, late } = statement;
  const last = Math.min(epochAt(epochs, now) - 1, epochs.last ?? Infinity);
  let first = Math.max(member.epoch, history.closed ?? 0, epochs.first - 1) + 1;
  while (first <= last && now >= begins(epochs, first + 1) + 1000 * late) first += 1;
  if (first > last && last === epochs.last) throw new ClientError('closed', `job ${job} has ended`);
  return { first, last: Math.max(last, first - 1) };
}

/**
 * Return the seconds until a random moment in the first half of the time for a report, at most half an
 * epoch after the end of the current one.
 *
 * @param {Statement} statement
 * @param {number} now
 * @param {number} jitter
 */
export function secondsToReport({ epochs, late }, now, jitter) {
  const next = Math.max(epochAt(epochs, now), epochs.first) + 1;
  const spread = Math.min(1000 * late, begins(epochs, next + 1) - begins(epochs, next)) / 2;
  return (begins(epochs, next) - now + jitter * spread) / 1000;
}

/** Delete everything about a job except its account entries. @param {Document} document @param {string} job */
export const left = (document, job) => withMember(document, job, null);

/** Return the membership in the running deployment; throw without one. @param {Document} document @param {string} job */
export function presentMember(document, job) {
  const member = document.members[job];
  if (!member) throw new ClientError('not-joined', `the device has not joined job ${job}: call join first`);
  if (member.gone) {
    throw new ClientError(
      'not-joined',
      `the deployment of job ${job} that the device joined has ended: call join for the next one`,
    );
  }
  return member;
}

/**
 * Return the best estimate of the time, in milliseconds since 1970. The server's time can be false,
 * and the device's can be wrong. Neither costs privacy, but after drawing an epoch a device is absent
 * until the next one. So the server can move a device at most a day ahead of its own clock, unless
 * that clock is certainly wrong.
 *
 * @param {number} own
 * @param {any} server - time in the server's response, if any
 * @param {number} deployed - time of the deployment, signed by the operator
 */
export function corrected(own, server, deployed) {
  const clock = Math.min(Math.max(own, 0), LAST_MOMENT);
  if (!Number.isSafeInteger(server) || server < 0 || server > LAST_MOMENT) return clock;
  if (Math.abs(server - clock) <= CLOCK_TOLERANCE) return clock;
  return clock < deployed - MOST_AHEAD ? server : Math.min(server, clock + MOST_AHEAD);
}

/**
 * Return the epoch to report, `ago` epochs before the current one; throw if the deployment does not
 * have it, or no longer accepts its reports.
 *
 * @param {Statement} statement
 * @param {number} now
 * @param {number} ago
 */
export function reportedEpoch({ job, epochs, late }, now, ago) {
  const epoch = epochAt(epochs, now) - ago;
  if (epoch < epochs.first) throw new ClientError('closed', `job ${job} has not started`);
  if (!hasEpoch(epochs, epoch)) throw new ClientError('closed', `job ${job} has ended`);
  if (ago && now >= begins(epochs, epoch + 1) + 1000 * late) {
    throw new ClientError(
      'closed',
      `job ${job} no longer accepts reports for epoch ${epoch}: the device was absent at that epoch`,
    );
  }
  return epoch;
}

/**
 * Draw, charge and queue the report for an epoch; without effect if it was already drawn. Charge and
 * draw are in one document, so neither is ever stored without the other.
 *
 * @param {Document} document
 * @param {string} job
 * @param {number} epoch
 * @param {number | number[] | null} value - null in jobs with measures: the history closes the epoch and
 *   has its value, and both are in the same document as the draw
 * @param {Losses} limit
 * @param {(count: number) => Uint8Array} read - cryptographic randomness
 * @param {Seal | null} seal
 * @returns {Promise<Document>}
 */
export async function drawn(document, job, epoch, value, limit, read, seal) {
  let member = presentMember(document, job);
  if (epoch <= member.epoch) return document;
  const statement = readStatement(member.statement);
  const { epochs } = statement;
  let kept = {};
  if (statement.events) {
    const { events, history } = eventsOf(document, job);
    if (history.closed !== null && epoch <= history.closed) return document;
    history.close(epoch);
    value = valueOf(events, history, epoch);
    kept = { history: history.toJson() };
  }
  const horizon = horizonOf(epochs, epoch);
  if (epoch < (member.enrolled ?? 0) || horizon < (member.horizon ?? 0)) {
    throw new ClientError('closed', `the device had not joined job ${job} at epoch ${epoch}`);
  }
  if (statement.answers !== null) {
    document = await enrolled(document, job, epoch, limit, read, seal);
    member = presentMember(document, job);
  }
  const { account, fresh } = chargedFor(document, member, statement, epoch, limit);
  let device, content;
  try {
    device = await randomizer(statement);
    if (fresh) drawState(device, statement, member, read);
    else device.restore(member.state);
    content = contentOf(statement, device.report(localEpoch(epochs, epoch), value, read), device);
  } catch {
    // The original message can contain the value.
    throw new ClientError(
      'app',
      `the randomizer of this app cannot report to job ${job}: the app is outdated or the device ` +
        'state is damaged; nothing was sent',
    );
  }
  const waiting = await envelopeOf(member, statement, epoch, content, read, seal, fresh ? 1 : 0);
  return withMember({ ...document, account }, job, {
    ...member,
    epoch,
    horizon,
    state: device.state(),
    waiting: [...member.waiting, waiting].slice(-MOST_WAITING),
    ...kept,
  });
}

/**
 * Draw the state of a horizon, in the device's public group.
 *
 * @param {import('../device.js').Device} device
 * @param {Statement} statement
 * @param {Member} member
 * @param {(count: number) => Uint8Array} read
 */
function drawState(device, { events }, { state, public: attributes = {} }, read) {
  const given = events?.public.length ? { group: groupOf(events, attributes) } : {};
  if (state) device.renew(state, read, given);
  else device.enroll(read, given);
}

/**
 * Draw the state for an epoch's horizon, and queue an enrollment as of that epoch. Until an enrollment
 * of the horizon is acknowledged, each report follows its own: an enrollment has no messages, so
 * repeating it reveals nothing.
 *
 * @param {Document} document
 * @param {string} job
 * @param {number} epoch
 * @param {Losses} limit
 * @param {(count: number) => Uint8Array} read
 * @param {Seal | null} seal
 * @returns {Promise<Document>}
 */
async function enrolled(document, job, epoch, limit, read, seal) {
  const member = presentMember(document, job);
  const statement = readStatement(member.statement);
  const { epochs, slots, width, wordBytes } = statement;
  const horizon = horizonOf(epochs, epoch);
  if (member.enrolled !== undefined && horizonOf(epochs, member.enrolled) === horizon) return document;
  if (member.waiting.some((each) => each.epoch === epoch && enrolls(each))) return document;
  const { account, fresh } = chargedFor(document, member, statement, epoch, limit);
  const content = new Uint8Array(2 + slots * width * wordBytes);
  const waiting = await envelopeOf(member, statement, epoch, content, read, seal, ENROLLMENT);
  let { state } = member;
  if (fresh) {
    const device = await randomizer(statement);
    drawState(device, statement, member, read);
    state = device.state();
  }
  return withMember({ ...document, account }, job, {
    ...member,
    horizon,
    state,
    waiting: [...member.waiting, waiting].slice(-MOST_WAITING),
  });
}

/** Return whether a waiting envelope only enrolls the device. @param {Waiting} waiting */
export const enrolls = ({ body }) => fromBase64(body)[PURPOSE] === ENROLLMENT;

/**
 * Return the charged account, and whether the epoch's horizon has no state yet.
 *
 * @param {Document} document
 * @param {Member} member
 * @param {Statement} statement
 * @param {number} epoch
 * @param {Losses} limit
 */
function chargedFor({ account }, member, statement, epoch, limit) {
  const now = charged(account, statement, chargeIndex(statement, epoch), limit);
  const fresh = horizonOf(statement.epochs, epoch) !== member.horizon;
  if (statement.guarantee.unit === 'stream' && fresh === (now === account)) {
    throw new ClientError(
      'app',
      `the account of job ${statement.job} does not match the saved draws: the device does not report`,
    );
  }
  return { account: now, fresh };
}

/**
 * @param {Member} member
 * @param {Statement} statement
 * @param {number} epoch
 * @param {Uint8Array} content
 * @param {(count: number) => Uint8Array} read
 * @param {Seal | null} seal
 * @param {number} purpose
 * @returns {Promise<Waiting>}
 */
async function envelopeOf(member, statement, epoch, content, read, seal, purpose) {
  const { job, identity } = statement;
  const report = read(IDENTITY_BYTES);
  /** @type {Uint8Array} */
  let keyId = new Uint8Array(8);
  if (statement.seal.length) {
    const key = keyAt(statement, epoch);
    if (!key || !seal) throw new ClientError('app', `job ${job} has no sealing key for epoch ${epoch}`);
    const info = bytesOf(
      utf8('dpstream sealed report\0device\0'),
      identity,
      littleEndian(epoch, 8),
      report,
    );
    ({ box: content, keyId } = await seal(content, key, info));
  }
  const envelope = bytesOf(fromHex(member.device, IDENTITY_BYTES), report, [purpose], content);
  const body = bytesOf(
    utf8('dpsd'),
    [1, statement.seal.length ? 1 : 0],
    littleEndian(envelope.length, 2),
    identity,
    littleEndian(epoch, 8),
    keyId,
    envelope,
  );
  return { epoch, report: toHex(report), body: toBase64(body) };
}

/**
 * Return the content of a report: the number of messages, then the messages, padded with zeros to
 * the size that all reports have.
 *
 * @param {Statement} statement
 * @param {ArrayLike<number | bigint>} words - messages in canonical order
 * @param {{ width: number, wordBytes: number }} device
 */
function contentOf({ slots, width, wordBytes }, words, device) {
  const count = words.length / width;
  if (device.width !== width || device.wordBytes !== wordBytes || count > slots) throw new Error('the messages do not have the format of the statement');
  const content = new Uint8Array(2 + slots * width * wordBytes);
  content.set(littleEndian(count, 2));
  Array.from(words, (word, index) => content.set(littleEndian(Number(word), wordBytes), 2 + index * wordBytes));
  return content;
}

/**
 * Interpret a response to a report. Only a collector's response is final. A response without a
 * collector's problem type can come from any intermediary, so the report is sent again until it is late.
 *
 * @param {number} status
 * @param {any} problem - JSON of the response, if any
 * @returns {{ kind: 'acknowledged' | 'rejected' | 'gone' | 'early' | 'again', others: boolean, begins: number | null }}
 *   `others`: true if other reports can be sent immediately; `begins`: start of an early report's epoch
 */
export function outcomeOf(status, problem) {
  const type = problem?.type;
  const known = typeof type === 'string' && type.startsWith(PROBLEMS);
  const kind = known ? type.slice(PROBLEMS.length) : '';
  const begins = problem?.begins;
  if (status === 202) return { kind: 'acknowledged', others: true, begins: null };
  if (status === 410) return { kind: 'gone', others: false, begins: null };
  if (kind && (REJECTIONS.includes(status) || (status === 409 && ['late', 'fingerprint'].includes(kind)))) {
    return { kind: 'rejected', others: true, begins: null };
  }
  if (status === 409 && kind === 'early' && isCount(begins) && begins <= LAST_MOMENT) {
    return { kind: 'early', others: true, begins };
  }
  return { kind: 'again', others: status === 409 || REJECTIONS.includes(status), begins: null };
}

/**
 * Remove a waiting report, given the kind of its outcome; "again" and "early" keep it.
 *
 * @param {Document} document
 * @param {string} job
 * @param {Waiting} waiting
 * @param {string} kind
 * @returns {Document}
 */
export function settled(document, job, waiting, kind) {
  const member = document.members[job];
  let rest = member?.waiting.filter(({ report }) => report !== waiting.report);
  if (!member || !rest || rest.length === member.waiting.length || ['again', 'early'].includes(kind)) return document;
  const more = kind === 'acknowledged' && enrolls(waiting) ? { enrolled: waiting.epoch } : {};
  if (more.enrolled !== undefined) {
    const { epochs } = readStatement(member.statement);
    const horizon = horizonOf(epochs, waiting.epoch);
    rest = rest.filter((each) => !(enrolls(each) && horizonOf(epochs, each.epoch) === horizon));
  }
  return withMember(document, job, {
    ...member,
    waiting: kind === 'gone' ? [] : rest,
    gone: member.gone || kind === 'gone',
    ...more,
  });
}

/**
 * Return the pause before the next request, in seconds.
 *
 * @param {number} failures - consecutive failures, at least 1
 * @param {number | null} retryAfter - seconds requested by the server
 * @param {number} jitter - independent uniform random number from 0 to 1
 */
export function secondsToWait(failures, retryAfter, jitter) {
  const longest = Math.min(FIRST_WAIT * 2 ** Math.min(failures - 1, 30), LAST_WAIT);
  const asked = Math.min(Math.max(retryAfter ?? 0, 0), LONGEST_WAIT);
  return Math.max(longest * (0.5 + 0.5 * jitter), asked * (1 + 0.1 * jitter));
}

/**
 * Return the wait in seconds before an early report is sent; about a day at most.
 *
 * @param {number} begins - start of its epoch, milliseconds since 1970
 * @param {number} now
 * @param {number} jitter
 */
export const secondsToBegin = (begins, now, jitter) =>
  Math.min(Math.max((begins - now) / 1000, FIRST_WAIT), LONGEST_WAIT) * (1 + 0.1 * jitter);
