"""Stages that break a rule are convicted, by that rule and by no other.

They sign what they do: that they say what they did does not acquit them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.actions import Action, Append, LogRecord
from pipeline.jobs.deployed_job import DeployedJob, deploy_job
from pipeline.jobs.epoch_times import times_of
from pipeline.jobs.job_files import make_job
from pipeline.operations.stage_verification.evidence import Evidence
from pipeline.operations.stage_verification.findings import Verdict
from pipeline.operations.stage_verification.signatures import Expected
from pipeline.operations.stage_verification.verify_stage import verify_stages
from pipeline.protocols.registry import PROTOCOLS
from tests.support import cells
from tests.support.sealed_cells import run, values_of_cells, written_job
from tests.support.signed_stages import (
    SOFTWARE,
    Change,
    SignedWorld,
    appends,
    evidence_of,
    finding,
    key_of,
    public_key,
    verified,
    violated,
)
from tests.support.world import BEGUN
from topics.chunks import Chunk, decode_chunk, encode_chunk
from topics.manifests import Fate, Manifest, decode_manifest, encode_manifest
from topics.names import Role
from topics.signed import Decided, StageRecord, read_statement, sign_statement
from topics.words import Words

DEPLOYMENT = bytes(range(16))
HOUR = 3_600_000


@pytest.fixture(autouse=True)
def cells_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, cells.NAME, cells.CELLS)


def cells_job(**values: Any) -> DeployedJob:
    return deploy_job(make_job(written_job(None, **values)), deployment=DEPLOYMENT, deployed_at=0)


def lived(folder: Path, **values: Any) -> SignedWorld:
    """A world that has run to its end; `values` are of the world."""
    job = values.pop("job", None) or cells_job()
    world = SignedWorld(job, folder, values_of_cells(), **values)
    run(world)
    return world


def chunks(change: Callable[[Chunk], list[Chunk]]) -> Change:
    """What a stage writes of windows, before it signs it."""
    return appends(Role.SHUFFLED, lambda value: map(encode_chunk, change(decode_chunk(value))))


def manifests(change: Callable[[Manifest], Manifest]) -> Change:
    """What it decides."""
    return appends(Role.MANIFESTS, lambda value: [encode_manifest(change(decode_manifest(value)))])


def rules(evidence: Evidence, **expected: Any) -> set[str]:
    return violated(verify_stages(evidence, **expected))


def test_an_honest_stage_breaks_none(tmp_path: Path) -> None:
    world = lived(tmp_path)
    found = verify_stages(evidence_of(world.job, world.log, raw=True))
    assert violated(found) == set()
    assert verified(found) == {
        *("signatures", "membership", "minimum", "timing", "order", "attempts"),
        *("cut", "raw contents"),
    }


def test_another_membership_than_the_first_manifest(tmp_path: Path) -> None:
    """It writes a second manifest, of the epoch, and releases the window under that one."""

    def second(action: Action) -> Iterator[Action]:
        yield action
        if isinstance(action, Append) and action.role is Role.MANIFESTS:
            manifest = decode_manifest(action.value)
            other = replace(manifest, timestamp=manifest.timestamp + 1)
            yield Append(Role.MANIFESTS, 0, encode_manifest(other))

    def under_it(chunk: Chunk) -> list[Chunk]:
        return [replace(chunk, manifest_offset=chunk.manifest_offset + 1)]

    def both(action: Action) -> Iterator[Action]:
        for each in second(action):
            yield from chunks(under_it)(each)

    world = lived(tmp_path, inside=both)
    assert rules(evidence_of(world.job, world.log, raw=True)) == {"membership"}


def test_that_it_signed_another_membership_is_there_when_the_window_is_deleted(
    tmp_path: Path,
) -> None:
    def other(chunk: Chunk) -> list[Chunk]:
        return [replace(chunk, manifest_offset=7)]

    world = lived(tmp_path, inside=chunks(other))
    evidence = evidence_of(world.job, world.log)
    assert rules(replace(evidence, attempts=())) == {"membership"}


@pytest.mark.parametrize(
    ("minimum", "fate"), [(100, Fate.RELEASED), (10, Fate.TOO_SMALL)], ids=["below", "above"]
)
def test_a_window_that_is_too_small_is_released_or_one_that_is_not_withheld(
    tmp_path: Path, minimum: int, fate: Fate
) -> None:
    job = cells_job(shuffle={"minimum": minimum, "producers": 2, "grace": "60 s"})
    world = lived(
        tmp_path, job=job, inside=manifests(lambda manifest: replace(manifest, fate=fate))
    )
    found = verify_stages(evidence_of(world.job, world.log, raw=True))
    assert violated(found) == {"minimum"}
    assert [each.epoch for each in finding(found, "minimum").violations] == [1, 2]


def test_words_of_a_window_that_was_withheld(tmp_path: Path) -> None:
    job = cells_job(shuffle={"minimum": 100, "producers": 2, "grace": "60 s"})
    words = Words(np.zeros((1, 1), "<u2"))

    def leak(action: Action) -> Iterator[Action]:
        yield action
        if isinstance(action, Append) and action.role is Role.MANIFESTS:
            manifest = decode_manifest(action.value)
            chunk = Chunk(
                job.fingerprint, job.deployment, manifest.epoch, 0, bytes(16), 0, 1, words
            )
            if manifest.epoch == 1:
                yield Append(Role.SHUFFLED, job.partition_of(1), encode_chunk(chunk))

    world = lived(tmp_path, job=job, inside=leak)
    assert rules(evidence_of(world.job, world.log)) == {"minimum"}


def test_an_order_that_says_something(tmp_path: Path) -> None:
    def reversed_words(chunk: Chunk) -> list[Chunk]:
        assert chunk.words.counts is None
        return [replace(chunk, words=Words(chunk.words.values[::-1]))]

    world = lived(tmp_path, inside=chunks(reversed_words))
    assert rules(evidence_of(world.job, world.log, raw=True)) == {"order"}


def test_of_a_random_order_nobody_can_say_whether_it_is_one(tmp_path: Path) -> None:
    shuffle = {"minimum": 10, "producers": 2, "grace": "60 s", "order": "random"}
    world = lived(tmp_path, job=cells_job(shuffle=shuffle))
    found = verify_stages(evidence_of(world.job, world.log, raw=True))
    assert violated(found) == set()
    assert finding(found, "order").verdict is Verdict.UNKNOWN


def test_words_that_nobody_sent(tmp_path: Path) -> None:
    """Whether there are too many shows in raw reports; without them where the law says how many."""

    def more(chunk: Chunk) -> list[Chunk]:
        return [replace(chunk, words=Words(np.repeat(chunk.words.values, 2, axis=0)))]

    world = lived(tmp_path, inside=chunks(more))
    assert rules(evidence_of(world.job, world.log, raw=True)) == {"raw contents"}
    assert rules(evidence_of(world.job, world.log)) == set()


@pytest.mark.parametrize("other", [False, True], ids=["the same", "another"])
def test_a_window_in_two_versions(tmp_path: Path, other: bool) -> None:
    def twice(chunk: Chunk) -> list[Chunk]:
        words = Words(chunk.words.values[1:]) if other else chunk.words
        return [chunk, replace(chunk, attempt=bytes([chunk.epoch]) * 16, words=words)]

    world = lived(tmp_path, inside=chunks(twice))
    evidence = evidence_of(world.job, world.log)
    assert rules(evidence) == ({"attempts"} if other else set())
    # What was signed is there when what was written is deleted.
    assert rules(replace(evidence, attempts=())) == ({"attempts"} if other else set())


class TestSignatures:
    """Whose word manifests and windows are."""

    def test_a_manifest_that_nobody_signed(self, tmp_path: Path) -> None:
        world = lived(tmp_path, outside=without(Decided))
        found = verify_stages(evidence_of(world.job, world.log))
        assert violated(found) == {"signatures"}
        assert "has signed the manifest" in finding(found, "signatures").violations[0].why

    def test_a_worker_that_has_not_said_what_it_runs(self, tmp_path: Path) -> None:
        world = lived(tmp_path, outside=without(StageRecord))
        found = verify_stages(evidence_of(world.job, world.log))
        assert violated(found) == {"signatures"}
        assert "has not said" in finding(found, "signatures").violations[0].why

    @pytest.mark.parametrize("role", [Role.SHUFFLED, Role.MANIFESTS])
    def test_what_is_written_is_not_what_was_signed(self, tmp_path: Path, role: Role) -> None:
        def others(chunk: Chunk) -> list[Chunk]:
            return [replace(chunk, words=Words(chunk.words.values[1:]))]

        change = (
            chunks(others)
            if role is Role.SHUFFLED
            else manifests(lambda each: replace(each, timestamp=each.timestamp + 1))
        )
        world = lived(tmp_path, outside=change)
        assert rules(evidence_of(world.job, world.log)) == {"signatures"}

    def test_a_writing_that_nobody_signed(self, tmp_path: Path) -> None:
        """Beside a signed one that is the same, too: stages sign before they write."""

        def unsigned(chunk: Chunk) -> list[Chunk]:
            return [replace(chunk, attempt=bytes([chunk.epoch]) * 16)]

        def both(chunk: Chunk) -> list[Chunk]:
            return [*unsigned(chunk), chunk]

        instead = lived(tmp_path / "instead", outside=chunks(unsigned))
        assert rules(evidence_of(instead.job, instead.log)) == {"signatures"}
        beside = lived(tmp_path / "beside", outside=chunks(both))
        assert rules(evidence_of(beside.job, beside.log)) == {"signatures"}

    def test_a_key_that_is_not_to_be_expected(self, tmp_path: Path) -> None:
        world = lived(tmp_path)
        evidence = evidence_of(world.job, world.log)
        assert rules(evidence, signers=[public_key("shuffle")]) == set()
        assert rules(evidence, signers=[public_key("somebody")]) == {"signatures"}
        shuffle = world.job.shuffle.model_copy(update={"signers": (public_key("one").hex(),)})
        pinned = world.job.model_copy(update={"shuffle": shuffle})
        assert rules(replace(evidence, job=pinned)) == {"signatures"}
        assert rules(replace(evidence, job=pinned), signers=[public_key("shuffle")]) == set()

    def test_a_worker_that_changes_its_key(self, tmp_path: Path) -> None:
        world = lived(tmp_path)
        job = world.job
        said = StageRecord(job.deployment, "shuffle", "one", BEGUN, "3.11.2", SOFTWARE)
        for key, worker, broken in (
            ("shuffle", "one", set()),
            ("another", "two", set()),
            ("another", "one", {"signatures"}),
        ):
            value = sign_statement(replace(said, worker=worker), key_of(key))
            world.log.append(Append(Role.STAGES, 0, value))
            assert rules(evidence_of(job, world.log)) == broken

    @pytest.mark.parametrize("place", [0, 40, -40])
    def test_a_statement_that_was_altered(self, tmp_path: Path, place: int) -> None:
        world = lived(tmp_path)

        def altered(role: Role, record: LogRecord) -> LogRecord:
            if role is not Role.STAGES or record.offset != 1:
                return record
            value = bytearray(record.value)
            value[place] ^= 1
            return replace(record, value=bytes(value))

        assert "signatures" in rules(evidence_of(world.job, world.log, change=altered))


def without(kind: type) -> Change:
    """A stage that leaves statements of a kind out."""

    def kept(value: bytes) -> list[bytes]:
        return [] if isinstance(read_statement(value).statement, kind) else [value]

    return appends(Role.STAGES, kept)


def test_other_software_than_is_expected(tmp_path: Path) -> None:
    world = lived(tmp_path)
    evidence = evidence_of(world.job, world.log)
    mine = SOFTWARE["dpstream"]
    other = replace(mine, digest=bytes(32))
    assert finding(verify_stages(evidence), "software").verdict is Verdict.UNKNOWN
    for expected, broken in (
        (Expected("0.1.0"), set()),
        (Expected("0.2.0"), {"software"}),
        (Expected(None, mine), set()),
        (Expected(None, other), {"software"}),
        (Expected(None, replace(mine, form="source tree")), {"software"}),
    ):
        assert rules(evidence, expected=expected) == broken
    assert "software" in verified(verify_stages(evidence, expected=Expected("0.1.0")))


@pytest.mark.parametrize(
    ("absent", "after", "broken"),
    [
        (False, 0, set()),
        (False, -2 * HOUR, {"timing"}),
        (True, 0, {"timing"}),
        # Clocks may differ by a minute, which is as long as the grace.
        (True, HOUR // 2 - 30_000, {"timing"}),
        (True, HOUR // 2 + 30_000, set()),
        (True, HOUR + 1_000, set()),
    ],
    ids=[
        "everybody",
        "before it begins",
        "in the middle, one is out",
        "before the end",
        "after it",
        "after the grace",
    ],
)
def test_an_epoch_is_decided_before_its_time(
    tmp_path: Path, absent: bool, after: int, broken: set[str]
) -> None:
    """`after` milliseconds after the middle of the epoch."""
    world = lived(tmp_path)
    times = times_of(world.job)
    assert times is not None

    def moved(role: Role, record: LogRecord) -> LogRecord:
        if role is not Role.MANIFESTS:
            return record
        manifest = decode_manifest(record.value)
        start = times.start(manifest.epoch)
        assert start is not None
        record = replace(record, timestamp=start + HOUR // 2 + after)
        if not absent:
            return record
        fewer = replace(
            manifest,
            producers=(True, False),
            populations=manifest.populations[:1],
            contributors=6,
            fate=Fate.TOO_SMALL,
        )
        return replace(record, value=encode_manifest(fewer))

    found = rules(evidence_of(world.job, world.log, change=moved))
    # That others signed it, and released it, is not what is asked here.
    assert found - {"signatures", "minimum"} == broken


class TestRaw:
    """What raw reports show, to whoever may read them."""

    def test_somebody_is_left_out(self, tmp_path: Path) -> None:
        def fewer(manifest: Manifest) -> Manifest:
            return replace(manifest, producers=(True, False), populations=(6,), contributors=6)

        job = cells_job(shuffle={"minimum": 5, "producers": 2, "grace": "60 s"})
        world = lived(tmp_path, job=job, inside=manifests(fewer))
        found = verify_stages(evidence_of(world.job, world.log, raw=True))
        assert violated(found) == {"cut"}
        assert "and is out" in finding(found, "cut").violations[0].why

    def test_more_contributors_than_have_said_so(self, tmp_path: Path) -> None:
        def more(manifest: Manifest) -> Manifest:
            return replace(manifest, contributors=manifest.contributors - 1)

        world = lived(tmp_path, inside=manifests(more))
        found = verify_stages(evidence_of(world.job, world.log, raw=True))
        assert violated(found) == {"cut"}
        assert "punctuations say" in finding(found, "cut").violations[0].why

    def test_what_is_late_is_in(self, tmp_path: Path) -> None:
        """The cut says that the second producer's last record came too late, and it is in."""

        def earlier(manifest: Manifest) -> Manifest:
            return replace(manifest, cut_offset=manifest.cut_offset - 1)

        world = lived(tmp_path, inside=manifests(earlier))
        found = verify_stages(evidence_of(world.job, world.log, raw=True))
        assert "cut" in violated(found)
        assert "was not complete before the cut" in str(finding(found, "cut").violations)


def test_chunks_that_contradict_each_other_are_no_window(tmp_path: Path) -> None:
    """Under one name there are two attempts, of which neither is whole, and neither is signed."""
    world = lived(tmp_path)
    partition = world.job.partition_of(1)
    first = next(
        chunk
        for value in world.log.values(Role.SHUFFLED, partition)
        if (chunk := decode_chunk(value)).epoch == 1
    )
    halves = [
        replace(first, attempt=bytes(16), index=index, total=2, manifest_offset=index)
        for index in (0, 1)
    ]
    for half in halves:
        world.log.append(Append(Role.SHUFFLED, partition, encode_chunk(half)))
    found = evidence_of(world.job, world.log)
    assert [each.complete for each in found.attempts if each.attempt == bytes(16)] == [False] * 2
    assert rules(found) == {"signatures", "membership"}


def test_what_stages_write_while_it_is_read_convicts_nobody(tmp_path: Path) -> None:
    """What was written last is read first: for all that is found, what stood before it is, too."""
    world = lived(tmp_path)
    seen: list[Role] = []

    def looked(role: Role, record: LogRecord) -> LogRecord:
        seen.append(role)
        return record

    verify_stages(evidence_of(world.job, world.log, raw=True, change=looked))
    order = [Role.SHUFFLED, Role.MANIFESTS, Role.PRODUCERS, Role.STAGES, Role.REPORTS]
    assert list(dict.fromkeys(seen)) == order
    assert seen.count(Role.MANIFESTS) == world.log.end(Role.MANIFESTS, 0)
