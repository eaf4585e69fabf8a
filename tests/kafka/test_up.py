"""Test that `dpstream up` leaves nothing behind when it finishes or is stopped at any moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import psutil
import pytest

from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.state import FolderLock
from dpstream.topics.chunks import decode_chunk
from dpstream.topics.messages import pack_messages
from dpstream.topics.names import Role, topic_name
from tests.support.ended import still_running
from tests.support.small_run import EPOCHS, USERS, job_text, write_changes

ROOT = Path(__file__).parents[2]
TIMEOUT = 120.0
"""Timeout in seconds, far longer than any expected wait."""


class Home:
    def __init__(self, folder: Path, job: str) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.job = folder / "job.yaml"
        self.job.write_text(job_text(job))
        self.name = job
        self.input = write_changes(folder / "changes.csv")
        self.kafka = self.state / "kafka"

    def processes(self) -> list[psutil.Process]:
        """Return all processes with this state folder in their environment, except zombies."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("DPSTREAM_HOME") == str(self.state):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def processes_of(self, command: str) -> list[psutil.Process]:
        """Return the processes of a dpstream command; forked processes have its name."""
        return [process for process in self.processes() if process.name() == command]

    @contextmanager
    def up(self, *options: str) -> Iterator[Up]:
        command = [sys.executable, "-m", "dpstream.pipeline.cli", "up", str(self.job), "--json"]
        command += ["--input", str(self.input), "--output", str(self.folder / "out"), "--yes"]
        command += options
        with Up(command, self) as up:
            yield up

    def assert_nothing_is_left(self) -> None:
        assert not self.processes()
        for lock in self.state.rglob("lock"):
            FolderLock(lock.parent, "a test").release()
        assert not list(self.state.glob("producers/*/*"))


def heed_all_signals() -> None:
    """Reset signals that nohup or a shell ignores, since child processes would ignore them too."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)


class Up:
    def __init__(self, command: list[str], home: Home) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "DPSTREAM_HOME": str(home.state)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed_all_signals,
        )
        self.said: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def wait_for_output(self, text: str) -> None:
        lines: IO[str] | None = self.process.stderr
        assert lines is not None
        for line in lines:
            self.said.append(line)
            if text in line:
                return
        raise AssertionError(f"it never said {text!r}, but:\n{''.join(self.said)}")

    def end(self, number: int | None = None) -> tuple[int, str]:
        if number is not None:
            self.process.send_signal(number)
        output, said = self.process.communicate(timeout=TIMEOUT)
        self.said.append(said)
        return self.process.returncode, output

    def result(self) -> dict[str, Any]:
        code, output = self.end()
        assert code == 0, "".join(self.said)
        body: dict[str, Any] = json.loads(output)
        return body


@pytest.fixture
def home(tmp_path: Path, job_name: str) -> Iterator[Home]:
    home = Home(tmp_path, job_name)
    yield home
    still_running(home.processes(), TIMEOUT)


@pytest.fixture
def served_home(home: Home, broker: LocalKafka) -> Iterator[Home]:
    """State folder with a broker that already runs, stays running, and is shared by tests."""
    home.state.mkdir()
    home.kafka.symlink_to(broker.directory)
    pid = broker.status().pid
    yield home
    assert broker.status().pid == pid


@pytest.mark.verify
def test_killed_run_leaves_no_process_and_the_next_run_recovers(
    home: Home,
) -> None:
    with home.up("--rate", "1") as up:
        up.wait_for_output("epoch 1 ")
        processes = home.processes()
        # This command, the broker's manager, Kafka, the forker, the producer, three workers.
        assert len(processes) == 8
        assert (
            "-XX:TieredStopAtLevel=1"
            in psutil.Process(LocalKafka(home.kafka).status().pid).cmdline()
        )
        up.process.kill()
        assert not still_running(processes, TIMEOUT)
        assert not home.processes()

    with home.up("--rate", "1") as up:
        up.wait_for_output("epoch 1 ")
        (producer,) = home.processes_of("produce")
        producer.suspend()
        psutil.Process(LocalKafka(home.kafka).status().pid).kill()
        up.wait_for_output("the local Kafka crashed")
        producer.resume()
        up.wait_for_output("stopping")
        # The work is finished, and a late signal must not do harm.
        up.process.send_signal(signal.SIGINT)
        result = up.result()
    home.assert_nothing_is_left()
    assert not LocalKafka(home.kafka).status().running
    assert [epoch["epoch"] for epoch in result["epochs"]] == list(range(1, EPOCHS + 1))
    assert [epoch["ground_truth"] for epoch in result["epochs"]][-1] == USERS
    assert result["epochs"][-1]["reports"] > 0
    assert result["rmse"] < 5 * result["predicted_rmse"]
    assert 0 < result["smoothed_rmse"] < 5 * result["predicted_rmse"]
    assert Path(result["files"]["estimates"]).read_text().count("\n") == EPOCHS + 1
    assert Path(result["files"]["plot"]).read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_during_broker_start_leaves_no_process(home: Home) -> None:
    with home.up() as up:
        up.wait_for_output("starting Apache Kafka")
        code, output = up.end(signal.SIGINT)
    assert (code, output) == (130, "")
    home.assert_nothing_is_left()
    assert not LocalKafka(home.kafka).status().running


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        pytest.param("deploying the job", signal.SIGHUP, marks=pytest.mark.verify),
        ("starting the producer", signal.SIGTERM),
        pytest.param("epoch 2 ", signal.SIGINT, marks=pytest.mark.verify),
    ],
)
def test_signal_at_any_step_leaves_no_process(
    served_home: Home, moment: str, number: signal.Signals
) -> None:
    # The run is slow enough to be in progress when the signal arrives.
    with served_home.up("--rate", "1") as up:
        up.wait_for_output(moment)
        code, _ = up.end(number)
    assert code == 128 + number, up.said
    served_home.assert_nothing_is_left()


def test_page_without_a_terminal_stays_up_until_sigterm(served_home: Home) -> None:
    with served_home.up("--page") as up:
        up.wait_for_output("The live page: ")
        address = up.said[-1].split()[-1]
        with urllib.request.urlopen(address.replace("?", "api/jobs?"), timeout=TIMEOUT) as answer:
            (job,) = json.load(answer)["jobs"]
        assert (job["job"], job["ended"]) == (served_home.name, True)
        # The results were written before the address, and not only when the page ends.
        assert up.process.stdout is not None
        os.set_blocking(up.process.stdout.fileno(), False)
        results = json.loads(os.read(up.process.stdout.fileno(), 1 << 16))
        assert len(results["epochs"]) == EPOCHS
        code, output = up.end(signal.SIGTERM)
    assert (code, output) == (0, "")
    served_home.assert_nothing_is_left()


def test_killed_worker_restarts_and_second_run_is_rejected(
    served_home: Home,
) -> None:
    with served_home.up("--rate", "1") as up:
        up.wait_for_output("epoch 1 ")
        (producer,) = served_home.processes_of("produce")
        producer.suspend()
        with served_home.up() as second:
            code, _ = second.end()
        assert code == 1
        assert f"dpstream up of {served_home.name}" in second.said[-1]
        assert "DPSTREAM_HOME" in second.said[-1]

        (worker,) = served_home.processes_of("aggregate")
        worker.kill()
        up.wait_for_output("aggregate was killed by signal 9; restarting")
        producer.resume()
        result = up.result()
    assert len(result["epochs"]) == EPOCHS
    served_home.assert_nothing_is_left()


def test_shuffler_noise_is_the_same_after_a_kill(
    served_home: Home,
) -> None:
    served_home.job.write_text(
        f"name: {served_home.name}\nprotocol: shuffled_counts\n"
        "parameters: {epsilon: 1, delta: 1e-6, dummies: shuffle}\n"
        f"epochs: {{count: {EPOCHS}}}\nshuffle: {{minimum: {USERS}}}\ntopics: {{partitions: 2}}\n"
    )
    with served_home.up("--rate", "1") as up:
        up.wait_for_output("epoch 1 ")
        (key,) = served_home.state.rglob("noise-key")
        assert key.stat().st_mode & 0o777 == 0o600
        (worker,) = served_home.processes_of("shuffle")
        worker.kill()
        up.wait_for_output("shuffle was killed by signal 9; restarting")
        result = up.result()
    assert [epoch["window_status"] for epoch in result["epochs"]] == ["released"] * EPOCHS
    assert len(windows_written(served_home)) == EPOCHS
    assert not key.exists()
    served_home.assert_nothing_is_left()


def windows_written(home: Home) -> set[tuple[int, bytes]]:
    """Return the distinct windows written, by epoch; here, each window is one chunk."""
    servers = LocalKafka(home.kafka).status().bootstrap_servers
    assert servers is not None
    with Cluster(Connection((servers,))) as cluster:
        chunks = [
            decode_chunk(record.value)
            for partition in (0, 1)
            for record in cluster.read(topic_name(home.name, Role.SHUFFLED), partition)
        ]
    assert all(chunk.total == 1 for chunk in chunks)
    return {(chunk.epoch, pack_messages(chunk.words)[1]) for chunk in chunks}
