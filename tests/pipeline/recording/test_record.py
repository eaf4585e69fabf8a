"""Test ``dpstream record``: it stores all published data and their inputs, or reports gaps."""

from __future__ import annotations

import hashlib
import json
import stat
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from dpstream.pipeline.actions import Action, EndOffsets, LogRecord, LogSlice, ReadRange
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.kafka.memory import MemoryLog
from dpstream.pipeline.recording.record_verify import verify
from dpstream.pipeline.recording.recorder import Recorder, open_recording
from dpstream.pipeline.recording.recording_tables import published_estimate
from dpstream.pipeline.recording.recordings import (
    INDEX_FILE,
    LogPosition,
    Missing,
    RecordedEpoch,
    Recording,
    RecordingError,
    RecordingFolder,
    RecordingIndex,
    RecordingWriter,
    RecordKind,
)
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.messages import Messages
from dpstream.topics.names import JOBS_TOPIC, Role
from tests.support import cells
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster
from tests.support.new_jobs import new_job
from tests.support.recording_folders import (
    AccidentFolder,
    KilledError,
    epoch_of,
    index_of,
)
from tests.support.world import Accidents, World

pytestmark = pytest.mark.usefixtures("cells_protocol")

DEPLOYMENT = bytes(range(16))
EPOCHS, CELLS = 4, 40

Result = TypeVar("Result")


def deployed(
    protocol: str = cells.NAME, *, partitions: int = 2, instances: int = 1, **parameters: object
) -> DeployedJob:
    job = new_job(
        "watched",
        protocol,
        parameters or {"cells": CELLS},
        epochs={"count": EPOCHS},
        shuffle={"minimum": 10, "grace": "60 s", "producers": 2, "instances": instances},
        topics={"partitions": partitions},
    )
    return deploy_job(job, deployment=DEPLOYMENT, deployed_at=0)


def every_cell_once() -> dict[str, dict[int, dict[str, int]]]:
    """Return a distinct cell for each device of two producers; epoch 3 has too few devices."""
    half = CELLS // 2
    return {
        name: {
            epoch: {f"{name}{each}": begin + each for each in range(3 if epoch == 3 else half)}
            for epoch in range(1, EPOCHS + 1)
        }
        for name, begin in (("a", 0), ("b", half))
    }


def finished_world(
    folder: Path,
    job: DeployedJob | None = None,
    accidents: Accidents | None = None,
    to: int = EPOCHS,
    noise_key: NoiseKey | None = None,
) -> World:
    job = deployed() if job is None else job
    values = every_cell_once()
    if job.protocol != cells.NAME:
        values = {
            name: {epoch: dict.fromkeys(users, 1) for epoch, users in epochs.items()}
            for name, epochs in values.items()
        }
    world = World(job, folder, values, accidents or Accidents(), noise_key=noise_key)
    run_epochs(world, 1, to)
    return world


def run_epochs(world: World, first: int, last: int) -> None:
    for epoch in range(first, last + 1):
        for name in world.values:
            world.close_epoch(name, epoch)
        world.settle()
    world.shut()


class Reader:
    """Reader of a log that skips deleted records, as the tools do, and can fail at an action."""

    def __init__(self, log: MemoryLog, fail_at: int | None = None) -> None:
        self.log = log
        self.fail_at = fail_at
        self.count = 0

    def __call__(self, steps: Generator[Action, object, Result], /) -> Result:
        reply: object = None
        while True:
            try:
                action = steps.send(reply)
            except StopIteration as finished:
                result: Result = finished.value
                return result
            self.count += 1
            if self.count == self.fail_at:
                raise ConnectionError("the broker is away")
            reply = self._reply(action)

    def _reply(self, action: Action) -> object:
        match action:
            case EndOffsets(places):
                return {place: self.log.end(*place) for place in places}
            case ReadRange(role, partition, start, stop):
                first = self.log.end(role, partition) - len(self.log.values(role, partition))
                # One record at a time: a reader can be stopped between any two records.
                records = self.log.read(role, partition, max(start, first), stop).records[:1]
                return LogSlice(records, records[0].offset + 1 if records else stop)
        raise TypeError(f"unexpected action of a reader: {action}")


def recorder_of(
    world: World,
    path: Path,
    *,
    from_epoch: int | None = None,
    folder: RecordingFolder | None = None,
    run: Reader | None = None,
) -> Recorder:
    path.mkdir(exist_ok=True)
    folder = folder or RecordingFolder(path)
    index = open_recording(folder, world.job, from_epoch=from_epoch)
    return Recorder(world.job, folder, index, run or Reader(world.log), clock=lambda: 0.0)


def record(world: World, path: Path, **options: Any) -> Recording:
    recorder = recorder_of(world, path, **options)
    try:
        list(recorder.round())
    finally:
        recorder.stop()
    return Recording.open(path)


def check_whole(world: World, path: Path, first: int = 1) -> None:
    recording = Recording.open(path)
    assert not recording.index.missing
    assert verify(path, deep=True).problems == []
    manifests = list(recording.manifests())
    decided = sorted(world.manifests().items())
    assert manifests == [
        replace(each, first_offset=0, cut_offset=0) for epoch, each in decided if epoch >= first
    ]
    partials = {row.epoch: row.payload for row in recording.partials()}
    assert partials == {
        epoch: payload for epoch, payload in world.integers().items() if epoch >= first
    }
    estimates = [published_estimate(row, DEPLOYMENT) for row in recording.estimates()]
    assert estimates == [each for epoch, each in world.published().items() if epoch >= first]


def check_cells(path: Path) -> None:
    windows = dict(Recording.open(path).windows())
    assert sorted(windows) == [1, 2, 4]  # epoch 3 is suppressed
    for words in windows.values():
        assert words.values[:, 0].tolist() == list(range(CELLS))
        assert words.counts is not None
        assert (words.counts == 1).all()


def test_everything_published_is_recorded(tmp_path: Path) -> None:
    world = finished_world(tmp_path / "producers")
    recording = record(world, tmp_path / "kept")
    check_whole(world, tmp_path / "kept")
    check_cells(tmp_path / "kept")
    statuses = [row.window_status for row in recording.manifests()]
    assert statuses == [
        WindowStatus.RELEASED,
        WindowStatus.RELEASED,
        WindowStatus.SUPPRESSED,
        WindowStatus.RELEASED,
    ]
    assert DeployedJob.from_bytes(recording.job_record) == world.job


@pytest.mark.parametrize(
    ("protocol", "parameters"),
    [
        ("future_rand", {"epsilon": 2.0, "max_changes": 2}),
        ("shuffled_counts", {"epsilon": 2.0, "delta": 1e-3}),
        (
            "shuffled_counts",
            {"epsilon": 2.0, "delta": 1e-3, "max_changes": 1, "dummies": "shuffle"},
        ),
    ],
    ids=["nothing added", "dummies", "sums"],
)
def test_windows_are_recorded_as_they_were_released_including_their_noise(
    tmp_path: Path, protocol: str, parameters: dict[str, Any]
) -> None:
    job = deployed(protocol, **parameters)
    key = NoiseKey(bytes(32)) if job.needs_noise_key else None
    if key is not None:
        job = job.model_copy(update={"noise_key": key.digest})
    world = finished_world(tmp_path / "producers", job, noise_key=key)
    record(world, tmp_path / "kept")
    check_whole(world, tmp_path / "kept")


def test_recorder_resumes_with_new_publications(tmp_path: Path) -> None:
    world = finished_world(tmp_path / "producers", to=1)
    recorder = recorder_of(world, tmp_path / "kept")
    assert [each.epoch for each in recorder.round()] == [1]
    run_epochs(world, 2, 2)
    assert [each.epoch for each in recorder.round()] == [2]
    assert list(recorder.round()) == []
    recorder.stop()
    run_epochs(world, 3, 4)
    recorder = recorder_of(world, tmp_path / "kept")
    assert recorder.index.last_epoch == 2
    assert [(each.epoch, each.reports) for each in recorder.round()] == [(3, None), (4, CELLS)]
    recorder.stop()
    assert recorder.complete
    check_whole(world, tmp_path / "kept")


@pytest.mark.slow
def test_outage_at_any_moment_loses_no_epoch(tmp_path: Path) -> None:
    world = finished_world(tmp_path / "producers")
    undisturbed = Reader(world.log)
    record(world, tmp_path / "undisturbed", run=undisturbed)
    assert undisturbed.count > 15
    for at in range(1, undisturbed.count + 1):
        for again in (False, True):
            path = tmp_path / f"{at} {again}"
            recorder = recorder_of(world, path, run=Reader(world.log, fail_at=at))
            with pytest.raises(ConnectionError):
                list(recorder.round())
            if again:
                list(recorder.round())
            recorder.stop()
            check_cells(path) if again else record(world, path)
            check_whole(world, path)


@pytest.mark.slow
def test_recorder_resumes_after_it_is_killed_at_any_file_operation(tmp_path: Path) -> None:
    world = finished_world(tmp_path / "producers")

    def work(path: Path, folder: AccidentFolder) -> None:
        for _ in range(2):
            recorder = recorder_of(world, path, folder=folder)
            for epoch in recorder.round():
                if epoch.epoch % 2 == 0:
                    recorder.stop()
            recorder.stop()

    (tmp_path / "undisturbed").mkdir()
    undisturbed = AccidentFolder(tmp_path / "undisturbed")
    work(undisturbed.path, undisturbed)
    for at in range(1, undisturbed.count + 1):
        path = tmp_path / str(at)
        path.mkdir()
        with pytest.raises(KilledError):
            work(path, AccidentFolder(path, at))
        record(world, path)
        check_cells(path)
        check_whole(world, path)


@pytest.mark.slow
def test_rewritten_windows_are_recorded_once(tmp_path: Path) -> None:
    undisturbed = finished_world(tmp_path / "producers")
    repeated = 0
    # Includes some of the few actions after which a window is written again.
    for at in range(3, undisturbed.accidents.count, 5):
        for keep in (False, True):
            folder = tmp_path / f"producers {at} {keep}"
            world = finished_world(folder, accidents=Accidents(frozenset({at}), keep))
            path = tmp_path / f"{at} {keep}"
            record(world, path)
            check_cells(path)
            check_whole(world, path)
            for partition in range(2):
                chunks = map(decode_chunk, world.log.values(Role.SHUFFLED, partition))
                attempts = [(chunk.epoch, chunk.attempt) for chunk in chunks]
                repeated += len(set(attempts)) - len({epoch for epoch, _ in attempts})
    assert repeated  # otherwise no repetition was tested


def test_deleted_windows_are_reported_and_the_others_are_recorded(tmp_path: Path) -> None:
    world = finished_world(tmp_path / "producers")
    partition = world.job.topics.partition_of(2)
    epochs = [decode_chunk(value).epoch for value in world.log.values(Role.SHUFFLED, partition)]
    world.log.delete_below(Role.SHUFFLED, partition, epochs.index(4))
    recording = record(world, tmp_path / "kept")
    (gap,) = recording.index.missing
    assert str(gap) == (
        "windows of epoch 2: deleted from watched.shuffled, by retention or manually"
    )
    assert [epoch for epoch, _ in recording.windows()] == [1, 4]
    assert [row.epoch for row in recording.partials()] == [1, 2, 4]
    assert len(list(recording.estimates())) == EPOCHS
    report = verify(tmp_path / "kept", deep=True)
    assert report.problems == []
    assert report.to_json()["missing"] == [str(gap)]


def test_recording_folder_accepts_only_one_deployment(tmp_path: Path) -> None:
    world = finished_world(tmp_path / "producers")
    record(world, tmp_path / "kept")
    other = world.job.model_copy(update={"deployment": bytes(16)})
    folder = RecordingFolder(tmp_path / "kept")
    with pytest.raises(RecordingError, match="is a recording of job watched, deployment 00010203"):
        open_recording(folder, other, from_epoch=None)
    with pytest.raises(RecordingError, match="was started with --from-epoch 1"):
        open_recording(folder, world.job, from_epoch=2)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("three years of work")
    with pytest.raises(RecordingError, match=r"contains thesis.txt but no recording"):
        open_recording(RecordingFolder(tmp_path / "mine"), world.job, from_epoch=None)


def forged(world: World, path: Path, change: Callable[[RecordedEpoch], RecordedEpoch]) -> Path:
    """Return a recording with valid checksums and false content."""
    record(world, path / "true")
    index = Recording.open(path / "true").index
    (path / "forged").mkdir()
    true = Recording.open(path / "true")
    windows = dict(true.windows())
    partials = {row.epoch: row.payload for row in true.partials()}
    folder = RecordingFolder(path / "forged")
    empty: RecordingIndex = replace(index, files=(), first_epoch=None, last_epoch=None)
    with RecordingWriter(folder, empty) as writer:
        for manifest, estimate in zip(true.manifests(), true.estimates(), strict=True):
            epoch = manifest.epoch
            whole = RecordedEpoch(manifest, windows.get(epoch), partials.get(epoch), estimate)
            writer.add(change(whole) if epoch == 2 else whole)
        writer.commit([])
    return path / "forged"


def without_a_message(epoch: RecordedEpoch) -> RecordedEpoch:
    words = epoch.window
    assert words is not None
    assert words.counts is not None
    return replace(epoch, window=replace(words, values=words.values[1:], counts=words.counts[1:]))


@pytest.mark.parametrize(
    ("change", "problem", "deep"),
    [
        (without_a_message, "the window of epoch 2 does not match its partial", True),
        (lambda each: replace(each, partial=None), "the partial of epoch 2", False),
        (
            lambda each: replace(each, estimate=replace(each.estimate, contributors=7)),
            "the estimate and the manifest of epoch 2 contradict each other",
            False,
        ),
        (
            lambda each: replace(each, manifest=replace(each.manifest, timestamp=7)),
            "the estimate and the manifest of epoch 2 contradict each other",
            False,
        ),
    ],
    ids=["window", "partial", "estimate", "manifest"],
)
def test_falsified_recording_fails_verification(
    tmp_path: Path, change: Callable[[RecordedEpoch], RecordedEpoch], problem: str, deep: bool
) -> None:
    path = forged(finished_world(tmp_path / "producers"), tmp_path, change)
    assert any(problem in each for each in verify(path, deep=True).problems)
    assert bool(verify(path).problems) is not deep


def test_verification_reports_every_damaged_file(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    record(finished_world(tmp_path / "producers"), path)
    (windows,), (partials,) = path.glob("windows-*"), path.glob("partials-*")
    windows.write_bytes(windows.read_bytes()[:-4])
    partials.unlink()
    (path / "estimates-000009.parquet").write_bytes(b"half of a file")
    report = verify(path)
    assert [problem.removeprefix(str(path)) for problem in report.problems] == [
        f"/{windows.name} is truncated: {windows.stat().st_size:,} bytes; "
        f"expected {windows.stat().st_size + 4:,}",
        f"/{partials.name} is missing",
    ]
    assert report.notes == [
        "estimates-000009.parquet is not in the index: an interrupted recorder left it"
    ]


def publish(cluster: MemoryCluster, world: World) -> None:
    cluster.partitions[JOBS_TOPIC] = 1
    cluster.append(JOBS_TOPIC, world.job.to_bytes(), key=world.job.name.encode())
    for role, starts in world.job.start_offsets.items():
        topic = world.job.topic(role)
        cluster.partitions[topic] = len(starts)
        for partition in range(len(starts)):
            cluster.records[topic, partition] = [
                LogRecord(offset, value)
                for offset, value in enumerate(world.log.values(role, partition))
            ]


def test_record_command_can_record_and_resume_and_verify(
    tmp_path: Path, dpstream: Commands, cluster: MemoryCluster
) -> None:
    world = finished_world(tmp_path / "producers", to=2)
    publish(cluster, world)
    kept = tmp_path / "kept"
    result = dpstream("record", "watched", "--output", kept)
    assert result.code == 0, result.errors
    assert result.output.startswith("2 epochs recorded, with 80 reports in their windows\n")
    assert f"{kept} contains epochs 1 to 2 of job watched (4 files, " in result.output
    assert "epoch 3 is not published yet" in result.output
    again = dpstream("record", "watched", "--output", kept)
    assert f"nothing new is published: {kept} contains epochs 1 to 2 of job" in again.output
    assert again.errors == ""

    run_epochs(world, 3, 4)
    publish(cluster, world)
    body = dpstream("record", "watched", "--output", kept, "--follow", "--json").json
    assert (body["first_epoch"], body["last_epoch"], body["epochs_added"]) == (1, 4, 2)
    assert body["complete"] is True
    assert body["missing"] == []
    check_cells(kept)

    result = dpstream("record", "--verify", kept, "--deep")
    assert result.code == 0
    assert "is intact" in result.output
    assert "windows match the partials" in " ".join(result.output.split())
    data = bytearray((kept / INDEX_FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (kept / INDEX_FILE).write_bytes(data)
    result = dpstream("record", "--verify", kept, "--json")
    assert result.code == 1
    assert json.loads(result.output)["intact"] is False
    again = dpstream("record", "watched", "--output", kept)
    assert (again.code, "modified" in again.errors) == (1, True)
    result = dpstream("record", "--verify", tmp_path / "nowhere")
    assert (result.code, result.output) == (1, "")
    assert result.errors.startswith(f"error: there is no recording in {tmp_path / 'nowhere'}")


Form = tuple[str, int]


def write(
    path: Path, numbers: range, form: Form = ("<u2", 1), every: int = 3, rows: int = 40
) -> None:
    path.mkdir(exist_ok=True)
    index = index_of(np.dtype(form[0]).itemsize, form[1])
    with RecordingWriter(RecordingFolder(path), index) as writer:
        for number in numbers:
            writer.add(epoch_of(number, form, rows))
            if number % every == 0:
                writer.commit([LogPosition(0, number)])
        writer.commit([LogPosition(0, numbers[-1])])


def multiset(words: Messages) -> Counter[tuple[int, ...]]:
    counts = np.ones(words.rows, np.uint64) if words.counts is None else words.counts
    by_row: Counter[tuple[int, ...]] = Counter()
    for row, count in zip(words.values.tolist(), counts.tolist(), strict=True):
        by_row[tuple(row)] += count
    return by_row


def check_contents(
    recording: Recording, numbers: range, form: Form = ("<u2", 1), first: int = 1, rows: int = 40
) -> None:
    replay_range = [epoch_of(number, form, rows) for number in numbers if number >= first]
    released = [each for each in replay_range if each.window is not None]
    assert list(recording.manifests(first)) == [each.manifest for each in replay_range]
    assert list(recording.estimates(first)) == [each.estimate for each in replay_range]
    partials = [(row.epoch, row.payload) for row in recording.partials(first)]
    assert partials == [(each.epoch, each.partial) for each in released]
    windows = list(recording.windows(first))
    assert [epoch for epoch, _ in windows] == [each.epoch for each in released]
    for each, (_, words) in zip(released, windows, strict=True):
        assert each.window is not None
        assert words.values.dtype == np.dtype(form[0])
        assert words.counts is not None
        assert multiset(words) == multiset(each.window)


def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    write(tmp_path / "one", range(1, 3))
    for file in (tmp_path / "one").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_missing_windows_are_distinguished_from_empty_windows(tmp_path: Path) -> None:
    with RecordingWriter(RecordingFolder(tmp_path), index_of()) as writer:
        for number in range(1, 10):
            epoch = epoch_of(number)
            if number in (2, 3, 4, 8):
                epoch = replace(epoch, window=None)
                writer.add_missing(Missing(number, number, "it was deleted"))
            writer.add(epoch)
        writer.commit([])
    recording = Recording.open(tmp_path)
    # Epoch 5 is suppressed, epoch 7 is empty.
    assert [(epoch, words.rows > 0) for epoch, words in recording.windows()] == [
        (1, True),
        (6, True),
        (7, False),
        (9, True),
    ]
    assert list(map(str, recording.index.missing)) == [
        "windows of epochs 2 to 4: it was deleted",
        "windows of epoch 8: it was deleted",
    ]


def test_every_modified_bit_is_detected(tmp_path: Path) -> None:
    write(tmp_path, range(1, 12))
    assert len(list(tmp_path.iterdir())) == 5
    generator = np.random.default_rng(11)
    for file in sorted(tmp_path.iterdir()):
        whole = file.read_bytes()
        places = generator.choice(len(whole), min(len(whole), 60), replace=False)
        for place in {0, len(whole) - 1, *places.tolist()}:
            altered = bytearray(whole)
            altered[place] ^= 1 << int(generator.integers(8))
            file.write_bytes(altered)
            with pytest.raises(RecordingError, match="modified"):
                read_all(tmp_path)
        file.write_bytes(whole)
    read_all(tmp_path)


def read_all(path: Path) -> None:
    recording = Recording.open(path)
    for rows in (recording.manifests, recording.windows, recording.partials, recording.estimates):
        list(rows())


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "is truncated"),
        (lambda file: file.write_bytes(b""), "is truncated"),
        (lambda file: file.write_bytes(file.read_bytes() + b"\0"), "was modified"),
        (lambda file: file.unlink(), "is missing"),
    ],
    ids=["shorter", "empty", "longer", "gone"],
)
def test_truncated_or_missing_files_are_reported(
    tmp_path: Path, damage: Callable[[Path], object], problem: str
) -> None:
    for name in ("manifests", "windows", "partials", "estimates"):
        folder = tmp_path / name
        write(folder, range(1, 6))
        (file,) = folder.glob(f"{name}-*")
        damage(file)
        with pytest.raises(RecordingError, match=f"{file.name} .*{problem}"):
            read_all(folder)
        with pytest.raises(RecordingError, match=f"{file.name} has .* bytes"):
            RecordingWriter(RecordingFolder(folder), Recording.open(folder).index)


def test_folder_without_a_recording_is_rejected(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RecordingError, match="there is no recording"):
            Recording.open(path)
    (tmp_path / INDEX_FILE).write_text('{"version": 4}')
    with pytest.raises(RecordingError, match="got version 4; expected 1"):
        Recording.open(tmp_path)


@pytest.mark.parametrize("path", ["../secret", "/secret", "..", "", "a\0", "windows-1.parquet"])
def test_index_with_an_unexpected_file_name_is_rejected(tmp_path: Path, path: str) -> None:
    write(tmp_path, range(1, 3))
    index = Recording.open(tmp_path).index
    assert index.files[0].kind is RecordKind.MANIFESTS
    stray = replace(index, files=(replace(index.files[0], path=path), *index.files[1:]))
    (tmp_path / INDEX_FILE).write_bytes(stray.to_bytes())
    with pytest.raises(RecordingError, match=r"unexpected file name"):
        Recording.open(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"word_bytes": 3},
        {"first_epoch": "1"},
        {"places": (LogPosition(0, -1),)},
        {"missing": (Missing(None, 3, "gone"),)},  # type: ignore[arg-type]
    ],
)
def test_index_with_wrong_content_is_rejected_despite_valid_checksum(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    (tmp_path / INDEX_FILE).write_bytes(replace(index_of(), **changed).to_bytes())
    with pytest.raises(RecordingError, match=r"recording\.json: modified or truncated"):
        Recording.open(tmp_path)


def swap_contents(path: Path, kind: RecordKind, data: bytes) -> None:
    index = Recording.open(path).index
    (file,) = index.of_kind(kind)
    (path / file.path).write_bytes(data)
    forged = replace(file, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    kept = tuple(forged if each == file else each for each in index.files)
    (path / INDEX_FILE).write_bytes(replace(index, files=kept).to_bytes())


def test_invalid_table_is_rejected_despite_valid_checksums(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    (file,) = tmp_path.glob("manifests-*")
    footer = b"\xff" * 40 + (40).to_bytes(4, "little") + b"PAR1"
    for data in (b"no table", b"PAR1" + footer, file.read_bytes()[:-60] + footer):
        swap_contents(tmp_path, RecordKind.MANIFESTS, data)
        with pytest.raises(RecordingError, match=f"{file.name} cannot be read"):
            read_all(tmp_path)


def test_wrong_columns_are_rejected_despite_valid_checksums(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    (partials,) = tmp_path.glob("partials-*")
    swap_contents(tmp_path, RecordKind.WINDOWS, partials.read_bytes())
    with pytest.raises(RecordingError, match="unexpected columns in a file of kind windows"):
        list(Recording.open(tmp_path).windows())


def record_all(folder: AccidentFolder) -> None:
    path = folder.path / INDEX_FILE
    index = Recording.open(folder.path).index if path.exists() else index_of()
    writer = RecordingWriter(folder, index)
    try:
        for number in range(writer.next_epoch or 1, 5):
            writer.add(epoch_of(number))
            if number % 2 == 0:
                writer.commit([LogPosition(0, number)])
    except OSError:
        writer.abandon()
        raise


@pytest.mark.parametrize("power", [False, True], ids=["killed", "without power"])
@pytest.mark.parametrize("small", [0, 1 << 20], ids=["new files", "files written again"])
@pytest.mark.slow
def test_recorder_resumes_after_it_is_stopped_at_any_operation(
    tmp_path: Path, power: bool, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpstream.pipeline.recording.recording_writer._SMALL_BYTES", small)
    (tmp_path / "whole").mkdir()
    undisturbed = AccidentFolder(tmp_path / "whole")
    record_all(undisturbed)
    assert undisturbed.count > 30
    names = {file.name for file in (tmp_path / "whole").iterdir()}
    for at in range(1, undisturbed.count + 1):
        path = tmp_path / str(at)
        path.mkdir()
        with pytest.raises(KilledError):
            record_all(AccidentFolder(path, at, power=power))
        if (path / INDEX_FILE).exists():
            recording = Recording.open(path)
            assert len(recording.epochs) % 2 == 0
            check_contents(recording, recording.epochs)
        record_all(AccidentFolder(path))
        check_contents(Recording.open(path), range(1, 5))
        assert len({file.name for file in path.iterdir()}) == len(names)


@pytest.mark.slow
def test_full_disk_loses_no_recorded_epoch(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    undisturbed = AccidentFolder(tmp_path / "whole", full=True)
    record_all(undisturbed)
    for at in range(1, undisturbed.count + 1):
        path = tmp_path / str(at)
        path.mkdir()
        with pytest.raises(OSError, match="No space left"):
            record_all(AccidentFolder(path, at, full=True))
        if (path / INDEX_FILE).exists():
            recording = Recording.open(path)
            check_contents(recording, recording.epochs)
        record_all(AccidentFolder(path))
        check_contents(Recording.open(path), range(1, 5))
