"""Compare the log segments of neighboring inputs on a real broker, byte by byte."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.topics.batches import decode_batch
from dpstream.topics.frames import CodecError, RecordType, kind_of
from dpstream.topics.names import Role
from tests.conformance.cases import CASES, Case
from tests.support.commands import Commands
from tests.support.kafka_run import run_on_kafka
from tests.support.log_segments import StoredRecord, stored_records
from tests.support.neighbor_inputs import NEIGHBORS, write_inputs
from tests.support.public_facts import OBSERVABLES
from tests.support.public_view import SameRelease

SEEN = (
    Role.REPORTS,
    Role.MANIFESTS,
    Role.SHUFFLED,
    Role.PARTIALS,
    Role.ESTIMATES,
    Role.PRODUCERS,
    Role.DEAD_LETTERS,
)
"""Topics whose records do not depend on the time, unlike heartbeats."""


LOOKED_AT = ("shuffled_counts-0", "split_budget-0")
"""A case whose number of messages is secret, and a case whose number is public.

With the same randomness, every answer of split_budget differs if the value does.
"""


@pytest.mark.verify
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if str(case) in LOOKED_AT],
    ids=str,
)
def test_neighboring_inputs_produce_segments_with_equal_record_sizes(
    case: Case,
    broker: LocalKafka,
    bootstrap_servers: str,
    job_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    release = SameRelease(tmp_path / "released")
    release.folder.mkdir()
    held: list[dict[Role, list[StoredRecord]]] = []
    for number, variant in enumerate(NEIGHBORS[:2]):
        name = f"{job_name}-{number}"
        inputs = write_inputs(
            tmp_path / f"input {number}",
            case,
            variant,
            name=name,
            minimum=12,
            dummies=None,
            partitions=1,
        )
        run_on_kafka(bootstrap_servers, tmp_path / str(number), inputs, release, Commands(capsys))
        held.append(
            {role: list(stored_records(broker.directory, f"{name}.{role.value}")) for role in SEEN}
        )
    first, other = held
    for role in SEEN:
        assert list(map(seen, first[role])) == list(map(seen, other[role])), role
    batches = [
        [decode_batch(record.value) for record in run[Role.REPORTS] if is_batch(record)]
        for run in held
    ]
    # Only messages differ. If they were identical, nothing would have been randomized again.
    assert [batch.epoch for batch in batches[0]] == [batch.epoch for batch in batches[1]]
    assert Counter(record.value for record in first[Role.REPORTS]) != Counter(
        record.value for record in other[Role.REPORTS]
    )
    for run, sent in zip(held, batches, strict=True):
        identities = {each for batch in sent for each in (batch.batch, batch.enrollment)}
        assert len(identities) > len(sent)
        assert run[Role.SHUFFLED]
        for record in run[Role.SHUFFLED]:
            everything = record.value + (record.key or b"") + repr(record.headers).encode()
            assert not any(identity in everything for identity in identities)


def seen(record: StoredRecord) -> tuple[object, ...]:
    return record.partition, record.offset, record.key, record.headers, len(record.value)


def is_batch(record: StoredRecord) -> bool:
    try:
        return kind_of(record.value) is RecordType.BATCH
    except CodecError:
        return False


@pytest.mark.verify
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.number == 0],
    ids=str,
)
def test_observations_depend_on_values_only_through_released_messages(
    case: Case,
    bootstrap_servers: str,
    job_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    release = SameRelease(tmp_path / "released")
    release.folder.mkdir()
    seen = []
    for number, variant in enumerate(NEIGHBORS[:2]):
        inputs = write_inputs(
            tmp_path / f"input {number}",
            case,
            variant,
            name=f"{job_name}-{number}",
            minimum=12,
            dummies=None,
            # The reading order of several partitions depends on timing.
            partitions=1,
        )
        seen.append(
            run_on_kafka(
                bootstrap_servers, tmp_path / str(number), inputs, release, Commands(capsys)
            )
        )
    first, other = seen
    assert first.keys() == {each.name for each in OBSERVABLES}
    assert release.epochs == [1, 2, 3, 4]
    for name, observed in first.items():
        assert other[name] == observed, name
