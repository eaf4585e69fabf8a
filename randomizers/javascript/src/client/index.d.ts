/** Reasons for a device not to report. */
export type ErrorKind =
  /** The server's statement about the job is invalid, or differs from the one joined. */
  | 'statement'
  /** The cost of the job would exceed the limit of the device's account. */
  | 'limit'
  /** The device is not in a running deployment of the job: join first. */
  | 'not-joined'
  /** The job has not started, or is over. */
  | 'closed'
  /** The job does not have this value. */
  | 'value'
  /** The stored state cannot be read or written. */
  | 'store'
  /** No answer, or a malformed one: try again later. */
  | 'unreachable'
  /** The app or its browser does not support the job. */
  | 'app';

/** An error that the app must handle; nothing was drawn or sent. */
export class ClientError extends Error {
  constructor(kind: ErrorKind, sentence: string);
  readonly kind: ErrorKind;
}

export interface Kept {
  /** Initially 0. */
  revision: number;
  text: string | null;
}

/** A text with a revision; only a caller that read the latest revision can replace it. */
export interface Store {
  read(): Promise<Kept>;
  /** Write the next revision durably; false, with nothing written, if the revision is not the latest. */
  replace(revision: number, text: string): Promise<boolean>;
}

/** Storage in a browser; all tabs of an origin are one device. */
export class IndexedDbStore implements Store {
  /** @param name name of the database */
  constructor(name?: string);
  read(): Promise<Kept>;
  replace(revision: number, text: string): Promise<boolean>;
}

export interface Answer {
  status: number;
  text: string;
  /** Value of the header `Retry-After`. */
  retryAfter: string | null;
}

/** Function that sends a request to a collector, such as an OHTTP client; rejects without an answer. */
export type Transport = (
  method: string,
  path: string,
  body: Uint8Array | null,
  headers: Record<string, string>,
) => Promise<Answer>;

/** Transport over HTTPS. `timeout` is in seconds; `plain` allows HTTP, if other means protect it. */
export function fetching(url: string, options?: { timeout?: number; plain?: boolean }): Transport;

/** Privacy guarantee of a job, from its statement. */
export interface Guarantee {
  epsilon: number;
  delta: number;
  /** "stream": spent once per horizon; "epoch": spent at every reported epoch. */
  unit: 'stream' | 'epoch';
  neighbors: string;
  trust: string;
}

export interface Losses {
  /** In 10^-9. */
  epsilon: bigint;
  /** In 10^-18. */
  delta: bigint;
}

/** Cost of one deployment: losses of one charge as decimals, and the number of charges. */
export interface Entry {
  population: string;
  job: string;
  deployment: string;
  /** Time of deployment by the operator, milliseconds since 1970. */
  deployed: number;
  unit: string;
  epsilon: string;
  delta: string;
  charges: number;
  last: number;
}

/** Times of reports: epoch e starts e - 1 lengths after `start`, in milliseconds since 1970. */
export interface Epochs {
  start: number;
  /** Calendar months of an epoch's length. */
  months: number;
  /** Milliseconds added to the months. */
  milliseconds: number;
  /** Number of epochs of a horizon. */
  count: number;
  /** First epoch of the deployment. */
  first: number;
  /** Last epoch of the deployment; null without end. */
  last: number | null;
}

/** Values of a job. */
export interface Values {
  /** "value" yes or no; "items" one of a list; "found" one of an open domain; "numbers" a measured number. */
  kind: 'value' | 'items' | 'found' | 'numbers';
  /** Numbers of items are at least 1 and less than this. */
  size: number;
  /** Maximum items of a set; null if a value is not a set. */
  slots: number | null;
  /** Labels of the items 1, 2, ...; empty if too many to list. */
  labels: string[];
  /** Range of measured numbers; a number outside counts as the nearest one inside. */
  low: number;
  high: number;
  buckets: number;
  /** True if the measured number may be absent. */
  optional: boolean;
}

/** A verified statement and its consequences for a device's account. */
export interface Terms {
  /** As signed; `join` joins this one and no other. */
  statement: string;
  job: string;
  population: string;
  /** Time of deployment by the operator, milliseconds since 1970. */
  deployed: number;
  guarantee: Guarantee;
  /** Values that the device reports: an app can check that it has them. */
  values: Values;
  epochs: Epochs;
  /** True if another horizon follows and is charged. */
  recurring: boolean;
  /** True if collectors cannot read reports. */
  sealed: boolean;
  /** True if collectors require a token. */
  tokens: boolean;
  /** Spent so far of the population's budget. */
  spent: Losses;
  limit: Losses;
  /** Number of further charges within the limit; null: any number. */
  charges: bigint | null;
  /** All terms as sentences for people. */
  description: string;
}

export interface Sending {
  /** Number of pending reports, not known to have arrived. */
  waiting: number;
  /** Pause before the next attempt, in seconds. */
  after: number;
  /** True if the server reports the end of the deployment: join another. */
  gone: boolean;
}

export interface Report {
  epoch: number;
  /** False if the epoch's report was drawn before: its first value counts. */
  drawn: boolean;
  sending: Sending;
}

export interface DeviceOptions {
  /** Address of the collector, or of the proxy of several; not needed with a transport. */
  url?: string;
  job: string;
  /** The operator's public keys in hexadecimal, built into the app. */
  signers: string | string[];
  /** Maximum total cost of the population's jobs to this device, ever. */
  limit: { epsilon: number; delta?: number };
  /** Population whose budget is charged; by default the job's name, as in job files. */
  population?: string;
  /**
   * Milliseconds since 1970: older deployments are not joined. An app built while the job runs sets it
   * to that time, so that no older statement can be replayed.
   */
  since?: number;
  /**
   * Returns the bearer token of the next request, if the operator requires one. If it throws or returns
   * none, the report is sent later.
   */
  token?: (() => string | null | Promise<string | null>) | null;
  /** Replacement for IndexedDB. */
  store?: Store;
  /** Replacement for `fetch`. */
  transport?: Transport;
  /** Cryptographic randomness; other sources in tests only. */
  read?: (count: number) => Uint8Array;
  /** Current time, milliseconds since 1970. */
  now?: () => number;
  /** Monotonic time in seconds. */
  monotonic?: () => number;
  /** Random number from 0 to 1, drawn at each call. */
  jitter?: () => number;
}

/** true or false; a label; a number; null for no item. Where users have sets: an array or Set of these. */
export type Value = boolean | string | number | null | (string | number)[] | Set<string | number>;

/** One user's device in one job. Methods reject with a `ClientError`. */
export class Device {
  constructor(options: DeviceOptions);
  readonly job: string;
  /** Return the verified terms of joining, to show before `join`. Nothing is charged or stored. */
  terms(): Promise<Terms>;
  /**
   * Join the job's running deployment; a device that is already in it sends no request. The cost is
   * charged first: ask the user before. Call it at every start of the app.
   *
   * @param options `Terms` that the user agreed to: these are joined, and no others
   * @param options.statement from terms, or from a trusted source, such as the app itself: its
   *   signature is not verified
   * @param options.again true if a user who left the job wants to join again
   */
  join(options?: { statement?: string; again?: boolean }): Promise<Guarantee>;
  /** Report the value of the current epoch: drawn once, stored, and sent if there is a network. */
  report(value: Value): Promise<Report>;
  /** Send pending reports, unchanged, unless the device must pause before the next request. */
  send(): Promise<Sending>;
  /** Send and retry until nothing is pending or the time, in seconds, is over. */
  deliver(seconds: number): Promise<Sending>;
  /** Delete state, id and pending reports, but not the account of what was spent. */
  leave(): Promise<void>;
  /** Return what the device has spent of its limit; `text` is for people. */
  account(): Promise<{ spent: Losses; limit: Losses; entries: Entry[]; text: string }>;
}
