/** Random bytes: as many as are asked for. */
export type ReadBytes = (count: number) => Uint8Array;

/** Words as they are sent, ascending; of a report of several words, one after the other. */
export type Words = Uint8Array | Uint16Array | Uint32Array | BigUint64Array;

/** 0 or 1; an item from 1 on, 0 for none; a set of items, for protocols that take sets. */
export type Value = boolean | number | readonly (number | bigint)[];

/** All that a device keeps: JSON values, the same in Python. To be kept secret. */
export interface DeviceState {
  /** The last epoch reported, 0 if none. */
  epoch: number;
  /** By name: numpy's dtype, the shape, and the bytes in base64. */
  arrays: Record<string, { dtype: string; shape: number[]; data: string }>;
}

/** A device of one horizon. */
export interface Device {
  /** The last epoch reported, 0 if none. */
  readonly epoch: number;
  /** The last epoch of the horizon. */
  readonly lastEpoch: number;
  /** Whether it has drawn what is drawn in advance, or has been restored. */
  readonly enrolled: boolean;
  /** Words of a report. */
  readonly width: number;
  /** Bytes of a word. */
  readonly wordBytes: number;
  /** What its reports lose by its law, for a stream or for each epoch. */
  readonly loss: { epsilon: number; delta: number; unit: 'stream' | 'epoch' };
  /** Draw, once and for all, what is drawn in advance. */
  enrol(read?: ReadBytes): void;
  /**
   * What is due at an epoch: later than the last one; a device is silent at those that are left
   * out. Store the state, and what is sent, before it is sent: never report an epoch twice.
   */
  report(epoch: number, value: Value, read?: ReadBytes): Words;
  /** What `restoreDevice` takes, and Python's `OneDevice.restore`. */
  state(): DeviceState;
}

/** A law, a state or a value is not what it has to be; the message is a sentence. */
export class DeviceError extends Error {}

/** The names of the protocols that a device can run by itself. */
export const PROTOCOLS: readonly string[];

/**
 * A device that has drawn nothing yet.
 *
 * @param law the constants of the job, as `parseJson` reads them
 * @throws DeviceError there is no such protocol, or this is no law of it
 */
export function createDevice(protocol: string, law: unknown): Device;

/**
 * A device as it was: drawing again would spend the privacy loss again.
 *
 * @throws DeviceError as above, or the state is none of such a device
 */
export function restoreDevice(protocol: string, law: unknown, state: unknown): Device;

/** As `JSON.parse`, with whole numbers beyond 2^53 as BigInts: laws have some. */
export function parseJson(text: string): any;

/** Random bytes of WebCrypto: what devices draw from unless a test says otherwise. */
export function systemRandom(count: number): Uint8Array;
