"""Test tables in two shares: their sum is the table, and a single share is uniform."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from dpstream.topics.fixed_sizes import table_cells
from dpstream.topics.frames import RECORD_TARGET, CodecError
from dpstream.topics.message_formats import MessageFormat
from dpstream.topics.messages import MessageArray
from dpstream.topics.sealing import Lock, sealing_context, unseal_all
from dpstream.topics.shares import (
    MOST_SHARED,
    Counts,
    PartialSum,
    ShareFormat,
    ShareSum,
    ciphertexts_of,
    expand,
    joined_sums,
    share_table,
    table_of,
)

KEYS = [X25519PrivateKey.from_private_bytes(bytes([number] * 32)) for number in (1, 2)]
CONTEXTS = [sealing_context(name, bytes(16), bytes(16), 7) for name in ("a", "b")]
FIRST, SECOND = (
    Lock(key.public_key().public_bytes_raw(), context)
    for key, context in zip(KEYS, CONTEXTS, strict=True)
)
SMALL = ShareFormat(3)

# The table 1, 2, 2^32 - 1 of 5 devices, with the IDs and seeds of `numbered`.
ROW = (
    "51bd319728d64b78f5d2cd29e16b32f8388e788252f343f5ba1c23155defe8125f56aaeb8660e73dafdcf307a7ad"
    "0845627260856d95efd74b646c5ca85031ca668843d316c378cdc6405a7160a9113a695230d6a060bf9ae60379f9"
    "21666e339a20f24388c1f1038d2950d311cc6f018d110a92a24cc8758aa12c70049025f249710d81d1c45540c310"
    "2e348cacdc4f4976e65baa08ac3b324537239947f809b938105caaa28abbec95629959da6ff661b9d3f84a096b43"
    "48704d34660f7643"
)


def numbered() -> Callable[[int], bytes]:
    numbers = count(1)
    return lambda size: next(numbers).to_bytes(size, "big")


def opened(rows: MessageArray, party: int) -> list[bytes | None]:
    return unseal_all(ciphertexts_of(rows, party), KEYS[party], CONTEXTS[party])


def added(form: ShareFormat, *tables: MessageArray) -> tuple[ShareSum, ShareSum]:
    sums = ShareSum.empty(form, 0), ShareSum.empty(form, 1)
    for rows in tables:
        for party, total in enumerate(sums):
            total.add(opened(rows, party))
    return sums


def shared(table: list[int], contributors: int = 1) -> MessageArray:
    counts = np.array(table, "<u4")
    form = ShareFormat(len(table))
    return share_table(counts, contributors, form, (FIRST, SECOND), secrets.token_bytes)


def read(form: ShareFormat, total: ShareSum) -> PartialSum:
    return PartialSum.from_bytes(form, total.to_bytes())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3), max_size=4))
def test_sum_of_all_shares_is_the_sum_of_tables_modulo_two_to_the_32(
    tables: list[list[int]],
) -> None:
    first, second = added(SMALL, *map(shared, tables))
    sums = joined_sums(read(SMALL, first), read(SMALL, second), SMALL)
    assert sums.tolist() == [sum(column) % 2**32 for column in zip(*tables, strict=True)] or (
        not tables and not sums.any()
    )


def test_counts_above_two_to_the_31_are_added_without_overflow() -> None:
    first, second = added(SMALL, shared([2**31, 2**32 - 2, 0]), shared([2**31 - 1, 1, 2**31]))
    sums = joined_sums(read(SMALL, first), read(SMALL, second), SMALL)
    assert sums.tolist() == [2**32 - 1, 2**32 - 1, 2**31]


def test_share_is_independent_of_the_table() -> None:
    for value in (0, 1, 2**31):
        cells = 20_000
        rows = shared([value] * cells)
        content = opened(rows, 1)[0]
        assert content is not None
        share = np.frombuffer(content[24:], "<u4")
        for bit in range(32):
            ones = int(np.count_nonzero(share >> np.uint32(bit) & np.uint32(1)))
            # Seven standard deviations from one half: exceeded with probability 1 in 4 * 10^11.
            assert abs(ones - len(share) / 2) < 3.5 * len(share) ** 0.5


def test_seed_expansion_is_aes_256_in_counter_mode() -> None:
    """Known answers for blocks 0 and 1 under a zero key: NIST's AESAVS, and GCM's test case 13."""
    blocks = "dc95c078a2408989ad48a21492842087", "530f8afbc74536b9a963b4f1c4cb738b"
    assert expand(bytes(32), 8).tobytes().hex() == "".join(blocks)


def test_seeds_and_share_ids_are_never_reused() -> None:
    form = ShareFormat(40_000)
    drawn: list[bytes] = []

    def draw(size: int) -> bytes:
        drawn.append(secrets.token_bytes(size))
        return drawn[-1]

    rows = share_table(np.zeros(40_000, "<u4"), 1, form, (FIRST, SECOND), draw)
    seeds = {each[24:] for each in opened(rows, 0) if each is not None}
    names = {each[:16] for each in opened(rows, 0) if each is not None}
    differences = {each[24:] for each in opened(rows, 1) if each is not None}
    assert len(seeds) == len(names) == len(differences) == form.chunks == 3
    assert seeds | names == set(drawn)


@pytest.mark.parametrize(
    ("cells", "chunks", "chunk_cells"),
    [
        (1, 1, 2),
        (2, 1, 2),
        (3, 1, 4),
        (16_308, 1, 16_308),
        (16_309, 2, 8_156),
        (2**22, 258, 16_258),
    ],
)
def test_tables_are_cut_into_rows_that_fit_a_record(
    cells: int, chunks: int, chunk_cells: int
) -> None:
    form = ShareFormat(cells)
    assert (form.chunks, form.chunk_cells) == (chunks, chunk_cells)
    assert form.row_format.report_bytes == 176 + 4 * chunk_cells <= RECORD_TARGET - 128
    table = np.arange(cells, dtype="<u4")
    assert (form.joined(form.cut(table)) == table).all()


def test_nonzero_counts_after_the_last_cell_are_rejected() -> None:
    chunks = SMALL.cut(np.zeros(3, "<u4"))
    chunks[0, 3] = 1
    with pytest.raises(CodecError, match="counts beyond the 3 cells of a table are not 0"):
        SMALL.joined(chunks)


@pytest.mark.parametrize("cells", [0, MOST_SHARED + 1])
def test_table_sizes_out_of_range_are_rejected(cells: int) -> None:
    with pytest.raises(ValueError, match="cells; expected 1 to 4,194,304"):
        ShareFormat(cells)


def test_only_small_message_formats_fit_in_a_table() -> None:
    assert table_cells(MessageFormat(np.dtype("u1"))) == 256
    assert table_cells(MessageFormat(np.dtype("<u2"), distinct=300)) == 300
    assert table_cells(MessageFormat(np.dtype("<u4"))) is None
    assert table_cells(MessageFormat(np.dtype("u1"), 2)) is None


def test_plain_and_counted_messages_give_the_same_table() -> None:
    words = np.array([[1], [2]], "<u2")
    assert table_of(words, np.array([5, 2**32 - 1], "<u4"), 3).tolist() == [0, 5, 2**32 - 1]
    assert table_of(np.repeat(words, [5, 2], 0), None, 3).tolist() == [0, 5, 2]
    with pytest.raises(CodecError, match=r"occurs 4,294,967,296 times; .* at most 4,294,967,295"):
        table_of(words[[0, 1, 1]], np.array([5, 1, 2**32 - 1], "<u8"), 3)


def test_repeated_share_is_counted_once_by_both_aggregators() -> None:
    rows = shared([1, 2, 3], contributors=4)
    first, second = added(SMALL, rows, rows)
    assert first.contributors == second.contributors == [4]
    sums = joined_sums(read(SMALL, first), read(SMALL, second), SMALL)
    assert sums.tolist() == [1, 2, 3]
    assert len(first.seen) == 1


def test_digest_of_shares_is_independent_of_their_order() -> None:
    tables = [shared([1, 2, 3]), shared([4, 5, 6])]
    first, _ = added(SMALL, *tables)
    _, second = added(SMALL, *reversed(tables))
    assert read(SMALL, first).digest == read(SMALL, second).digest
    alone, _ = added(SMALL, tables[0])
    assert read(SMALL, alone).digest != read(SMALL, first).digest


def test_invalid_shares_are_counted_and_skipped() -> None:
    total = ShareSum.empty(SMALL, 0)
    header = bytes(16) + np.array([1, 1], "<u4").tobytes()
    total.add([None, b"", header + bytes(32), header + bytes(31)])
    assert (total.closed, total.seen, total.contributors) == (4, {}, [0])
    assert not total.chunks.any()


def test_suppressed_sum_is_not_serialized() -> None:
    first, _ = added(SMALL, shared([1, 2, 3], contributors=4))
    assert first.of_fewer_than(5)
    assert not first.of_fewer_than(4)
    found = PartialSum.from_bytes(SMALL, first.to_bytes(suppressed=True))
    assert (found.chunks, found.contributors, found.shares) == (None, (4,), 1)
    with pytest.raises(CodecError, match="partial sum has 57 bytes; expected 56 or 72"):
        PartialSum.from_bytes(SMALL, first.to_bytes(suppressed=True) + b"\0")


class TestGolden:
    def test_golden_row_decrypts_to_its_shares(self) -> None:
        rows = np.frombuffer(bytes.fromhex(ROW), "<u8")[None, :]
        assert rows.shape[1] == SMALL.row_format.width
        header = (1).to_bytes(16, "big") + np.array([0, 5], "<u4").tobytes()
        seed = (2).to_bytes(32, "big")
        difference = np.array([1, 2, 2**32 - 1, 0], "<u4") - expand(seed, 4)
        assert opened(rows, 0) == [header + seed]
        assert opened(rows, 1) == [header + difference.tobytes()]

    def test_rows_match_the_golden_row(self) -> None:
        table: Counts = np.array([1, 2, 2**32 - 1], "<u4")
        rows = share_table(table, 5, SMALL, (FIRST, SECOND), numbered())
        before = np.frombuffer(bytes.fromhex(ROW), "<u8")[None, :]
        for party in range(2):
            assert opened(rows, party) == opened(before, party)

    def test_partials_match_the_golden_bytes(self) -> None:
        rows = np.frombuffer(bytes.fromhex(ROW), "<u8")[None, :]
        for party, total in enumerate(added(SMALL, rows)):
            header = (1).to_bytes(16, "big") + np.array([0, 5], "<u4").tobytes()
            numbers = np.array([1, 0, 5], "<u8").tobytes()
            share = expand((2).to_bytes(32, "big"), 4)
            if party:
                share = np.array([1, 2, 2**32 - 1, 0], "<u4") - share
            digest = hashlib.sha256(header).digest()
            assert total.to_bytes() == digest + numbers + share.tobytes()
