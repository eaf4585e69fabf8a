/**
 * Durable storage of a device in Node: a folder with one file, whose name contains its revision.
 *
 * - A hard link creates a revision, and fails if the revision exists.
 * - Afterwards the folder is read again. If there is a later revision, the new one might be void, and
 *   the step is repeated. If the new one was valid, the repeated step has no effect.
 */

// @ts-ignore: of Node
import { randomUUID } from 'node:crypto';
// @ts-ignore: of Node
import { link, mkdir, open, readFile, readdir, unlink } from 'node:fs/promises';
// @ts-ignore: of Node
import { dirname, join, resolve } from 'node:path';

const NAME = /^document\.(\d+)\.json$/;

/** A text with a revision; only a caller that read the latest revision can replace it. */
export class FileStore {
  #folder;

  /** @param {string} folder - created if missing; processes can share it, machines must not */
  constructor(folder) {
    this.#folder = folder;
  }

  /** @returns {Promise<{ revision: number, text: string | null }>} */
  async read() {
    for (;;) {
      const revision = await this.#latest();
      if (!revision) return { revision, text: null };
      try {
        // The writer might not have synced the folder yet, and the next step relies on that.
        await sync(this.#folder);
        return { revision, text: await readFile(this.#path(revision), 'utf8') };
      } catch (error) {
        // A missing file was replaced by a later revision.
        if (/** @type {any} */ (error).code !== 'ENOENT') throw error;
      }
    }
  }

  /**
   * Write the next revision durably.
   *
   * @param {number} revision
   * @param {string} text
   * @returns {Promise<boolean>} false, with nothing written, if the revision is no longer the latest
   */
  async replace(revision, text) {
    const first = await mkdir(this.#folder, { recursive: true, mode: 0o700 });
    for (let made = resolve(this.#folder); first && made.length >= resolve(first).length; made = dirname(made)) {
      await sync(dirname(made));
    }
    const made = join(this.#folder, `${randomUUID()}.new`);
    const file = await open(made, 'wx', 0o600);
    try {
      await file.writeFile(text);
      await file.sync();
    } finally {
      await file.close();
    }
    try {
      await link(made, this.#path(revision + 1));
    } catch (error) {
      if (!['EEXIST', 'ENOENT'].includes(/** @type {any} */ (error).code)) throw error;
      return false;
    } finally {
      await unlink(made).catch(() => {});
    }
    await sync(this.#folder);
    if ((await this.#latest()) !== revision + 1) {
      await unlink(this.#path(revision + 1)).catch(() => {});
      return false;
    }
    // This includes new files of other processes, which read again if they cannot link theirs.
    for (const name of await readdir(this.#folder)) {
      const number = NAME.exec(name)?.[1];
      if (name.endsWith('.new') || (number && Number(number) <= revision)) {
        await unlink(join(this.#folder, name)).catch(() => {});
      }
    }
    return true;
  }

  async #latest() {
    let names;
    try {
      names = await readdir(this.#folder);
    } catch (error) {
      if (/** @type {any} */ (error).code !== 'ENOENT') throw error;
      return 0;
    }
    return Math.max(0, ...names.map((/** @type {string} */ name) => Number(NAME.exec(name)?.[1] ?? 0)));
  }

  /** @param {number} revision */
  #path(revision) {
    return join(this.#folder, `document.${revision}.json`);
  }
}

/** Sync a folder, so that its file names survive a crash. @param {string} path */
async function sync(path) {
  const folder = await open(path, 'r');
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}
