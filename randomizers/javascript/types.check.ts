// Checked by `npm run types`: the declared types match the modules.
import * as untypedClient from './src/client/device.js';
import { Device as Client, type Report } from './src/client/index.js';
import { FileStore } from './src/client/node.js';
import * as untyped from './src/devices.js';
import { createDevice, parseJson, restoreDevice, type Device, type Words } from './src/index.js';

const law = parseJson('{}');
const device: Device = createDevice('value_stream', law);
device.enroll();
const words: Words = device.report(1, [1, 2n]);
const again: Device = restoreDevice('value_stream', law, device.state());
// Classes have all that the types promise.
const promised: Device = untyped.createDevice('value_stream', law);
export const lengths: number[] = [words.length, again.epoch, promised.width];

const client: Client = new Client({ job: 'a', signers: '', limit: { epsilon: 1 }, store: new FileStore('kept') });
export const report: Promise<Report> = client.report([1, 'label']);
export const recorded: Promise<void>[] = [client.record('search', { number: 1, labels: { plan: 'pro' }, at: 0 }), client.attributes({ plan: 'pro' })];
export const reported: Promise<Report> = client.report();
export const promisedClient: Pick<Client, 'job' | 'join' | 'record' | 'attributes' | 'report' | 'send' | 'deliver' | 'leave' | 'account'> =
  new untypedClient.Device({});
