/** Errors that keep a device from reporting. Messages name a remedy and never contain values. */

/** @typedef {'statement' | 'limit' | 'not-joined' | 'closed' | 'value' | 'store' | 'unreachable' | 'app'} ErrorKind */

/** An error that the app must handle; nothing was drawn or sent. */
export class ClientError extends Error {
  name = 'ClientError';

  /**
   * @param {ErrorKind} kind
   * @param {string} sentence
   */
  constructor(kind, sentence) {
    super(sentence);
    this.kind = kind;
  }
}
