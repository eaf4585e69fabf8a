/** What can keep a device from reporting. */
export type ErrorKind =
  /** What the server says of the job cannot be believed, or is not what the device has joined. */
  | 'statement'
  /** The device's own account has no room for what the job would cost. */
  | 'limit'
  /** The device is in no running deployment of the job: join first. */
  | 'not-joined'
  /** The job has not begun, or is over. */
  | 'closed'
  /** The value is none that the job knows. */
  | 'value'
  /** What the device keeps cannot be read or written. */
  | 'store'
  /** Nobody answered, or not in the form that was agreed on: try again later. */
  | 'unreachable'
  /** The app or its browser cannot do what the job needs. */
  | 'app';

/** Something that the app has to know; nothing has been drawn or sent because of it. */
export class ClientError extends Error {
  constructor(kind: ErrorKind, sentence: string);
  readonly kind: ErrorKind;
}

export interface Kept {
  /** 0 at first. */
  revision: number;
  text: string | null;
}

/** A text with a revision, which only whoever has read the latest one can replace. */
export interface Store {
  read(): Promise<Kept>;
  /** Durably write what follows a revision; false, and nothing is written, if there is another. */
  replace(revision: number, text: string): Promise<boolean>;
}

/** What a browser keeps; all tabs of an origin are one device. */
export class IndexedDbStore implements Store {
  /** @param name of the database */
  constructor(name?: string);
  read(): Promise<Kept>;
  replace(revision: number, text: string): Promise<boolean>;
}

export interface Answer {
  status: number;
  text: string;
  /** As the header says it. */
  retryAfter: string | null;
}

/** Whatever brings a request to a collector, an OHTTP client for one; rejects if there is no answer. */
export type Transport = (
  method: string,
  path: string,
  body: Uint8Array | null,
  headers: Record<string, string>,
) => Promise<Answer>;

/** Requests over HTTPS; `timeout` in seconds, `plain` allows HTTP where something else protects it. */
export function fetching(url: string, options?: { timeout?: number; plain?: boolean }): Transport;

/** What a job promises, as its statement says. */
export interface Guarantee {
  epsilon: number;
  delta: number;
  /** "stream": spent once a horizon; "epoch": at every epoch that is reported. */
  unit: 'stream' | 'epoch';
  neighbours: string;
  trust: string;
}

export interface Losses {
  /** In 10^-9. */
  epsilon: bigint;
  /** In 10^-18. */
  delta: bigint;
}

/** What one deployment has cost: losses of one charge as decimals, and how many charges. */
export interface Entry {
  population: string;
  job: string;
  deployment: string;
  /** When the operator deployed it, milliseconds since 1970. */
  deployed: number;
  unit: string;
  epsilon: string;
  delta: string;
  charges: number;
  last: number;
}

/** When a device is asked: epoch e begins e - 1 lengths after the start, in milliseconds since 1970. */
export interface Epochs {
  start: number;
  /** Of a length, whole ones of the calendar. */
  months: number;
  /** Of a length, beside them. */
  milliseconds: number;
  /** Of a horizon. */
  count: number;
  /** Epoch of the deployment. */
  first: number;
  /** Epoch of the deployment; null if it goes on. */
  last: number | null;
}

/** The values of a job. */
export interface Values {
  /** "value" yes or no; "items" one of a list, "found" one that the list is made of; "numbers" a measured number. */
  kind: 'value' | 'items' | 'found' | 'numbers';
  /** Numbers of items are 1 to below this one. */
  size: number;
  /** The most items of a set; null where a value is not a set. */
  slots: number | null;
  /** Of the items 1, 2, ...; empty where they are too many to be told. */
  labels: string[];
  /** Of measured numbers: what lies outside counts as the nearest. */
  low: number;
  high: number;
  buckets: number;
  /** Whether there may be no measured number. */
  optional: boolean;
}

/** A statement that was checked, and what it means for a device's account. */
export interface Terms {
  /** As it was signed: `join` joins this one and no other. */
  statement: string;
  job: string;
  population: string;
  /** When the operator deployed it, milliseconds since 1970. */
  deployed: number;
  guarantee: Guarantee;
  /** What the device is asked for: an app can check that it has such. */
  values: Values;
  epochs: Epochs;
  /** Whether another horizon follows, and is charged for. */
  renews: boolean;
  /** Whether collectors cannot read reports. */
  sealed: boolean;
  /** Whether collectors ask for a token. */
  tokens: boolean;
  /** Of the population's budget so far. */
  spent: Losses;
  limit: Losses;
  /** How many more charges the limit has room for; null: any number. */
  charges: bigint | null;
  /** All of this for people, in sentences. */
  words: string;
}

export interface Sending {
  /** Reports that are not known to have arrived. */
  waiting: number;
  /** Seconds until it makes sense to try again. */
  after: number;
  /** The deployment is said to have ended: join another. */
  gone: boolean;
}

export interface Report {
  epoch: number;
  /** False if the epoch's report had been drawn before: its first value counts. */
  drawn: boolean;
  sending: Sending;
}

export interface DeviceOptions {
  /** Of the collector, or of the proxy before several; not needed with a transport. */
  url?: string;
  job: string;
  /** The operator's public keys in hexadecimal, built into the app. */
  signers: string | string[];
  /** The most that the population's jobs may cost this device, ever. */
  limit: { epsilon: number; delta?: number };
  /** The people whose budget it is; the job's name, unless the job file says. */
  population?: string;
  /**
   * Milliseconds since 1970: deployments from before are not joined. An app that is built when the job
   * runs sets it to then, so that no older statement is brought back.
   */
  since?: number;
  /**
   * The bearer token for the next request, where the operator asks for one. If it throws or returns
   * none, the report is sent later.
   */
  token?: (() => string | null | Promise<string | null>) | null;
  /** In place of IndexedDB. */
  store?: Store;
  /** In place of `fetch`. */
  transport?: Transport;
  /** Cryptographic randomness; anything else in tests only. */
  read?: (count: number) => Uint8Array;
  /** Milliseconds since 1970. */
  now?: () => number;
  /** Seconds that never go back. */
  monotonic?: () => number;
  /** A number from 0 to 1, drawn anew each time. */
  jitter?: () => number;
}

/** true or false; a label; a number; null for no item; where users have sets, an array or Set of such. */
export type Value = boolean | string | number | null | (string | number)[] | Set<string | number>;

/** One user's device in one job. Methods reject with a `ClientError`. */
export class Device {
  constructor(options: DeviceOptions);
  readonly job: string;
  /** What joining would mean, checked; nothing is charged or stored. Show it, and `join` it. */
  terms(): Promise<Terms>;
  /**
   * Be in the job's running deployment; where the device is in it already, nothing is asked. What it
   * costs is charged before this is done: ask the user before. Call it whenever the app starts.
   *
   * @param options `Terms` that the user has agreed to: they are joined, and nothing else
   * @param options.statement that of terms, or one from a safe place, built in for one, which is not checked
   * @param options.again the user, who had left the job, wants to be in it once more
   */
  join(options?: { statement?: string; again?: boolean }): Promise<Guarantee>;
  /** The value of the epoch that runs: drawn once, stored, and sent if there is a network. */
  report(value: Value): Promise<Report>;
  /** Send what waits, unchanged, if the server is not to be left alone for now. */
  send(): Promise<Sending>;
  /** Send, wait and send again until nothing waits or the time, in seconds, is over. */
  deliver(seconds: number): Promise<Sending>;
  /** Forget state, id and what waits, but not what was spent. */
  leave(): Promise<void>;
  /** What the device has spent, of what it is allowed; `text` is for people. */
  account(): Promise<{ spent: Losses; limit: Losses; entries: Entry[]; text: string }>;
}
