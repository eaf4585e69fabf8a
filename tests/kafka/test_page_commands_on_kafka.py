"""Test that the commands of the documentation succeed in order, on a real broker."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dpstream.pipeline.kafka.local_kafka.broker import free_port
from tests.support.page_examples import EXAMPLES, ON_KAFKA, write_files
from tests.support.pages import ROOT, Page

# Far longer than any expected wait.
TIMEOUT = 600.0
NEEDS_RESULTS = ("record", "replay", "diff", "serve", "estimates", "query")
"""Commands that need a completed job, unless the page itself runs one."""


@dataclass
class Running:
    words: list[str]
    until: str
    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)
    speaks: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.listener = threading.Thread(target=self._listen)
        self.listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.said.append(line)
                if self.until in line:
                    self.speaks.set()
        self.speaks.set()


@dataclass
class Reader:
    """Run the commands of a page in a folder with the files that it mentions."""

    folder: Path
    deployed: set[str] = field(default_factory=set)
    run_by_page_or_up: set[str] = field(default_factory=set)
    running: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        write_files(self.folder)

    @property
    def environment(self) -> dict[str, str]:
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        home = str(self.folder / "home")
        cluster = {"DPSTREAM_BOOTSTRAP_SERVERS": ""}
        return {**os.environ, **cluster, "PATH": programs, "DPSTREAM_HOME": home}

    def type(self, command: str) -> None:
        """Run a line of a page if it is a dpstream command."""
        program, *words = shlex.split(command)
        if command == "make demo":
            options = f"--no-browser --output {self.folder / 'demo'}"
            self.run("make", "--directory", str(ROOT), "demo", f"OPTIONS={options}")
        if program == "dpstream":
            self.prepare(words)
            words = [str(free_port()) if word == "9400" else word for word in words]
            # The local broker has no authorizer, so the rules are only printed.
            words = [word for word in words if word != "--apply"]
            if words[0] in ("deploy", "up", "undeploy") and "--dry-run" not in words:
                # There is no terminal for a prompt.
                words.append("--yes")
            if words[0] in ("run", "serve", "collect") or "--watch" in words:
                self.start(words)
            elif "--page" in words:
                self.start(words, until="The live page: http://")
                self.stop(*words)
            else:
                self.run("dpstream", *words, again=words[0] == "status")

    def prepare(self, words: list[str]) -> None:
        """Create what a command requires, and remove what it would create."""
        if words[0] in ("deploy", "up"):
            name = "events" if words[1] == "events.yaml" else "logins"
            self.forget(name)
            if "--dry-run" not in words:
                self.deployed.add(name)
                self.run_by_page_or_up.add(name)
            return
        for name in EXAMPLES.keys() & set(words):
            job, rows = f"{name}.yaml", f"{name}.csv"
            if words[0] in NEEDS_RESULTS and name not in self.run_by_page_or_up:
                self.run("dpstream", "up", job, "--input", rows, "--no-browser", "--yes")
                self.run_by_page_or_up.add(name)
            elif name not in self.deployed:
                self.run("dpstream", "deploy", job, "--yes")
            self.deployed.add(name)

    def forget(self, name: str) -> None:
        if name in self.deployed:
            self.run("dpstream", "undeploy", name, "--delete-topics", "--yes")
            self.deployed.remove(name)
            self.run_by_page_or_up.discard(name)

    def run(self, *command: str, again: bool = False) -> None:
        """Run a command to completion; with `again`, repeat it until it succeeds."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT,
            )
            if done.returncode == 0:
                return
            said = f"{shlex.join(command)}: {done.returncode}\n{done.stdout.decode()}"
            assert again, said
            assert time.monotonic() < deadline, said

    def start(self, words: list[str], until: str = "") -> None:
        """Start a long-running command and wait for an output that contains `until`."""
        if "--name" in words:
            # A page that starts a worker with other options means that the earlier one is stopped.
            self.stop(*words[: words.index("--name") + 2])
        process = Running(
            words,
            until,
            subprocess.Popen(
                ["dpstream", *words],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                # The parent shell might have set SIGINT to be ignored.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            ),
        )
        self.running.append(process)
        process.speaks.wait(TIMEOUT)
        found = any(until in line for line in process.said)
        assert found, f"{shlex.join(words)}: {''.join(process.said)}"

    def stop(self, *command: str) -> None:
        """Stop started commands as by Ctrl-C: those that begin with these words."""
        chosen = [each for each in self.running if each.words[: len(command)] == [*command]]
        for each in chosen:
            each.process.send_signal(signal.SIGINT)
        for each in chosen:
            code = each.process.wait(TIMEOUT)
            each.listener.join(TIMEOUT)
            assert code == 0, "".join(each.said)
            self.running.remove(each)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Reader with its own local Kafka, which stops at the end with all processes."""
    reader = Reader(tmp_path / "reader")
    reader.run("dpstream", "kafka", "start")
    try:
        yield reader
    finally:
        for each in reader.running:
            each.process.kill()
            each.process.wait()
            each.listener.join()
        reader.run("dpstream", "kafka", "stop")


@pytest.mark.verify
@pytest.mark.parametrize("page", ON_KAFKA, ids=str)
def test_commands_of_documentation_pages_succeed(page: Page, reader: Reader) -> None:
    for block in page.blocks:
        if block.language == "sh":
            for command in block.commands:
                reader.type(command)
        elif block.language == "python":
            reader.run(sys.executable, "-c", block.text)
    reader.stop()
