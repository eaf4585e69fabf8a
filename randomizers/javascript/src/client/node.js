/** The client for Node, with storage in a folder. */

export * from './index.js';
export { FileStore } from './file_store.js';
