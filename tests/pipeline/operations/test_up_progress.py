"""What `dpstream up` makes of the records it sees."""

from dataclasses import replace
from pathlib import Path

import pytest

from dpstream.aggregators.estimate import OUTSIDE
from dpstream.pipeline.devices.truths import CountedTruths
from dpstream.pipeline.operations.up.progress import Progress, WindowSizes
from dpstream.topics.chunks import Chunk, decode_chunk, encode_chunk
from dpstream.topics.names import Role
from tests.support.small_run import EPOCHS, USERS, SmallRun, run_small_job


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> SmallRun:
    return run_small_job(tmp_path_factory.mktemp("run"))


def progress_of(run: SmallRun) -> Progress:
    progress = Progress(run.job, CountedTruths(run.truth))
    for role, value in run.records:
        progress.apply(role, value)
    return progress


def test_every_epoch_stands_beside_its_truth(small_run: SmallRun) -> None:
    rows = progress_of(small_run).rows()
    assert [row.epoch for row in rows] == list(range(1, EPOCHS + 1))
    assert [row.truth for row in rows] == small_run.truth.tolist()
    assert rows[-1].truth == USERS
    assert all(row.estimate.value is not None and not row.notes for row in rows)
    # Its numbers are cut: beside the truth the flag would read as a truth outside the interval.
    assert any(OUTSIDE in row.estimate.flags for row in rows)


def test_windows_hold_the_reports_that_were_released(small_run: SmallRun) -> None:
    chunks = [decode_chunk(value) for role, value in small_run.records if role is Role.SHUFFLED]
    progress = progress_of(small_run)
    for row in progress.rows():
        assert row.reports == sum(
            chunk.words.messages for chunk in chunks if chunk.epoch == row.epoch
        )
    assert progress.reports == sum(chunk.words.messages for chunk in chunks)


def test_devices_are_told_where_a_window_is_released_as_one_sum(tmp_path: Path) -> None:
    twin = "{epsilon: 2, delta: 1e-6, changes: 2, dummies: shuffle}"
    asked = f"protocol: shuffled_counts\nparameters: {twin}\nshuffle: {{minimum: 100}}"
    run = run_small_job(tmp_path, asked=asked)
    assert run.job.stage_sum is not None
    progress = progress_of(run)
    assert [row.reports for row in progress.rows()] == EPOCHS * [USERS]
    assert progress.reports == EPOCHS * USERS
    assert progress.complete


def test_a_run_is_complete_when_estimates_and_windows_are_there(small_run: SmallRun) -> None:
    progress = Progress(small_run.job, CountedTruths(small_run.truth))
    for position, (role, value) in enumerate(small_run.records):
        assert not progress.complete, position
        progress.apply(role, value)
    assert progress.complete


def test_records_of_other_deployments_and_repeated_ones_count_for_nothing(
    small_run: SmallRun,
) -> None:
    other = replace(small_run, records=small_run.records * 2)
    assert progress_of(other).rows() == progress_of(small_run).rows()
    strange = Progress(
        small_run.job.model_copy(update={"deployment": b"x" * 16}), CountedTruths(small_run.truth)
    )
    for role, value in (*small_run.records, (Role.SHUFFLED, b"?"), (Role.ESTIMATES, b"?")):
        strange.apply(role, value)
    assert not strange.rows()
    assert not strange.reports


def test_a_window_is_counted_once_by_its_first_complete_writing(small_run: SmallRun) -> None:
    whole = next(
        chunk
        for role, value in small_run.records
        if role is Role.SHUFFLED and (chunk := decode_chunk(value)).words.messages
    )

    def piece(attempt: bytes, index: int) -> bytes:
        return encode_chunk(replace(whole, attempt=attempt * 16, index=index, total=2))

    sizes = WindowSizes(whole.deployment)
    for value in (piece(b"a", 0), piece(b"b", 0), piece(b"b", 0)):
        sizes.apply(value)
    assert not sizes.reports
    for value in (piece(b"b", 1), piece(b"a", 1)):
        sizes.apply(value)
    assert sizes.reports == {whole.epoch: 2 * whole.words.messages}
    assert isinstance(whole, Chunk)
