/** A device that takes part by itself: joins a job, draws once, keeps account, seals, sends. */

export { Device } from './device.js';
export { ClientError } from './errors.js';
export { fetching } from './fetching.js';
export { IndexedDbStore } from './indexed_db_store.js';
