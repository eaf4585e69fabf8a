/** Reasons for a device not to report. */
export type ErrorKind =
  /** The server's statement is not trustworthy, or differs from the joined statement. */
  | 'statement'
  /** The cost of the job would exceed the limit of the device's account. */
  | 'limit'
  /** The device has not joined the running deployment of the job: join first. */
  | 'not-joined'
  /** The job has not started or has ended. */
  | 'closed'
  /** The job does not have this value. */
  | 'value'
  /** The stored state cannot be read or written. */
  | 'store'
  /** The server did not answer, or its answer was malformed: try again later. */
  | 'unreachable'
  /** The app or its browser does not support the job. */
  | 'app';

/** An error that the app must handle; nothing was drawn or sent. */
export class ClientError extends Error {
  constructor(kind: ErrorKind, sentence: string);
  readonly kind: ErrorKind;
}

export interface Kept {
  /** Revision of the text; initially 0. */
  revision: number;
  text: string | null;
}

/** A text with a revision; only a caller that read the latest revision can replace it. */
export interface Store {
  read(): Promise<Kept>;
  /** Write the next revision durably; if `revision` is not the latest, write nothing and return false. */
  replace(revision: number, text: string): Promise<boolean>;
}

/** Storage in a browser, where all tabs of an origin are one device. */
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

/** Function that sends a request to a collector, such as an OHTTP client; it rejects without a response. */
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
  /** "stream" (charged once per horizon) or "epoch" (charged at every reported epoch). */
  unit: 'stream' | 'epoch';
  neighbors: string;
  trust: string;
  /** In recurring jobs that ask seldom: the loss for any `epochs` consecutive epochs, forever. */
  rolling?: { epochs: number; epsilon: number };
}

export interface Losses {
  /** Epsilon in units of 10^-9. */
  epsilon: bigint;
  /** Delta in units of 10^-18. */
  delta: bigint;
}

/** Privacy cost of one deployment: the losses of one charge as decimals, and the number of charges. */
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

/** Times of reports: epoch e starts e - 1 epoch lengths after `start`. */
export interface Epochs {
  /** Start of epoch 1, in milliseconds since 1970. */
  start: number;
  /** Number of calendar months in an epoch's length. */
  months: number;
  /** Milliseconds in an epoch's length, in addition to its months. */
  milliseconds: number;
  /** Number of epochs in a horizon. */
  count: number;
  /** First epoch of the deployment. */
  first: number;
  /** Last epoch of the deployment; null if there is no end. */
  last: number | null;
}

/** Values of a job. */
export interface Values {
  /** "value" (yes or no), "items" (an item of a list), "found" (an item of an open domain) or "numbers" (a measured number). */
  kind: 'value' | 'items' | 'found' | 'numbers';
  /** Size of the domain, whose numbers are at least 0 and below this. */
  size: number;
  /** Maximum number of items in a set; null if a value is not a set. */
  slots: number | null;
  /** Labels of the items 1, 2, ...; empty if there are too many to list. */
  labels: string[];
  /** Range of measured numbers; a number outside counts as the nearest number inside. */
  low: number;
  high: number;
  buckets: number;
  /** True if a user can have no measured number. */
  optional: boolean;
}

/** What a device computes from recorded events, in jobs with measures. */
export interface Events {
  /** Measures by name; a device answers one of several questions, drawn at random. */
  questions: { name: string }[];
  /** Public attributes that `join` needs, with their values; other values count as "other". */
  public: { name: string; values: string[] }[];
  /** Private attributes; those with a column are set by `attributes`, or by labels of events. */
  private: { name: string; column: string | null; labels: string[] }[];
}

/** A verified statement and its consequences for a device's account. */
export interface Terms {
  /** The signed statement; `join` joins exactly this one. */
  statement: string;
  job: string;
  population: string;
  /** Time of deployment by the operator, milliseconds since 1970. */
  deployed: number;
  guarantee: Guarantee;
  /** Values of the job; an app can check that it has such values. */
  values: Values;
  epochs: Epochs;
  /** Number of answers in a horizon; null if at all of its epochs. */
  answers: number | null;
  /** True if another horizon follows and is charged. */
  recurring: boolean;
  /** True if collectors cannot read reports. */
  sealed: boolean;
  /** True if collectors require a token. */
  tokens: boolean;
  /** Amount spent so far for the population. */
  spent: Losses;
  limit: Losses;
  /** Number of further charges within the limit; null if unlimited. */
  charges: bigint | null;
  /** Questions that the device answers from recorded events; null if the app passes values. */
  events: Events | null;
  /** All terms as sentences. */
  description: string;
}

export interface Sending {
  /** Number of waiting reports, which are not known to have arrived. */
  waiting: number;
  /** Seconds until the next useful attempt; 0 if no reports are waiting. */
  after: number;
  /** True if the server announced another deployment; call `join` to join it. */
  gone: boolean;
}

export interface Report {
  epoch: number;
  /** False if the report of this or a later epoch was drawn before; that value counts. */
  drawn: boolean;
  sending: Sending;
  /** In jobs with measures: seconds until the app should call `report` again, at a random moment. */
  after?: number;
}

export interface DeviceOptions {
  /** URL of the collector, or of the proxy in front of several collectors; not needed with a transport. */
  url?: string;
  job: string;
  /** The operator's public keys in hexadecimal, built into the app. */
  signers: string | string[];
  /** Maximum total cost of the population's jobs to this device, ever. */
  limit: { epsilon: number; delta?: number };
  /** Population whose budget is charged; by default the job's name, as in job files. */
  population?: string;
  /**
   * Milliseconds since 1970; earlier deployments are not joined. An app built while the job runs sets
   * it to its build time, so that no older statement can be replayed.
   */
  since?: number;
  /**
   * Function that returns the bearer token for the next request, if the operator requires one. If it
   * throws or returns no token, the report is sent later.
   */
  token?: (() => string | null | Promise<string | null>) | null;
  /** Replacement for IndexedDB. */
  store?: Store;
  /** Replacement for `fetch`. */
  transport?: Transport;
  /** Source of cryptographic randomness; replace it only in tests. */
  read?: (count: number) => Uint8Array;
  /** Clock in milliseconds since 1970. */
  now?: () => number;
  /** Monotonic clock in seconds. */
  monotonic?: () => number;
  /** Function that returns a new random number from 0 to 1. */
  jitter?: () => number;
}

/** true or false; a label; a number; or null for no item. For sets, an array or Set of such values. */
export type Value = boolean | string | number | null | (string | number)[] | Set<string | number>;

/** One user's device in one job. Methods reject with a `ClientError`. */
export class Device {
  constructor(options: DeviceOptions);
  readonly job: string;
  /** Return the terms of joining, to show before `join`. Nothing is charged or stored. */
  terms(): Promise<Terms>;
  /**
   * Join the job's running deployment; a device that already joined it sends no request. The cost is
   * charged before this returns: ask the user first. Apps can call it at each start.
   *
   * @param options `Terms` that the user agreed to: exactly these are joined
   * @param options.statement statement from terms, or from a trusted source, such as the app itself;
   *   its signature is not verified
   * @param options.again true if a user who left the job wants to join again
   * @param options.attributes the user's public attributes, such as `{ platform: 'ios' }`, in jobs with
   *   measures by public attributes. They are visible to everyone. A later change counts from the next
   *   horizon on
   */
  join(options?: { statement?: string; again?: boolean; attributes?: Record<string, string> }): Promise<Guarantee>;
  /**
   * Record an event of the user on this device, in jobs with measures. No request is made, and nothing
   * is charged. Reports of later epochs count the event if its epoch is in their window.
   *
   * @param event name of the event
   * @param options.number value of the only column with numbers; likewise `label`
   * @param options.numbers values by column, which are ignored in columns that the job does not use;
   *   likewise `labels`
   * @param options.at time of the event in milliseconds since 1970, not in the future; by default now
   */
  record(
    event?: string,
    options?: { number?: number; label?: string; numbers?: Record<string, number>; labels?: Record<string, string>; at?: number },
  ): Promise<void>;
  /** Set private attributes of the user, such as `{ plan: 'pro' }`, in jobs with measures, from now on or `at` a time. */
  attributes(labels: Record<string, string>, options?: { at?: number }): Promise<void>;
  /**
   * Report the value of an epoch, by default the current one: draw once, store, and send if there is a
   * network. A value that is known only at the end of its epoch, such as whether something happened in
   * a week, is reported afterwards, with `ago` 1. Report the earliest epoch first.
   *
   * In jobs with measures, pass no value: the device reports all ended epochs that are still accepted,
   * each once, from recorded events. Call it on a schedule that does not depend on use of the app, such
   * as `after` seconds after the last report.
   *
   * @param options.ago number of epochs before the current one
   */
  report(value?: Value, options?: { ago?: number }): Promise<Report>;
  /** Send waiting reports unchanged, except during pauses; the next call retries failures. */
  send(): Promise<Sending>;
  /** Send repeatedly until no reports are waiting, or for at most `seconds`. */
  deliver(seconds: number): Promise<Sending>;
  /** Delete state, id and waiting reports, but not the account. */
  leave(): Promise<void>;
  /** Return the device's spent amounts and the app's limit; `text` is a readable summary. */
  account(): Promise<{ spent: Losses; limit: Losses; entries: Entry[]; text: string }>;
}
