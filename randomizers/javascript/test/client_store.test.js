import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import files, { mkdtemp, readFile, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { syncBuiltinESMExports } from 'node:module';
import { dirname, join } from 'node:path';
import test from 'node:test';
import { promisify } from 'node:util';
import { FileStore } from '../src/client/node.js';

const run = promisify(execFile);

async function folder(context) {
  const made = await mkdtemp(join(tmpdir(), 'dpstream-'));
  context.after(() => rm(made, { recursive: true }));
  return join(made, 'device');
}

test('only a store that has read the latest revision can replace it', async (context) => {
  const path = await folder(context);
  const [one, other] = [new FileStore(path), new FileStore(path)];
  assert.deepEqual(await one.read(), { revision: 0, text: null });
  assert.equal(await one.replace(0, 'first'), true);
  assert.equal(await other.replace(0, 'second'), false);
  assert.deepEqual(await other.read(), { revision: 1, text: 'first' });
  assert.equal(await other.replace(1, 'second'), true);
  assert.equal(await one.replace(1, 'third'), false);
  // Revision 1 no longer exists: a process that read it long ago cannot replace it.
  assert.equal(await one.replace(0, 'fourth'), false);
  assert.deepEqual(await one.read(), { revision: 2, text: 'second' });
  assert.deepEqual(await readdir(path), ['document.2.json']);
  assert.equal((await stat(path)).mode & 0o777, 0o700);
  assert.equal((await stat(join(path, 'document.2.json'))).mode & 0o777, 0o600);
});

test('files of a killed process are ignored and then deleted', async (context) => {
  const path = await folder(context);
  const store = new FileStore(path);
  await store.replace(0, 'first');
  await writeFile(join(path, 'half.new'), 'no document');
  assert.deepEqual(await store.read(), { revision: 1, text: 'first' });
  await store.replace(1, 'second');
  await writeFile(join(path, 'document.1.json'), 'what was linked too late');
  assert.deepEqual(await store.read(), { revision: 2, text: 'second' });
  await store.replace(2, 'third');
  assert.deepEqual(await readdir(path), ['document.3.json']);
});

test('concurrent processes lose no acknowledged write', async (context) => {
  const path = await folder(context);
  const url = new URL('../src/client/node.js', import.meta.url);
  const program = `
    import { FileStore } from ${JSON.stringify(url.href)};
    const store = new FileStore(${JSON.stringify(path)});
    for (let count = 0; count < 40; ) {
      const { revision, text } = await store.read();
      if (await store.replace(revision, (text ?? '') + process.argv[1])) count += 1;
    }`;
  const names = ['a', 'b', 'c'];
  await Promise.all(names.map((name) => run(process.execPath, ['--input-type=module', '-e', program, name])));
  const { revision, text } = await new FileStore(path).read();
  assert.equal(revision, text.length);
  // A write whose acknowledgment was lost is repeated, so a name can occur more often.
  for (const name of names) assert.ok(text.split(name).length - 1 >= 40);
  assert.equal(await readFile(join(path, `document.${revision}.json`), 'utf8'), text);
});

test('a folder is synchronized before its content is used', async (context) => {
  const path = await folder(context);
  const { open } = files;
  const synchronized = [];
  files.open = async (name, ...rest) => {
    const handle = await open(name, ...rest);
    if (rest[0] === 'r') {
      const { sync } = handle;
      handle.sync = () => (synchronized.push(name), sync.call(handle));
    }
    return handle;
  };
  syncBuiltinESMExports();
  context.after(() => {
    files.open = open;
    syncBuiltinESMExports();
  });
  const deep = join(path, 'of', 'app');
  assert.equal(await new FileStore(deep).replace(0, 'first'), true);
  // The parent of every created folder, and then the folder of the revision.
  assert.deepEqual(synchronized, [join(path, 'of'), path, dirname(path), deep]);
  synchronized.length = 0;
  // Another process can have been killed after it created the revision and before it synced.
  assert.equal((await new FileStore(deep).read()).text, 'first');
  assert.deepEqual(synchronized, [deep]);
});
