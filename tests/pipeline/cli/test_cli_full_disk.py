"""Test a full disk: an error naming the file, exit code 1, and no partial files."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from dpstream.pipeline.cli.command_errors import explain
from dpstream.pipeline.errors import FAILED
from dpstream.pipeline.jobs.descriptions import signing_key_at
from dpstream.pipeline.jobs.key_files import CollectorKey, NoiseKey, WrongKeyError
from dpstream.pipeline.jobs.sealing_keys import make_key_pair
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.state import FolderLock
from dpstream.pipeline.whole_files import replaced_whole
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster, use_memory_cluster
from tests.support.no_room import no_room
from tests.support.replays import LiveRun, example_job

TOO_LARGE = "File too large"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    cluster = use_memory_cluster(monkeypatch)
    run = LiveRun.of(example_job("future_rand", PROTOCOLS["future_rand"].examples[1]), epochs=4)
    run.write(cluster)
    return cluster


def test_plot_file_is_replaced_atomically(dpstream: Commands, job_file: Path) -> None:
    folder = job_file.parent
    picture = folder / "plan.png"
    picture.write_bytes(b"the picture of yesterday")
    before = sorted(folder.glob("*.*"))
    with no_room(2_000):
        result = dpstream("plan", job_file, "--plot", picture)
    assert (result.code, result.errors) == (1, f"error: {picture}: {TOO_LARGE}\n")
    assert sorted(folder.glob("*.*")) == before
    assert picture.read_bytes() == b"the picture of yesterday"


def test_special_file_is_written_to_directly(dpstream: Commands, job_file: Path) -> None:
    result = dpstream("plan", job_file, "--plot", "/dev/full")
    assert (result.code, result.errors) == (1, "error: /dev/full: No space left on device\n")


@pytest.mark.parametrize("buffered", [True, False])
def test_partially_written_results_are_removed(job_file: Path, buffered: bool) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [
                sys.executable,
                *([] if buffered else ["-u"]),
                "-m",
                "dpstream.pipeline.cli",
                "--version",
            ],
            cwd=Path(__file__).parents[3],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    message = "error: standard output: No space left on device; the output is truncated\n"
    assert (done.returncode, done.stderr) == (1, message)


def test_write_errors_print_one_line_and_other_errors_print_a_traceback() -> None:
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO):
        explained = explain(OSError(number, "why"))
        assert explained == ("standard output: why; the output is truncated", FAILED)
    assert explain(OSError(errno.EBADF, "a mistake of ours")) is None


@pytest.mark.parametrize("room", [0, 100, 1_000])
def test_recording_resumes_without_partial_files(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path, room: int
) -> None:
    folder = tmp_path / "recording"
    with no_room(room):
        result = dpstream("record", "live", "--output", folder)
    assert result.code == 1
    assert result.errors.startswith(f"error: {folder}")
    assert TOO_LARGE in result.errors
    assert result.errors.count("\n") == 1
    assert [file.name for file in folder.iterdir()] == ["lock"]

    assert dpstream("record", "live", "--output", folder).code == 0
    assert dpstream("record", "--verify", folder, "--deep").code == 0


def test_local_broker_requires_free_space_to_start(dpstream: Commands, tmp_path: Path) -> None:
    with no_room(1 << 20):
        result = dpstream("kafka", "start")
    assert result.code == 1
    assert result.output == ""
    folder = tmp_path / "home" / "kafka"
    assert result.errors == (
        f"error: the local Kafka stores its data in {folder}, where less than 32 MiB can be "
        f"written ({TOO_LARGE}): free some space, or set DPSTREAM_HOME to another folder\n"
    )
    assert [file.name for file in folder.iterdir()] == ["lock"]


def test_lock_error_mentions_the_path_of_the_lock_file(tmp_path: Path) -> None:
    with no_room(), pytest.raises(OSError, match="lock") as caught:
        FolderLock(tmp_path, "a test")
    assert explain(caught.value) == (f"{tmp_path}/lock: {TOO_LARGE}", FAILED)


@pytest.mark.parametrize("make", [NoiseKey.at, CollectorKey.at, signing_key_at])
def test_partially_written_key_is_removed(tmp_path: Path, make: object) -> None:
    path = tmp_path / "key"
    assert callable(make)
    with no_room(8), pytest.raises(OSError, match=TOO_LARGE) as caught:
        make(path)
    assert caught.value.filename == str(path)
    assert not path.exists()
    make(path)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("room", [10, 116])
def test_key_pair_is_written_atomically(tmp_path: Path, room: int) -> None:
    files = tmp_path / "a.key", tmp_path / "a.pub"
    with no_room(room), pytest.raises(WrongKeyError, match=TOO_LARGE):
        make_key_pair(*files)
    assert not any(file.exists() for file in files)


def test_replacing_a_file_keeps_permissions_and_follows_links(tmp_path: Path) -> None:
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    real.chmod(0o600)
    link.symlink_to(real)
    with replaced_whole(link) as part:
        assert part.suffix == ".csv"
        part.write_text("new")
        assert real.read_text() == "old"
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o600
    assert sorted(tmp_path.iterdir()) == [link, real]


def test_missing_folder_error_reports_the_given_path(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "table.csv"
    with pytest.raises(FileNotFoundError) as caught, replaced_whole(path):
        pass
    assert caught.value.filename == str(path)
