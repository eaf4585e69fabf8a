/**
 * Where Node keeps what the device must not lose: a folder with one file, whose name ends with its
 * revision. A revision is made by linking, which fails if it is there, and looked at again afterwards:
 * if there is a later one, one's own may count for nothing, and the step is taken anew. Where it did
 * count, that finds nothing left to do.
 */

// @ts-ignore: of Node
import { randomUUID } from 'node:crypto';
// @ts-ignore: of Node
import { link, mkdir, open, readFile, readdir, unlink } from 'node:fs/promises';
// @ts-ignore: of Node
import { dirname, join, resolve } from 'node:path';

const NAME = /^document\.(\d+)\.json$/;

/** A text with a revision, which only whoever has read the latest one can replace. */
export class FileStore {
  #folder;

  /** @param {string} folder - made if it is missing; processes share it, machines must not */
  constructor(folder) {
    this.#folder = folder;
  }

  /** @returns {Promise<{ revision: number, text: string | null }>} */
  async read() {
    for (;;) {
      const revision = await this.#latest();
      if (!revision) return { revision, text: null };
      try {
        // Whoever made it may not have come to this yet, and what follows relies on it.
        await sync(this.#folder);
        return { revision, text: await readFile(this.#path(revision), 'utf8') };
      } catch (error) {
        // A later one has taken its place.
        if (/** @type {any} */ (error).code !== 'ENOENT') throw error;
      }
    }
  }

  /**
   * Durably write the text that follows a revision.
   *
   * @param {number} revision
   * @param {string} text
   * @returns {Promise<boolean>} false, and nothing is written, if there is another revision by now
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
    // Others' new files too: whoever is about to link one reads anew.
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

/** Names in a folder survive whatever happens from now on. @param {string} path */
async function sync(path) {
  const folder = await open(path, 'r');
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}
