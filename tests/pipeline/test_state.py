"""Test that all local state is in one place, private, and used by one process at a time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpstream.pipeline.state import (
    FolderInUse,
    FolderLock,
    cache_home,
    kafka_folder,
    private_folder,
    producer_folder,
    state_home,
    worker_folder,
)


@pytest.fixture(autouse=True)
def no_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DPSTREAM_HOME", "DPSTREAM_CACHE", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_environment_variables_set_the_state_and_cache_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert state_home() == tmp_path / ".local/state/dpstream"
    assert cache_home() == tmp_path / ".cache/dpstream"
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg/state")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/are/to/be/ignored")
    assert state_home() == Path("/xdg/state/dpstream")
    assert cache_home() == tmp_path / ".cache/dpstream"
    monkeypatch.setenv("DPSTREAM_HOME", "~/mine")
    monkeypatch.setenv("DPSTREAM_CACHE", "/cache")
    assert state_home() == tmp_path / "mine"
    assert cache_home() == Path("/cache")
    assert kafka_folder() == tmp_path / "mine/kafka"
    assert producer_folder("job", "gate") == tmp_path / "mine/producers/job/gate"
    assert worker_folder("job", "shuffle", "1") == tmp_path / "mine/workers/job/shuffle/1"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../etc", "a\0b"])
def test_producer_name_cannot_escape_the_state_folder(name: str) -> None:
    with pytest.raises(ValueError, match="is not a folder name; expected letters, digits, '"):
        producer_folder("job", name)


def test_state_folders_are_accessible_only_to_their_owner(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a" / "b")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert private_folder(folder) == folder


def test_error_for_a_held_lock_names_the_process_that_has_it(tmp_path: Path) -> None:
    folder = tmp_path / "held"
    with FolderLock(folder, "counting sheep"):
        with pytest.raises(FolderInUse) as caught:
            FolderLock(folder, "counting goats")
        assert str(folder) in str(caught.value)
        assert f"process {os.getpid()} (counting sheep)" in str(caught.value)
    lock = FolderLock(folder, "counting goats")
    lock.release()
    lock.release()


def test_lock_is_released_when_its_process_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from dpstream.pipeline.state import FolderLock\n"
        f"lock = FolderLock(Path({str(tmp_path)!r}), 'waiting to be killed')\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(FolderInUse, match=f"process {holder.pid} .waiting to be killed"):
            FolderLock(tmp_path, "me")
        holder.kill()
        # The timeout is a bound, not a delay: the lock is free once the process is gone.
        FolderLock(tmp_path, "me", wait=60.0).release()
