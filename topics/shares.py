"""Tables of counts in two shares, each of which alone is pseudorandom.

A producer's table for an epoch (counts of all messages modulo 2^32) is cut into chunks. For each
chunk party 0 receives a fresh random seed. Party 1 receives the chunk minus the seed's expansion by
AES-256 in counter mode. For any table, the seed is uniform and the other share is pseudorandom:
without the seed, it cannot be distinguished from uniform numbers if AES-256 is a pseudorandom
function. Shares of many tables sum, modulo 2^32, to shares of the tables' sum. (This is additive
secret sharing over the integers modulo 2^32, with one share compressed to a seed.)

A chunk is sent as a row of 8-byte integers: a ciphertext for party 0, then one for party 1. Both
contain the same ID, unique to the chunk. All rows of a job have one size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from dpstream.topics.frames import PAYLOAD_TARGET, U4_MAX, CodecError, check_range
from dpstream.topics.message_formats import MessageFormat
from dpstream.topics.messages import MessageArray
from dpstream.topics.sealing import CIPHERTEXT_BYTES, Lock, seal

Counts = NDArray[np.uint32]

SEED_BYTES: Final = 32
"""Bytes of an AES-256 key, which is used for one chunk only."""
MOST_ALIKE: Final = U4_MAX
"""Maximum number of equal reports in a window: sums are modulo `MOST_ALIKE` + 1."""
MOST_SHARED: Final = 1 << 22
"""Maximum number of cells of a shared table: 16 MiB per producer and epoch."""

_WORD: Final = np.dtype("<u8")
_COUNT: Final = np.dtype("<u4")
_ID_BYTES = 16
_HEADER_BYTES = _ID_BYTES + 2 * _COUNT.itemsize
_FIRST_CIPHERTEXT = CIPHERTEXT_BYTES + _HEADER_BYTES + SEED_BYTES
_AROUND_COUNTS = _FIRST_CIPHERTEXT + CIPHERTEXT_BYTES + _HEADER_BYTES
_CELLS_OF_A_ROW = (PAYLOAD_TARGET - _AROUND_COUNTS) // _WORD.itemsize * 2


@dataclass(frozen=True, slots=True)
class ShareFormat:
    """Layout of the chunks of tables with `cells` cells, 1 to `MOST_SHARED`.

    >>> form = ShareFormat(40_000)
    >>> form.chunks, form.chunk_cells, form.row_format.report_bytes
    (3, 13334, 53512)
    """

    cells: int

    def __post_init__(self) -> None:
        if not 1 <= self.cells <= MOST_SHARED:
            raise ValueError(
                f"shared tables have {self.cells:,} cells; expected 1 to {MOST_SHARED:,}"
            )

    @property
    def chunks(self) -> int:
        return -(-self.cells // _CELLS_OF_A_ROW)

    @property
    def chunk_cells(self) -> int:
        """Number of cells of a chunk; those beyond the table are always 0."""
        even = -(-self.cells // (2 * self.chunks))
        return 2 * even

    @property
    def row_format(self) -> MessageFormat:
        size = _AROUND_COUNTS + self.chunk_cells * _COUNT.itemsize
        return MessageFormat(_WORD, size // _WORD.itemsize)

    def cut(self, table: Counts) -> NDArray[np.uint32]:
        padded = np.zeros(self.chunks * self.chunk_cells, _COUNT)
        padded[: self.cells] = table
        return padded.reshape(self.chunks, self.chunk_cells)

    def joined(self, chunks: NDArray[np.uint32]) -> Counts:
        """Join the chunks of a table; raise `CodecError` for counts beyond its cells."""
        padded = chunks.reshape(-1)
        if padded[self.cells :].any():
            raise CodecError(f"counts beyond the {self.cells} cells of a table are not 0")
        return padded[: self.cells]


def expand(seed: bytes, cells: int) -> Counts:
    """Return pseudorandom numbers modulo 2^32: AES-256-CTR under a seed, from counter 0.

    >>> expand(bytes(32), 2).tolist()
    [2025887196, 2307473570]
    """
    stream = Cipher(AES(seed), CTR(bytes(16))).encryptor().update(bytes(cells * _COUNT.itemsize))
    return np.frombuffer(stream, _COUNT)


def share_table(
    table: Counts,
    contributors: int,
    form: ShareFormat,
    locks: tuple[Lock, Lock],
    secret_bytes: Callable[[int], bytes],
) -> MessageArray:
    """Split a table into shares for two parties: one row of ciphertexts per chunk, sorted.

    `table` is uint32, shape (form.cells,); `contributors` is below 2^32. The first of `locks` is
    that of the party that receives seeds. `secret_bytes` draws from the operating system's
    generator.
    """
    ciphertexts = []
    for index, chunk in enumerate(form.cut(table)):
        about = np.array([index, contributors], _COUNT).tobytes()
        header, seed = secret_bytes(_ID_BYTES) + about, secret_bytes(SEED_BYTES)
        difference = chunk - expand(seed, form.chunk_cells)
        first, second = locks
        ciphertexts.append(seal(header + seed, first) + seal(header + difference.tobytes(), second))
    return np.frombuffer(b"".join(sorted(ciphertexts)), _WORD).reshape(
        len(ciphertexts), form.row_format.width
    )


def ciphertexts_of(rows: MessageArray, party: int) -> list[bytes]:
    part = slice(0, _FIRST_CIPHERTEXT) if party == 0 else slice(_FIRST_CIPHERTEXT, None)
    return [row.tobytes()[part] for row in rows]


@dataclass(slots=True)
class ShareSum:
    """One party's sum of the shares of a window.

    Attributes:
        party: 0 for the party that receives seeds, otherwise 1.
        chunks: Sum of the shares, modulo 2^32, shape (form.chunks, form.chunk_cells).
        contributors: Number of devices in the summed shares, by chunk.
        seen: Chunk index and device count of every summed share, by share ID.
        closed: Number of ciphertexts that did not decrypt, or did not contain a share.
    """

    form: ShareFormat
    party: int
    chunks: NDArray[np.uint32]
    contributors: list[int]
    seen: dict[bytes, bytes] = field(default_factory=dict)
    closed: int = 0

    @classmethod
    def empty(cls, form: ShareFormat, party: int) -> ShareSum:
        chunks = np.zeros((form.chunks, form.chunk_cells), _COUNT)
        return cls(form, party, chunks, [0] * form.chunks)

    def add(self, contents: Iterable[bytes | None]) -> None:
        """Add decrypted shares; duplicates count once, None marks a failed decryption."""
        size = self.form.chunk_cells * _COUNT.itemsize if self.party else SEED_BYTES
        for content in contents:
            if content is None or len(content) != _HEADER_BYTES + size:
                self.closed += 1
                continue
            name, about = content[:_ID_BYTES], content[_ID_BYTES:_HEADER_BYTES]
            index, contributors = np.frombuffer(about, _COUNT).tolist()
            if index >= self.form.chunks:
                self.closed += 1
                continue
            if name in self.seen:
                continue
            self.seen[name] = about
            self.contributors[index] += contributors
            share = content[_HEADER_BYTES:]
            self.chunks[index] += (
                np.frombuffer(share, _COUNT) if self.party else expand(share, len(self.chunks[0]))
            )

    def with_table(self, table: Counts) -> ShareSum:
        return replace(self, chunks=self.chunks + self.form.cut(table))

    def of_fewer_than(self, devices: int) -> bool:
        return min(self.contributors) < devices

    def to_bytes(self, *, suppressed: bool = False) -> bytes:
        """Serialize this party's partial: a summary and, unless `suppressed`, the sum itself."""
        digest = hashlib.sha256(b"".join(sorted(n + a for n, a in self.seen.items()))).digest()
        numbers = np.array([len(self.seen), self.closed, *self.contributors], _WORD)
        return digest + numbers.tobytes() + (b"" if suppressed else self.chunks.tobytes())


@dataclass(frozen=True, slots=True, eq=False)
class PartialSum:
    """The decoded partial of a party: see `ShareSum`.

    `digest` is the SHA-256 of the IDs, chunks and devices of all summed shares, sorted. `chunks` is
    None if the party suppressed the sum because it had too few devices.
    """

    digest: bytes
    shares: int
    closed: int
    contributors: tuple[int, ...]
    chunks: NDArray[np.uint32] | None

    @classmethod
    def from_bytes(cls, form: ShareFormat, data: bytes) -> PartialSum:
        begin = 32 + (2 + form.chunks) * _WORD.itemsize
        table = form.chunks * form.chunk_cells * _COUNT.itemsize
        if len(data) not in (begin, begin + table):
            raise CodecError(
                f"partial sum has {len(data)} bytes; expected {begin} or {begin + table}"
            )
        shares, closed, *contributors = np.frombuffer(data[32:begin], _WORD).tolist()
        check_range("shares", shares, 0)
        chunks = None
        if len(data) > begin:
            chunks = np.frombuffer(data[begin:], _COUNT).reshape(form.chunks, form.chunk_cells)
        return cls(data[:32], shares, closed, tuple(contributors), chunks)


def joined_sums(first: PartialSum, second: PartialSum, form: ShareFormat) -> Counts:
    """Return the sum of all tables, modulo 2^32, from both parties' sums; both must be present."""
    assert first.chunks is not None
    assert second.chunks is not None
    return form.joined(first.chunks + second.chunks)


def table_of(
    values: MessageArray, counts: NDArray[np.unsignedinteger] | None, cells: int
) -> Counts:
    """Count messages, shape (n, 1), in a table, shape (cells,).

    Raises `CodecError` if a count exceeds `MOST_ALIKE`.

    >>> table_of(np.array([[3], [1], [3]], np.uint8), None, 4).tolist()
    [0, 1, 0, 2]
    """
    words = values[:, 0].astype(np.intp)
    if counts is None:
        table = np.bincount(words, minlength=cells)
    else:
        table = np.zeros(cells, np.int64)
        np.add.at(table, words, counts.astype(np.int64))
    if len(table) and int(table.max()) > MOST_ALIKE:
        raise CodecError(
            f"a message occurs {int(table.max()):,} times; a table split into shares allows at "
            f"most {MOST_ALIKE:,}"
        )
    return table.astype(_COUNT)
