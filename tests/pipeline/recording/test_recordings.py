"""Recordings: what is written is read, and whatever happens to a file is noticed."""

from __future__ import annotations

import hashlib
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpstream.pipeline.recording.recordings import (
    INDEX_FILE,
    Missing,
    Place,
    RecordedEpoch,
    Recording,
    RecordingError,
    RecordingFolder,
    RecordingWriter,
    RecordKind,
)
from dpstream.topics.words import Words
from tests.support.recording_folders import (
    AccidentFolder,
    KilledError,
    epoch_of,
    index_of,
)

FORMS = [("u1", 1), ("<u2", 1), ("<u4", 1), ("<u8", 1), ("u1", 13), ("<u4", 3)]
Form = tuple[str, int]


def write(
    path: Path, numbers: range, form: Form = ("<u2", 1), every: int = 3, rows: int = 40
) -> None:
    """Record some epochs, with a commit every few of them."""
    path.mkdir(exist_ok=True)
    index = index_of(np.dtype(form[0]).itemsize, form[1])
    with RecordingWriter(RecordingFolder(path), index) as writer:
        for number in numbers:
            writer.add(epoch_of(number, form, rows))
            if number % every == 0:
                writer.commit([Place(0, number)])
        writer.commit([Place(0, numbers[-1])])


def multiset(words: Words) -> Counter[tuple[int, ...]]:
    """What words say, whatever their order and form."""
    counts = np.ones(words.rows, np.uint64) if words.counts is None else words.counts
    found: Counter[tuple[int, ...]] = Counter()
    for row, count in zip(words.values.tolist(), counts.tolist(), strict=True):
        found[tuple(row)] += count
    return found


def check_contents(
    recording: Recording, numbers: range, form: Form = ("<u2", 1), first: int = 1, rows: int = 40
) -> None:
    """See that a recording holds just these epochs."""
    wanted = [epoch_of(number, form, rows) for number in numbers if number >= first]
    released = [each for each in wanted if each.window is not None]
    assert list(recording.manifests(first)) == [each.manifest for each in wanted]
    assert list(recording.estimates(first)) == [each.estimate for each in wanted]
    partials = [(row.epoch, row.payload) for row in recording.partials(first)]
    assert partials == [(each.epoch, each.partial) for each in released]
    windows = list(recording.windows(first))
    assert [epoch for epoch, _ in windows] == [each.epoch for each in released]
    for each, (_, words) in zip(released, windows, strict=True):
        assert each.window is not None
        assert words.values.dtype == np.dtype(form[0])
        assert words.counts is not None
        assert multiset(words) == multiset(each.window)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_is_read(tmp_path: Path, form: Form) -> None:
    write(tmp_path / "one", range(1, 17), form)
    recording = Recording.open(tmp_path / "one")
    assert recording.epochs == range(1, 17)
    for first in (1, 2, 7, 16, 17, 99):
        check_contents(recording, range(1, 17), form, first)


def test_windows_of_several_row_groups_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpstream.pipeline.recording.recording_files._GROUP_ROWS", 16)
    monkeypatch.setattr("dpstream.pipeline.recording.recording_files._GROUP_BYTES", 100)
    write(tmp_path / "one", range(1, 17))
    check_contents(Recording.open(tmp_path / "one"), range(1, 17), first=4)


def test_files_are_few_unless_they_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "small", range(1, 30), every=1)
    assert len(Recording.open(tmp_path / "small").index.files) == 4
    assert len(list((tmp_path / "small").iterdir())) == 5
    check_contents(Recording.open(tmp_path / "small"), range(1, 30))
    monkeypatch.setattr("dpstream.pipeline.recording.recording_writer._SMALL_BYTES", 0)
    write(tmp_path / "large", range(1, 30), every=1)
    files = Recording.open(tmp_path / "large").index.of_kind(RecordKind.MANIFESTS)
    assert [file.first_epoch for file in files] == list(range(1, 30))
    check_contents(Recording.open(tmp_path / "large"), range(1, 30), first=11)


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    write(tmp_path / "one", range(1, 3))
    for file in (tmp_path / "one").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_is_missing_is_no_empty_window(tmp_path: Path) -> None:
    with RecordingWriter(RecordingFolder(tmp_path), index_of()) as writer:
        for number in range(1, 10):
            epoch = epoch_of(number)
            if number in (2, 3, 4, 8):
                epoch = replace(epoch, window=None)
                writer.add_missing(Missing(number, number, "it was deleted"))
            writer.add(epoch)
        writer.commit([])
    recording = Recording.open(tmp_path)
    # 5 was too small, 7 is empty.
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


def test_epochs_are_added_in_their_order(tmp_path: Path) -> None:
    with RecordingWriter(RecordingFolder(tmp_path), index_of()) as writer:
        writer.add(epoch_of(4))
        for wrong in (3, 4, 6):
            with pytest.raises(ValueError, match=rf"epoch {wrong} cannot follow epoch 4"):
                writer.add(epoch_of(wrong))
        writer.add(epoch_of(5))


def test_every_altered_bit_is_noticed(tmp_path: Path) -> None:
    write(tmp_path, range(1, 12))
    assert len(list(tmp_path.iterdir())) == 5
    generator = np.random.default_rng(11)
    for file in sorted(tmp_path.iterdir()):
        whole = file.read_bytes()
        places = generator.choice(len(whole), min(len(whole), 150), replace=False)
        for place in {0, len(whole) - 1, *places.tolist()}:
            altered = bytearray(whole)
            altered[place] ^= 1 << int(generator.integers(8))
            file.write_bytes(altered)
            with pytest.raises(RecordingError, match="altered"):
                read_all(tmp_path)
        file.write_bytes(whole)
    read_all(tmp_path)


@pytest.mark.verify
def test_every_bit_of_the_index_counts(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    file = tmp_path / INDEX_FILE
    whole = file.read_bytes()
    for bit in range(8 * len(whole)):
        altered = bytearray(whole)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordingError):
            type(Recording.open(tmp_path).index).from_bytes(bytes(altered))


def read_all(path: Path) -> None:
    recording = Recording.open(path)
    for rows in (recording.manifests, recording.windows, recording.partials, recording.estimates):
        list(rows())


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "is cut short"),
        (lambda file: file.write_bytes(b""), "is cut short"),
        (lambda file: file.write_bytes(file.read_bytes() + b"\0"), "was altered"),
        (lambda file: file.unlink(), "is missing"),
    ],
    ids=["shorter", "empty", "longer", "gone"],
)
def test_files_cut_short_or_missing_are_named(
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


def test_a_folder_without_a_recording_is_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RecordingError, match="there is no recording"):
            Recording.open(path)
    (tmp_path / INDEX_FILE).write_text('{"version": 4}')
    with pytest.raises(RecordingError, match="version 4, this software reads 1"):
        Recording.open(tmp_path)


@pytest.mark.parametrize("path", ["../secret", "/secret", "..", "", "a\0", "windows-1.parquet"])
def test_an_index_names_only_files_of_a_recording(tmp_path: Path, path: str) -> None:
    write(tmp_path, range(1, 3))
    index = Recording.open(tmp_path).index
    assert index.files[0].kind is RecordKind.MANIFESTS
    stray = replace(index, files=(replace(index.files[0], path=path), *index.files[1:]))
    (tmp_path / INDEX_FILE).write_bytes(stray.to_bytes())
    with pytest.raises(RecordingError, match=r"names the file .* which is none of a recording"):
        Recording.open(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"word_bytes": 3},
        {"word_width": 0},
        {"first_epoch": "1"},
        {"from_epoch": None},
        {"job_record": 5},
        {"places": (Place(0, -1),)},
        {"missing": (Missing(None, 3, "gone"),)},  # type: ignore[arg-type]
    ],
)
def test_an_index_of_other_things_is_refused_even_with_its_right_sum(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    (tmp_path / INDEX_FILE).write_bytes(replace(index_of(), **changed).to_bytes())
    with pytest.raises(RecordingError, match=r"recording\.json: it was altered or cut short"):
        Recording.open(tmp_path)


def swap_contents(path: Path, kind: RecordKind, data: bytes) -> None:
    """Put other bytes in the place of a file of a recording, with right sums."""
    index = Recording.open(path).index
    (file,) = index.of_kind(kind)
    (path / file.path).write_bytes(data)
    forged = replace(file, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    kept = tuple(forged if each == file else each for each in index.files)
    (path / INDEX_FILE).write_bytes(replace(index, files=kept).to_bytes())


def test_what_is_no_table_is_refused_even_with_right_sums(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    (file,) = tmp_path.glob("manifests-*")
    footer = b"\xff" * 40 + (40).to_bytes(4, "little") + b"PAR1"
    for data in (b"no table", b"PAR1" + footer, file.read_bytes()[:-60] + footer):
        swap_contents(tmp_path, RecordKind.MANIFESTS, data)
        with pytest.raises(RecordingError, match=f"{file.name} cannot be read"):
            read_all(tmp_path)


def test_a_fate_that_there_is_not_is_refused_even_with_right_sums(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    (file,) = tmp_path.glob("manifests-*")
    table = pq.read_table(file)
    at = table.column_names.index("fate")
    pq.write_table(table.set_column(at, "fate", pa.array(["later"] * len(table))), file)
    swap_contents(tmp_path, RecordKind.MANIFESTS, file.read_bytes())
    with pytest.raises(RecordingError, match=f"{file.name} cannot be read: 'later'"):
        read_all(tmp_path)


def test_other_columns_are_refused_even_with_right_sums(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    (partials,) = tmp_path.glob("partials-*")
    swap_contents(tmp_path, RecordKind.WINDOWS, partials.read_bytes())
    with pytest.raises(RecordingError, match="has other columns than windows"):
        list(Recording.open(tmp_path).windows())


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory, where there is one: hundreds of recordings wait for their disk here."""
    shared = Path("/dev/shm")
    with TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        yield Path(name)


def record_all(folder: AccidentFolder) -> None:
    """Record epochs 1 to 4, from wherever the folder stands."""
    path = folder.path / INDEX_FILE
    index = Recording.open(folder.path).index if path.exists() else index_of()
    writer = RecordingWriter(folder, index)
    try:
        for number in range(writer.next_epoch or 1, 5):
            writer.add(epoch_of(number))
            if number % 2 == 0:
                writer.commit([Place(0, number)])
    except OSError:
        writer.abandon()
        raise


@pytest.mark.parametrize("power", [False, True], ids=["killed", "without power"])
@pytest.mark.parametrize("small", [0, 1 << 20], ids=["new files", "files written again"])
@pytest.mark.slow
def test_stopped_at_any_operation_it_goes_on(
    memory: Path, power: bool, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpstream.pipeline.recording.recording_writer._SMALL_BYTES", small)
    (memory / "whole").mkdir()
    undisturbed = AccidentFolder(memory / "whole")
    record_all(undisturbed)
    assert undisturbed.count > 30
    names = {file.name for file in (memory / "whole").iterdir()}
    for at in range(1, undisturbed.count + 1):
        path = memory / str(at)
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
def test_a_full_disk_costs_nothing_that_was_recorded(memory: Path) -> None:
    (memory / "whole").mkdir()
    undisturbed = AccidentFolder(memory / "whole", full=True)
    record_all(undisturbed)
    for at in range(1, undisturbed.count + 1):
        path = memory / str(at)
        path.mkdir()
        with pytest.raises(OSError, match="No space left"):
            record_all(AccidentFolder(path, at, full=True))
        if (path / INDEX_FILE).exists():
            recording = Recording.open(path)
            check_contents(recording, recording.epochs)
        record_all(AccidentFolder(path))
        check_contents(Recording.open(path), range(1, 5))


def test_an_altered_file_is_not_written_again_as_if_it_were_right(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    (file,) = tmp_path.glob("estimates-*")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    index = Recording.open(tmp_path).index
    with (
        RecordingWriter(RecordingFolder(tmp_path), index) as writer,
        pytest.raises(RecordingError, match=f"{file.name} was altered"),
    ):
        writer.add(epoch_of(3))


def test_counts_of_any_size_are_kept(tmp_path: Path) -> None:
    counts = np.array([1, 2**32 + 5, 2**50], np.uint64)
    words = Words(np.array([[0], [3], [9]], "<u2"), counts)
    epoch: RecordedEpoch = replace(epoch_of(1), window=words)
    with RecordingWriter(RecordingFolder(tmp_path), index_of()) as writer:
        writer.add(epoch)
        writer.commit([])
    ((_, found),) = Recording.open(tmp_path).windows()
    assert found.counts is not None
    assert found.counts.tolist() == counts.tolist()
