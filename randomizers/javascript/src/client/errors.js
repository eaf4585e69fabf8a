/** What can keep a device from reporting; messages say what to do, and name no value. */

/** @typedef {'statement' | 'limit' | 'not-joined' | 'closed' | 'value' | 'store' | 'unreachable' | 'app'} ErrorKind */

/** Something that the app has to know; nothing has been drawn or sent because of it. */
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
