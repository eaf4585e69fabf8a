/** Where a browser keeps what the device must not lose; tabs share it. */

import { ClientError } from './errors.js';

/** @typedef {{ revision: number, text: string | null }} Kept */

const STORE = 'document';

/** A text with a revision, which only whoever has read the latest one can replace. */
export class IndexedDbStore {
  #name;

  /** @param {string} [name] - of the database */
  constructor(name = 'dpstream-device') {
    this.#name = name;
  }

  /** @returns {Promise<Kept>} revision 0 and null at first */
  async read() {
    return this.#within('readonly', (store, done) => {
      const asked = store.get(STORE);
      asked.onsuccess = () => done(asked.result ?? { revision: 0, text: null });
    });
  }

  /**
   * Durably write the text that follows a revision.
   *
   * @param {number} revision
   * @param {string} text
   * @returns {Promise<boolean>} false, and nothing is written, if there is another revision by now
   */
  async replace(revision, text) {
    return this.#within('readwrite', (store, done) => {
      const asked = store.get(STORE);
      asked.onsuccess = () => {
        const latest = (asked.result?.revision ?? 0) === revision;
        if (latest) store.put({ revision: revision + 1, text }, STORE);
        done(latest);
      };
    });
  }

  /**
   * One transaction, to its very end.
   *
   * @param {IDBTransactionMode} mode
   * @param {(store: IDBObjectStore, done: (value: any) => void) => void} action
   * @returns {Promise<any>}
   */
  async #within(mode, action) {
    /** @type {IDBDatabase} */
    const database = await new Promise((resolve, reject) => {
      const opening = indexedDB.open(this.#name, 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
      opening.onsuccess = () => resolve(opening.result);
      opening.onerror = () => reject(unusable());
    });
    try {
      return await new Promise((resolve, reject) => {
        /** @type {any} */
        let value;
        const transaction = database.transaction(STORE, mode, { durability: 'strict' });
        transaction.oncomplete = () => resolve(value);
        transaction.onabort = transaction.onerror = () => reject(unusable());
        action(transaction.objectStore(STORE), (/** @type {any} */ done) => (value = done));
      });
    } finally {
      database.close();
    }
  }
}

const unusable = () =>
  new ClientError('store', 'this browser does not keep anything for this page: the device stays silent');
