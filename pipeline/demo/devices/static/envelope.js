// A request of one device, field by field: see topics/envelopes.py.

const hex = (bytes) => [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');

/** Decode the bytes of a request. Sealed contents stay as they are. */
export function dissect(body) {
  const view = new DataView(body.buffer, body.byteOffset, body.byteLength);
  const size = view.getUint16(6, true);
  const sealed = body[5] === 1;
  const epoch = Number(view.getBigUint64(40, true));
  const envelope = body.subarray(56, 56 + size);
  const content = envelope.subarray(33);
  const words = [];
  if (!sealed) {
    const count = content[0] + 256 * content[1];
    const width = (content.length - 2) / Math.max(1, count);
    for (let index = 0; index < count; index += 1) words.push(content[2 + index * Math.floor(width)]);
  }
  const fields = [
    ['a', 'format', body.subarray(0, 8)],
    ['a', 'job', body.subarray(8, 40)],
    ['b', 'epoch', body.subarray(40, 48)],
    ['a', 'key id', body.subarray(48, 56)],
    ['c', 'random device id', envelope.subarray(0, 16)],
    ['c', 'random report id', envelope.subarray(16, 32)],
    ['d', 'first report?', envelope.subarray(32, 33)],
    ['e', sealed ? 'sealed answer' : 'randomized answer', content],
  ];
  return {
    epoch,
    words,
    report: hex(envelope.subarray(16, 32)),
    fields: fields.map(([kind, name, bytes]) => ({ kind, name, hex: hex(bytes) })),
  };
}
