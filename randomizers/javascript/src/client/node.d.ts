import type { Kept, Store } from './index.js';

export * from './index.js';

/** Storage in a folder, created if missing. Processes can share it, machines must not. */
export class FileStore implements Store {
  constructor(folder: string);
  read(): Promise<Kept>;
  replace(revision: number, text: string): Promise<boolean>;
}
