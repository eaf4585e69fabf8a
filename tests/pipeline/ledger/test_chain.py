"""Test that the hash chain is a pure function of the log, for any writers and tampering."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpstream.pipeline.jobs.budgets import Charge
from dpstream.pipeline.ledger.chain import Chain, ChainProblem
from dpstream.pipeline.ledger.entries import GENESIS, Draft, EntryKind, hash_of, read_entry
from dpstream.pipeline.ledger.spending import Presence, Spending
from dpstream.pipeline.ledger.writing import Writing, writing
from dpstream.topics.frames import CodecError
from dpstream.topics.manifests import Manifest, WindowStatus


def charge(number: int, epsilon: float = 1.0) -> Charge:
    return Charge("students", f"job-{number}", f"{number:032x}", epsilon, 0.0, number)


def draft(number: int) -> Draft:
    return Draft(EntryKind.CHARGE, number, (charge(number),), facts={"protocol": "future_rand"})


def chain_of(records: list[bytes], first: int = 0) -> Chain:
    chain = Chain()
    for offset, record in enumerate(records, first):
        chain.apply(offset, record, written=offset)
    return chain


def log_of(entries: int) -> list[bytes]:
    records: list[bytes] = []
    previous = GENESIS
    for number in range(entries):
        records.append(draft(number).under(previous, nonce=f"{number}", software="1"))
        previous = hash_of(records[-1])
    return records


def charged(chain: Chain) -> list[int]:
    return [each.at for entry in chain.entries for each in entry.draft.charges]


def problems(chain: Chain) -> list[ChainProblem]:
    return [each.problem for each in chain.oddities]


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"previous": "0" * 63},
        {"previous": None},
        {"at": -1},
        {"at": 1.5},
        {"kind": ""},
        {"charges": {}},
        {"charges": [{}]},
        {"charges": [4]},
        {"budgets": [{}]},
    ],
)
def test_invalid_ledger_entries_are_rejected(change: dict[str, object]) -> None:
    body = json.loads(draft(1).under(GENESIS, nonce="n", software="9")) | change
    record = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    with pytest.raises(CodecError):
        read_entry(record)


def test_noncanonical_encodings_of_an_entry_are_rejected() -> None:
    record = draft(1).under(GENESIS, nonce="n", software="9")
    for other in (record + b" ", record.replace(b":", b": ", 1), b"", b"[]", b"[" * 9_999, b"\xff"):
        with pytest.raises(CodecError):
            read_entry(other)


def test_chain_accepts_entries_from_first_to_last() -> None:
    records = log_of(5)
    chain = chain_of(records)
    assert charged(chain) == [0, 1, 2, 3, 4]
    assert (chain.head, chain.oddities, chain.next) == (hash_of(records[-1]), [], 5)


def test_entry_that_lost_a_race_is_void_but_not_reported() -> None:
    first, *_ = records = log_of(1)
    one, other = (draft(number).under(hash_of(first), nonce="n", software="1") for number in (7, 8))
    chain = chain_of([*records, one, other])
    assert charged(chain) == [0, 7]
    assert chain.oddities == []
    retried = draft(8).under(chain.head, nonce="m", software="1")
    assert charged(chain_of([*records, one, other, retried])) == [0, 7, 8]


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_interleaved_writers_produce_a_single_chain(
    data: st.DataObject,
) -> None:
    log: list[bytes] = []
    nonces = (f"{number}" for number in count())

    def begin(writer: int) -> Writing:
        def entry_for(state: Spending) -> Draft | None:
            known = state.written_charges
            mine = (2 * writer, 2 * writer + 1)
            return next((draft(n) for n in mine if charge(n).deployment not in known), None)

        return writing(entry_for, lambda: next(nonces), "1")

    writers = {writer: begin(writer) for writer in range(data.draw(st.integers(1, 4)))}
    requested = {writer: next(steps) for writer, steps in writers.items()}
    acknowledged: set[int] = set()
    deaths = data.draw(st.integers(0, 3))
    while writers:
        writer = data.draw(st.sampled_from(sorted(writers)))
        if deaths and data.draw(st.booleans()):
            deaths -= 1
            record = requested[writer]
            # The record in flight might have been stored or not.
            if record is not None and data.draw(st.booleans()):
                log.append(record)
            writers[writer] = begin(writer)
            requested[writer] = next(writers[writer])
            continue
        try:
            record = requested[writer]
            if record is None:
                state = Spending(chain=chain_of(list(log)))
                requested[writer] = writers[writer].send(state)
            else:
                log.append(record)
                requested[writer] = next(writers[writer])
        except StopIteration:
            acknowledged |= {2 * writer, 2 * writer + 1}
            del writers[writer]
            chain = chain_of(log)
            assert acknowledged <= set(charged(chain)), "an acknowledged charge is never lost"
    chain = chain_of(log)
    assert sorted(charged(chain)) == sorted(acknowledged), "each charge exactly once"
    assert chain.oddities == [], "honest writers cause no problems"


def flipped(records: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Yield, for each record but the last, the log with one digit of its time or nonce changed."""
    for place, record in enumerate(records[:-1]):
        for key in (b'"at":', b'"nonce":"'):
            at = record.index(key) + len(key)
            other = record[:at] + (b"9" if record[at : at + 1] != b"9" else b"8") + record[at + 1 :]
            yield place, [*records[:place], other, *records[place + 1 :]]


def test_edited_byte_is_detected_at_the_next_record() -> None:
    records = log_of(5)
    for place, changed in flipped(records):
        chain = chain_of(changed)
        assert chain.oddities[0].problem is ChainProblem.UNCHAINED
        assert chain.oddities[0].offset == place + 1
        assert chain.damage


@given(st.integers(0, 4), st.data())
@settings(max_examples=40, deadline=None)
def test_edit_of_any_byte_changes_the_head_and_is_detected_in_earlier_entries(
    place: int, data: st.DataObject
) -> None:
    records = log_of(5)
    at = data.draw(st.integers(0, len(records[place]) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != records[place][at]))
    whole = chain_of(records)
    records[place] = records[place][:at] + bytes([byte]) + records[place][at + 1 :]
    chain = chain_of(records)
    assert chain.head != whole.head
    assert chain.damage or place == 4


@pytest.mark.parametrize("place", range(1, 4))
def test_deletion_of_an_entry_in_the_middle_is_detected(place: int) -> None:
    records = log_of(5)
    del records[place]
    chain = chain_of(records)
    assert (chain.oddities[0].problem, chain.oddities[0].offset) == (ChainProblem.UNCHAINED, place)
    assert set(problems(chain)[1:]) <= {ChainProblem.FORKED}


def test_deletion_of_the_first_entries_is_detected_and_later_entries_stay_valid() -> None:
    records = log_of(5)
    chain = chain_of(records[2:], first=2)
    assert problems(chain) == [ChainProblem.CUT]
    assert charged(chain) == [2, 3, 4]
    assert chain.head == hash_of(records[-1])
    renumbered = chain_of(records[2:])
    assert problems(renumbered)[0] is ChainProblem.UNCHAINED


def test_deletion_of_the_last_entry_is_detected_by_the_saved_head() -> None:
    records = log_of(5)
    kept = chain_of(records).head
    shorter = chain_of(records[:4])
    assert shorter.oddities == []
    assert not shorter.has(kept)
    assert shorter.has(hash_of(records[3]))


@pytest.mark.parametrize("place", range(4))
def test_reordered_entries_are_detected(place: int) -> None:
    records = log_of(5)
    records[place : place + 2] = reversed(records[place : place + 2])
    assert chain_of(records).damage


@pytest.mark.parametrize("place", range(5))
def test_repeated_entry_is_detected_and_counts_once(place: int) -> None:
    records = log_of(5)
    for later in range(place, 5):
        doubled = [*records[: later + 1], records[place], *records[later + 1 :]]
        chain = chain_of(doubled)
        assert problems(chain) == [ChainProblem.DOUBLED]
        assert charged(chain) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("place", range(1, 5))
def test_inserted_entry_is_detected(place: int) -> None:
    records = log_of(5)
    forged = draft(9).under(hash_of(records[place - 1]), nonce="x", software="1")
    chain = chain_of([*records[:place], forged, *records[place:]])
    if place < 4:
        assert ChainProblem.FORKED in problems(chain)
        assert chain.damage
    assert not chain.has(hash_of(records[-1])), "receipts and the saved head reveal the insertion"
    unchained = draft(9).under("b" * 64, nonce="x", software="1")
    chain = chain_of([*records[:place], unchained, *records[place:]])
    assert problems(chain) == [ChainProblem.UNCHAINED]
    assert charged(chain) == [0, 1, 2, 3, 4]


def test_garbage_and_keyed_records_are_reported_and_not_charged() -> None:
    records = log_of(2)
    assert problems(chain_of([*records, b"garbage"])) == [ChainProblem.UNREADABLE]
    chain = chain_of(records)
    keyed = draft(9).under(chain.head, nonce="x", software="1")
    chain.apply(2, keyed, key=b"a")
    assert problems(chain) == [ChainProblem.KEYED]
    assert charged(chain) == [0, 1]
    later = json.loads(log_of(3)[2]) | {"version": 2}
    body = json.dumps(later, sort_keys=True, separators=(",", ":")).encode()
    (oddity,) = chain_of([*records, body]).oddities
    assert "the entry has version 2; expected 1" in oddity.detail


def test_accepting_a_loss_of_records_unblocks_writing_but_the_loss_stays_reported() -> None:
    records = [*log_of(2), b"garbage"]
    chain = chain_of(records)
    assert chain.damage
    reopened = Draft(EntryKind.REOPENED, 5, facts={"reason": "disk", "without": ["c" * 64]})
    chain.apply(3, reopened.under(chain.head, nonce="x", software="1"))
    assert chain.damage == []
    assert chain.oddities
    assert chain.forgiven("c" * 64)
    assert not chain.forgiven("d" * 64)
    chain.apply(4, b"garbage again")
    assert [each.offset for each in chain.damage] == [4]


PRODUCER_OF = (0, 0, 1)
"""Index of the producer of each of three devices."""

Window = tuple[tuple[bool, ...], tuple[bool, ...]]
"""Flags of the included producers, and flags of the absent devices."""


def manifest(inside: Sequence[bool], populations: Sequence[int], contributors: int) -> Manifest:
    return Manifest(
        bytes(16),
        bytes(16),
        1,
        WindowStatus.RELEASED,
        first_offset=0,
        cut_offset=0,
        first_epoch=1,
        producers=tuple(inside),
        populations=tuple(populations),
        contributors=contributors,
        population=sum(populations),
        timestamp=0,
    )


def windows() -> Iterator[Window]:
    for inside in product((True, False), repeat=2):
        for away in product((False, True), repeat=3):
            if any(present(device, (inside, away)) for device in range(3)):
                yield inside, away


def present(device: int, window: Window) -> bool:
    inside, away = window
    return inside[PRODUCER_OF[device]] and not away[device]


def test_bound_on_continuous_participation_holds_despite_absences() -> None:
    exact = 0
    for seen in product(windows(), repeat=2):
        presence = Presence()
        for inside, away in seen:
            populations = [(2, 1)[each] for each in range(2) if inside[each]]
            there = sum(present(device, (inside, away)) for device in range(3))
            presence.take(manifest(inside, populations, there))
        throughout = [all(present(device, each) for each in seen) for device in range(3)]
        always = [all(inside[each] for inside, _ in seen) for each in range(2)]
        ever = [any(inside[each] for inside, _ in seen) for each in range(2)]
        assert presence.devices <= sum(throughout)
        assert presence.producers == sum(always)
        assert presence.other_producers == sum(ever) - sum(always)
        exact += presence.devices == sum(throughout)
    assert exact > 150, "the bound is often exact"


def test_bound_on_continuous_participation_excludes_later_enrollments() -> None:
    presence = Presence()
    assert (presence.windows, presence.devices, presence.producers, presence.other_producers) == (
        0,
        0,
        0,
        0,
    )
    presence.take(manifest([True, False], [50], 49))
    presence.take(manifest([True, True, True], [70, 20, 0], 88))
    assert (presence.windows, presence.producers, presence.other_producers) == (2, 1, 2)
    assert presence.devices == 50 - 1 - 2
