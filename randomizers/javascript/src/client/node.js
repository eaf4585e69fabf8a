/** The same for Node, with a folder to keep things in. */

export * from './index.js';
export { FileStore } from './file_store.js';
