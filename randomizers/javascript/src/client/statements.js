/** Statements that a job's operator signs for devices: verify, parse and compare them. */

import { parseJson } from '../json.js';
import { float } from '../laws.js';
import { DELTA_DIGITS, EPSILON_DIGITS, amount } from './amounts.js';
import { fromBase64, fromHex, joined, utf8 } from './bytes.js';
import { horizonOf, readEpochs } from './epoch_clock.js';
import { ClientError } from './errors.js';
import { readEvents, sameButForNames } from './events.js';
import { readValues } from './values.js';

const LABEL = utf8('dpstream job description\0');

/** @typedef {ReturnType<typeof read>} Statement */

/**
 * Return the statement in a job description if one of the app's signers signed it; throw otherwise.
 * The key in the description is ignored, because a malicious server could send its own.
 *
 * @param {string} description
 * @param {string[]} signers - Ed25519 public keys in hexadecimal
 * @returns {Promise<string>}
 */
export async function signedStatement(description, signers) {
  let statement, signature;
  try {
    const body = JSON.parse(description);
    [statement, signature] = [fromBase64(body.statement), fromBase64(body.signature)];
  } catch {
    throw new ClientError('statement', "the server's response is not a job description");
  }
  for (const signer of signers) {
    if (await isGood(signature, joined(LABEL, statement), fromHex(signer, 32))) {
      return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(statement);
    }
  }
  throw new ClientError(
    'statement',
    'the job description is not signed by the key built into this app: the server does not belong to ' +
      'the operator, or the operator has a new key and the app is outdated',
  );
}

/** @param {Uint8Array<any>} signature @param {Uint8Array<any>} message @param {Uint8Array<any>} signer */
async function isGood(signature, message, signer) {
  const { subtle } = globalThis.crypto;
  let key;
  try {
    key = await subtle.importKey('raw', signer, 'Ed25519', false, ['verify']);
  } catch {
    throw new ClientError(
      'app',
      'this browser cannot check Ed25519 signatures, which are required to join a job. Use Chrome 137, ' +
        'Firefox 129, Safari 17, Node 20 or later',
    );
  }
  return subtle.verify('Ed25519', key, signature, message);
}

/** @type {Statement | undefined} latest parsed statement, cached because a report needs it often */
let latest;

/**
 * Parse a statement; throw if it is malformed or unsupported.
 *
 * @param {string} text
 * @returns {Statement}
 */
export function readStatement(text) {
  if (latest?.text === text) return latest;
  try {
    return (latest = read(text, parseJson(text)));
  } catch (error) {
    if (error instanceof ClientError) throw error;
    const why = error instanceof Error ? error.message : '';
    throw new ClientError('statement', `the job statement is malformed: ${why}`);
  }
}

/** @param {string} text @param {any} body */
function read(text, body) {
  if (body.version !== 1) {
    throw new ClientError('statement', 'the job statement has another version; this app supports 1. Update the app');
  }
  const { content, guarantee } = body;
  const sizes = [content.slots, content.width, content.word_bytes];
  if (!sizes.every((size) => Number.isSafeInteger(size) && size > 0)) throw new Error(`content sizes are ${sizes}; expected positive integers`);
  if (!['stream', 'epoch'].includes(guarantee.unit)) {
    throw new Error("the unit of the guarantee is unknown; expected 'stream' or 'epoch'");
  }
  if (!/^[a-z0-9][a-z0-9_-]*$/.test(body.job)) throw new Error('the job name is invalid; expected lower-case letters and digits');
  for (const name of [body.job, body.population, body.protocol]) {
    if (typeof name !== 'string') throw new Error("'job', 'population' and 'protocol' must be text");
  }
  if (![body.deployed, body.revision, body.minimum].every((number) => Number.isSafeInteger(number) && number >= 0)) {
    throw new Error("'deployed', 'revision' and 'minimum' must be non-negative integers");
  }
  return {
    text,
    job: /** @type {string} */ (body.job),
    deployment: /** @type {string} */ (body.deployment),
    /** Milliseconds since 1970. */
    deployed: /** @type {number} */ (body.deployed),
    /** Revision of the deployment's statement; the largest is the newest. */
    revision: /** @type {number} */ (body.revision),
    /** Bytes of the deployment's id and fingerprint. */
    identity: joined(fromHex(body.deployment, 16), fromHex(body.fingerprint, 16)),
    protocol: /** @type {string} */ (body.protocol),
    law: body.law,
    values: readValues(body.values),
    slots: sizes[0],
    width: sizes[1],
    wordBytes: sizes[2],
    epochs: readEpochs(body.epochs),
    /** Number of epochs in a horizon at which a device answers; null if at all of them. */
    answers: answersOf(body.epochs),
    recurring: Boolean(body.epochs.renew),
    /** Seconds after the end of an epoch during which its reports are accepted. */
    late: float('late', body.late),
    guarantee,
    epsilon: amount(guarantee.epsilon, EPSILON_DIGITS, true),
    delta: amount(guarantee.delta, DELTA_DIGITS, true),
    rolling: rollingOf(guarantee.rolling),
    population: /** @type {string} */ (body.population),
    minimum: /** @type {number} */ (body.minimum),
    seal: body.seal.map((/** @type {any} */ turn) => ({ ...turn, key: fromHex(turn.key, 32) })),
    tokens: Boolean(body.tokens),
    /** Questions that the device answers from recorded events; null if the app passes values. */
    events: readEvents(body),
  };
}

/**
 * Return the number of consecutive epochs and the epsilon for which the guarantee covers any such
 * epochs, in all horizons together, or null if none is stated.
 *
 * @param {any} rolling
 */
function rollingOf(rolling) {
  if (rolling === undefined) return null;
  const { epochs, epsilon } = rolling;
  if (!(Number.isSafeInteger(epochs) && epochs >= 1)) throw new Error(`'rolling' covers ${epochs} epochs; expected a positive integer`);
  return { epochs: /** @type {number} */ (epochs), epsilon: amount(epsilon, EPSILON_DIGITS, true) };
}

/** @param {any} epochs @returns {number | null} */
function answersOf({ answers = null, count }) {
  if (answers !== null && !(Number.isSafeInteger(answers) && answers >= 1 && answers <= count)) {
    throw new Error(`'answers' is ${answers}; expected at most the horizon's number of epochs`);
  }
  return answers;
}

/**
 * Return whether two statements are the same except for what a revision can change: the last epoch,
 * and the values that spare cells have.
 *
 * @param {Statement} one
 * @param {Statement} other
 */
export function areRevisions(one, other) {
  const bodies = [one, other].map(({ text }) => parseJson(text));
  const [first, second] = bodies.map(({ events, ...body }) => {
    body.revision = body.epochs.last = null;
    return JSON.stringify(body, (_, value) => (typeof value === 'bigint' ? `${value}n` : value));
  });
  const [here, there] = bodies.map(({ events }) => events);
  return first === second && (here && there ? sameButForNames(here, there) : here === there);
}

/**
 * Return the public key for sealing an epoch's report, or undefined without a key.
 *
 * @param {Statement} statement
 * @param {number} epoch
 * @returns {Uint8Array | undefined}
 */
export const keyAt = ({ seal }, epoch) =>
  seal.find((/** @type {any} */ { first, last }) => first <= epoch && (last === null || epoch <= last))?.key;

/** Return the horizon or epoch that is charged for an epoch's report. @param {Statement} statement @param {number} epoch */
export const chargeIndex = ({ guarantee, epochs }, epoch) =>
  guarantee.unit === 'stream' ? horizonOf(epochs, epoch) : epoch;
