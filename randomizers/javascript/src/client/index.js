/** Client of one device: join jobs, randomize once per epoch, account for privacy, seal and send. */

export { Device } from './device.js';
export { ClientError } from './errors.js';
export { fetching } from './fetching.js';
export { IndexedDbStore } from './indexed_db_store.js';
