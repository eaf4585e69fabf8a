import type { Kept, Store } from './index.js';

export * from './index.js';

/** What Node keeps: a folder, made if it is missing. Processes share it, machines must not. */
export class FileStore implements Store {
  constructor(folder: string);
  read(): Promise<Kept>;
  replace(revision: number, text: string): Promise<boolean>;
}
