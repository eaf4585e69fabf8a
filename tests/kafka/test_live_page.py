"""The live page beside a job that runs: real workers, a real broker and a real browser."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import pytest
from playwright.sync_api import expect

from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.operations.deployments import deploy
from tests.browser.test_page import Watch
from tests.support import chromium
from tests.support.small_run import EPOCHS, job_text, write_changes

artefacts, browser, watch = chromium.artefacts, chromium.browser, chromium.watch

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
STAGES = ("shuffle", "aggregate", "publish")
PATIENCE = 60.0
"""Seconds; a worker that is silent is held dead after ten."""


class Commands:
    """Processes of ``dpstream``, by name, that end with the test."""

    def __init__(self, servers: str, folder: Path) -> None:
        self.folder = folder
        home = {"DPSTREAM_HOME": str(folder / "state"), "DPSTREAM_BOOTSTRAP_SERVERS": servers}
        self.environment = os.environ | home
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.logs: list[IO[str]] = []

    def command(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "dpstream.pipeline.cli", *arguments]

    def start(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        log = (self.folder / f"{name}.log").open("a")
        self.logs.append(log)
        self.running[name] = subprocess.Popen(
            self.command(arguments),
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE if name == "serve" else log,
            stderr=log,
            text=True,
        )
        return self.running[name]

    def output(self, *arguments: str) -> str:
        done = subprocess.run(
            self.command(arguments),
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].communicate()

    def stop(self) -> None:
        for name in self.running:
            self.kill(name)
        for log in self.logs:
            log.close()


@pytest.fixture
def commands(bootstrap_servers: str, tmp_path: Path) -> Iterator[Commands]:
    started = Commands(bootstrap_servers, tmp_path)
    yield started
    started.stop()


def test_a_curve_grows_and_a_worker_dies_and_returns(
    bootstrap_servers: str,
    job_name: str,
    commands: Commands,
    watch: Watch,
    artefacts: Path,
    tmp_path: Path,
) -> None:
    with Cluster(Connection((bootstrap_servers,))) as cluster:
        now = time.time_ns() // 1_000_000
        job = parse_job(job_text(job_name))
        deploy(cluster, job, deployment=secrets.token_bytes(16), now=now)
    changes = str(write_changes(tmp_path / "changes.csv"))
    for stage in STAGES:
        commands.start(stage, "run", stage, job_name, "--name", f"{stage}-1")
    serving = commands.start("serve", "serve", job_name, "--port", "0", "--truth", changes)
    assert serving.stdout is not None
    address = serving.stdout.readline().removeprefix("live page: ").strip().rstrip("/")
    seen = watch(address)
    seen.page.set_default_timeout(1_000 * PATIENCE)
    seen.page.goto(f"{address}/?job={job_name}")
    seen.page.get_by_role("tab", name="For operators").click()
    drawing = seen.page.locator(".drawing svg.across")
    expect(drawing.locator(".alive")).to_have_count(3, timeout=1_000 * PATIENCE)

    commands.start("produce", "produce", job_name, "--input", changes, "--rate", "1")
    seen.wait_for_epoch(2)
    commands.kill("aggregate")
    expect(drawing.locator(".gone")).to_have_count(1, timeout=1_000 * PATIENCE)
    expect(drawing.locator(".stage.bad")).to_contain_text("aggregate")
    held = len(seen.source("estimate-0")["x"])
    assert 2 <= held < EPOCHS
    seen.page.screenshot(path=artefacts / "worker-gone.png", full_page=True)

    commands.start("aggregate", "run", "aggregate", job_name, "--name", "aggregate-1")
    expect(drawing.locator(".alive")).to_have_count(3, timeout=1_000 * PATIENCE)
    seen.wait_for_epoch(EPOCHS)
    assert seen.source("estimate-0")["x"] == list(range(1, EPOCHS + 1))
    # The smoothed curve and the truth lie beside it, each in its own style.
    seen.wait_for_epoch(EPOCHS, "truth-0")
    seen.page.wait_for_function(
        """(epochs) => {
          const y = Bokeh.documents[0].get_model_by_name("smoothed-0").data.y;
          return y.length === epochs && !Number.isNaN(y[epochs - 1]);
        }""",
        arg=EPOCHS,
    )
    expect(seen.page.locator(".key")).to_contain_text("not private")

    seen.page.get_by_role("tab", name="Results").click()
    with seen.page.expect_download() as download:
        seen.page.get_by_role("link", name="CSV", exact=True).click()
    saved = tmp_path / "saved.csv"
    download.value.save_as(saved)
    assert saved.read_text() == commands.output("estimates", job_name, "--format", "csv")
    seen.page.screenshot(path=artefacts / "job-over.png", full_page=True)
    seen.assert_well_behaved()
