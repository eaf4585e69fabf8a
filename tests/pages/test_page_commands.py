"""Documented commands succeed in order, where they need no broker."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from dpstream.pipeline.cli.run import StageName
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from experiments.command import main
from tests.support.commands import Commands
from tests.support.memory_cluster import use_cluster
from tests.support.memory_run import RunCluster, Worker
from tests.support.page_examples import EXAMPLES, IN_MEMORY, experiments_of, words_of, write_files
from tests.support.pages import Page

pytestmark = pytest.mark.slow


@dataclass
class Reader:
    """Simulated reader who runs the commands of a page in a folder with the files it mentions."""

    dpstream: Commands
    experiments: Commands
    cluster: RunCluster
    finished: set[str] = field(default_factory=set)

    def type(self, words: list[str]) -> None:
        if words[0] not in ("budget", "ledger"):
            for name in EXAMPLES.keys() & set(words) - self.finished:
                self.finish(name)
        self.run(*words)

    def run(self, *words: str) -> None:
        said = self.dpstream(*words)
        assert said.code == 0, f"dpstream {shlex.join(words)}: {said.errors}"

    def finish(self, name: str) -> None:
        self.run("deploy", f"{name}.yaml")
        self.run("produce", name, "--input", f"{name}.csv")
        job = find_deployed(cast(Cluster, self.cluster), name)
        for stage in StageName:
            Worker(self.cluster, job, stage, Path(name) / stage).work()
        self.finished.add(name)


@pytest.fixture
def reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Reader:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    cluster = RunCluster()
    use_cluster(monkeypatch, cluster)
    return Reader(Commands(capsys), Commands(capsys, program=main), cluster)


LONG = ("experiments/README.md", "pipeline/results/README.md")
"""Pages whose commands simulate for minutes."""


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.verify] if str(page) in LONG else [])
        for page in IN_MEMORY
    ],
    ids=str,
)
def test_commands_of_documentation_pages_succeed(page: Page, reader: Reader) -> None:
    for words in words_of(page):
        reader.type(words)
    for words in experiments_of(page):
        said = reader.experiments(*words)
        assert said.code == 0, f"python -m experiments {shlex.join(words)}: {said.errors}"


def test_commands_of_the_experiments_page_need_no_broker() -> None:
    assert "experiments/README.md" in map(str, IN_MEMORY)
