/** Durable storage of a device in a browser, shared by all tabs. */

import { ClientError } from './errors.js';

/** @typedef {{ revision: number, text: string | null }} Kept */

const STORE = 'document';

/** A text with a revision; only a caller that read the latest revision can replace it. */
export class IndexedDbStore {
  #name;

  /** @param {string} [name] - name of the database */
  constructor(name = 'dpstream-device') {
    this.#name = name;
  }

  /** @returns {Promise<Kept>} initially revision 0 and null */
  async read() {
    return this.#within('readonly', (store, done) => {
      const asked = store.get(STORE);
      asked.onsuccess = () => done(asked.result ?? { revision: 0, text: null });
    });
  }

  /**
   * Write the next revision durably.
   *
   * @param {number} revision
   * @param {string} text
   * @returns {Promise<boolean>} false, with nothing written, if the revision is no longer the latest
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
   * Run one transaction and wait until it is complete.
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
  new ClientError('store', 'this browser does not store data for this page: the device does not report');
