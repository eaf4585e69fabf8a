import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const run = promisify(execFile);
const OWN = fileURLToPath(new URL('..', import.meta.url));
const npm = await run('npm', ['--version']).then(
  () => true,
  () => false,
);

/** Install the package as apps do: pack it with npm and unpack it into `node_modules`. */
async function installed(context) {
  const folder = await mkdtemp(join(tmpdir(), 'dpstream-'));
  context.after(() => rm(folder, { recursive: true }));
  await run('npm', ['pack', '--silent', '--pack-destination', folder], { cwd: OWN });
  const [tarball] = await readdir(folder);
  const inside = join(folder, 'node_modules', 'dpstream-device');
  await mkdir(inside, { recursive: true });
  await run('tar', ['-xzf', join(folder, tarball), '-C', inside, '--strip-components', '1']);
  return { folder, inside };
}

/** Start a collector that accepts every report of a job of the vectors. */
async function collector(context, told) {
  const taken = [];
  const server = createServer((request, response) => {
    const parts = [];
    request.on('data', (part) => parts.push(part));
    request.on('end', () => {
      const post = request.method === 'POST';
      if (post) taken.push(Buffer.concat(parts));
      response.writeHead(post ? 202 : 200, { 'Content-Type': 'application/json' });
      response.end(post ? '{}' : request.url.endsWith('/time') ? JSON.stringify({ time: told.time }) : told.good);
    });
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  context.after(() => server.close());
  return { url: `http://127.0.0.1:${server.address().port}`, taken };
}

test('the README example runs unchanged with the installed package', { skip: npm ? false : 'needs npm' }, async (context) => {
  const { folder, inside } = await installed(context);
  const page = await readFile(join(inside, 'README.md'), 'utf8');
  const [, example] = /## A complete device[^]*?```js\n([^]*?)```/.exec(page);
  assert.ok(example.split('\n').filter((line) => line.trim()).length <= 10);
  await writeFile(join(folder, 'example.mjs'), example);
  const { signatures } = JSON.parse(await readFile(join(OWN, 'vectors/client/client.json'), 'utf8'));
  const told = JSON.parse(Buffer.from(JSON.parse(signatures.good).statement, 'base64').toString());
  const { url, taken } = await collector(context, { good: signatures.good, time: told.epochs.start });
  const said = [join(folder, 'example.mjs'), url, told.job, signatures.signers.at(-1)];
  const first = await run(process.execPath, said, { cwd: folder });
  assert.match(first.stdout, /^Job logins asks every day, [^]*\nepoch 1: arrived\npopulation logins: epsilon 1 spent, epsilon 4 allowed\n/);
  assert.equal(taken.length, 1);
  await run(process.execPath, said, { cwd: folder });
  assert.equal(taken.length, 1);
});

test('the example with events in the README runs unchanged', { skip: npm ? false : 'needs npm' }, async (context) => {
  const { folder, inside } = await installed(context);
  const page = await readFile(join(inside, 'README.md'), 'utf8');
  const [, example] = /### Events[^]*?```js\n([^]*?)```/.exec(page);
  await writeFile(join(folder, 'example.mjs'), example);
  const { scenarios, signer } = JSON.parse(await readFile(join(OWN, 'vectors/client/client.json'), 'utf8'));
  const { steps, job } = scenarios.find(({ label }) => label === 'client panels');
  const good = steps[0].requests[0].text;
  const told = JSON.parse(Buffer.from(JSON.parse(good).statement, 'base64').toString());
  const server = { good, time: told.epochs.start + 29 * 86_400_000 };
  const { url, taken } = await collector(context, server);
  const said = [join(folder, 'example.mjs'), url, job, signer];
  const first = await run(process.execPath, said, { cwd: folder });
  assert.match(first.stdout, /Whether you used the app in the last 3 days\.[^]*\nepoch 29: nothing new; next report in \d+ s\n/);
  assert.equal(taken.length, 0);
  server.time += 86_400_000;
  const later = await run(process.execPath, said, { cwd: folder });
  assert.match(later.stdout, /\nepoch 30: drawn; next report in \d+ s\n/);
  assert.equal(taken.length, 1);
});

test('all files that the package refers to exist', { skip: npm ? false : 'needs npm' }, async (context) => {
  const { inside } = await installed(context);
  const page = await readFile(join(inside, 'README.md'), 'utf8');
  const links = [...page.matchAll(/\]\(([^)]+)\)/g)].map(([, link]) => link);
  for (const link of links) assert.ok(link.startsWith('#'), link);
  const { exports } = JSON.parse(await readFile(join(inside, 'package.json'), 'utf8'));
  for (const paths of Object.values(exports)) {
    for (const path of Object.values(paths)) assert.ok(existsSync(join(inside, path)), path);
  }
  const mapped = [...page.matchAll(/": "\/node_modules\/(dpstream-device\/[^"]+)"/g)].map(([, path]) => path);
  assert.equal(mapped.length, 1);
  for (const path of mapped) assert.ok(existsSync(join(inside, '..', path)), path);
  const hpke = [...page.matchAll(/": "\/node_modules\/(@hpke\/[^"]+)"/g)].map(([, path]) => path);
  assert.equal(hpke.length, 2);
  if (existsSync(join(OWN, 'node_modules/@hpke'))) {
    for (const path of hpke) assert.ok(existsSync(join(OWN, 'node_modules', path)), path);
  }
});
