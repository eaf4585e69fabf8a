/** Autonomous device: joins a job, draws once, keeps a privacy account, seals and sends. */

export { Device } from './device.js';
export { ClientError } from './errors.js';
export { fetching } from './fetching.js';
export { IndexedDbStore } from './indexed_db_store.js';
