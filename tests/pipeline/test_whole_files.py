"""Test that only regular files of bounded size are read, for all options and keys."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.jobs.descriptions import signing_key_at
from dpstream.pipeline.jobs.job_files import load_job, parse_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.key_files import CollectorKey, NoiseKey, WrongKeyError
from dpstream.pipeline.jobs.sealing_keys import read_private_key, read_public_key
from dpstream.pipeline.kafka.client_properties import read_client_properties
from dpstream.pipeline.kafka.connection import ConnectionSettingsError
from dpstream.pipeline.planning.change_budgets import read_changes_histogram
from dpstream.pipeline.whole_files import (
    WholeFileError,
    read_whole_file,
    read_whole_text,
)
from tests.support.commands import Commands

WRONG = ("fifo", "/dev/zero", "folder", "socket")


def path_of(folder: Path, kind: str) -> Path:
    path = folder / kind
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
        case device:
            path = Path(device)
    return path


@pytest.fixture(params=WRONG)
def wrong(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return path_of(tmp_path, request.param)


def test_only_regular_files_are_read(wrong: Path) -> None:
    with pytest.raises(OSError) as rejection:  # noqa: PT011
        read_whole_file(wrong)
    assert rejection.value.strerror in (
        "not a regular file",
        "is a folder",
        "No such device or address",
    )


def test_file_is_read_up_to_its_maximum_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a\r\nb\rc\n" * 10)
    assert read_whole_text(path, largest=70) == "a\nb\nc\n" * 10
    with pytest.raises(WholeFileError, match="more than 69 bytes"):
        read_whole_file(path, largest=69)
    with pytest.raises(WholeFileError, match="NUL"):
        read_whole_file(Path("a\0b"))
    link = tmp_path / "link"
    link.symlink_to(path)
    assert len(read_whole_file(link)) == 70


def domain_file(name: str) -> str:
    return (
        "name: items\nprotocol: hadamard_values\nepochs: {count: 4}\n"
        f"parameters:\n  epsilon: 4\n  max_changes: 1\n  domain:\n    file: {name}\n"
    )


def test_label_path_that_is_not_a_regular_file_is_rejected(wrong: Path) -> None:
    with pytest.raises(JobError, match=r"job:8: parameters\.domain\.file: .*cannot read"):
        parse_job(domain_file(str(wrong)))


def test_name_of_a_label_file_with_a_nul_character_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"job:8: parameters\.domain\.file: .*NUL character"):
        parse_job(domain_file('"a\\0b"'), folder=tmp_path)


def test_special_files_are_rejected_by_type(wrong: Path) -> None:
    with pytest.raises(JobError, match="cannot read the job file"):
        load_job(wrong)
    with pytest.raises(InputError, match="cannot read the histogram of changes"):
        read_changes_histogram(wrong, 4)
    with pytest.raises(ConnectionSettingsError, match="cannot read"):
        read_client_properties(wrong)
    for read in (NoiseKey.read, CollectorKey.read, read_private_key, read_public_key):
        with pytest.raises(WrongKeyError, match=f"{wrong}"):
            read(wrong)


@pytest.mark.parametrize("make", [NoiseKey.at, CollectorKey.at, signing_key_at])
def test_pipe_instead_of_a_key_file_is_rejected(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    os.mkfifo(tmp_path / "key", 0o600)
    with pytest.raises(WrongKeyError, match="not a regular file"):
        make(tmp_path / "key")


def test_certificate_must_be_a_regular_file(tmp_path: Path) -> None:
    config = tmp_path / "client.properties"
    config.write_text(
        "bootstrap.servers=a:9092\nsecurity.protocol=SSL\nssl.truststore.type=PEM\n"
        "ssl.truststore.location=/dev/zero\n"
    )
    with pytest.raises(ConnectionSettingsError, match="cannot read /dev/zero: not a regular file"):
        read_client_properties(config)


def test_commands_reject_special_files_with_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run the command in a separate process, because a failure would block."""
    fifo = path_of(tmp_path, "fifo")
    done = subprocess.run(
        [sys.executable, "-m", "dpstream.pipeline.cli", "plan", str(fifo), "--users", "1000"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr == f"error: {fifo}: cannot read the job file: not a regular file\n"
    said = Commands(capsys)("plan", tmp_path, "--users", "1000")
    assert (said.code, said.errors.count("\n")) == (2, 1)
