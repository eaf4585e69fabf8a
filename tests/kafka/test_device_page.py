"""A browser as a device, at a real collector: what its page says is what arrives, and only once."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dpstream.pipeline.demo.devices.job import NAME
from dpstream.pipeline.jobs.collector_keys import read_collector_key
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.local_kafka.broker import free_port
from dpstream.pipeline.operations.deployments import deploy
from dpstream.pipeline.state import collector_key_file
from dpstream.topics.frames import CodecError
from dpstream.topics.loose_batches import (
    decode_enrolments,
    decode_loose_batch,
    report_tag,
    subject_of_device,
)
from dpstream.topics.names import Role
from tests.browser.test_page import Watch
from tests.support import chromium

artefacts, browser, watch = chromium.artefacts, chromium.browser, chromium.watch

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SECONDS = 3
JOB = """\
name: {name}
protocol: value_stream
parameters: {{epsilon: 4, changes: 4}}
epochs: {{count: 1024, start: "{start}", length: PT{seconds}S}}
shuffle: {{minimum: 2, grace: 1 h}}
devices: {{late: 1 h}}
"""


@dataclass
class Demo:
    """The page, and what has arrived."""

    address: str
    job: DeployedJob
    cluster: Cluster

    def arrived(self) -> dict[tuple[int, bytes], list[bytes]]:
        """The contents that collectors wrote, by epoch and tag."""
        rows: defaultdict[tuple[int, bytes], list[bytes]] = defaultdict(list)
        topic = self.job.topic(Role.REPORTS)
        for partition in range(self.job.partitions):
            for record in self.cluster.read(topic, partition):
                try:
                    batch = decode_loose_batch(record.value)
                except CodecError:
                    continue
                for row in batch.rows:
                    rows[batch.epoch, row[:8].tobytes()].append(row[8:].tobytes())
        return rows

    def tag(self, epoch: int, device: str) -> bytes:
        """Whose a report of a device is."""
        key = read_collector_key(collector_key_file(self.job.name)).secret
        subject = subject_of_device(bytes.fromhex(device))
        return report_tag(key, self.job.deployment, epoch, subject)

    def enrolled(self) -> set[int]:
        """Tags of devices."""
        records = self.cluster.read(self.job.topic(Role.DEVICES))
        return {tag for each in records for tag in decode_enrolments(each.value).tags.tolist()}


@pytest.fixture
def demo(bootstrap_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Demo]:
    """A job whose epochs are short, a collector and the visitors' page."""
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    start = datetime.now(UTC).replace(microsecond=0).isoformat()
    collector, port = free_port(), free_port()
    url, address = f"http://127.0.0.1:{collector}", f"http://127.0.0.1:{port}"
    with Cluster(Connection((bootstrap_servers,))) as cluster:
        job = deploy(
            cluster,
            parse_job(JOB.format(name=NAME, start=start, seconds=SECONDS)),
            deployment=secrets.token_bytes(16),
            now=int(time.time() * 1000),
            replace=True,
        )
        assert job.signed_description is not None
        truth = tmp_path / "truth.jsonl"
        truth.touch()
        settings = {
            "job": NAME,
            "collectors": [url],
            "signer": job.signed_description.signer.hex(),
            "operators": address,
            "devices": 10,
            "truth": str(truth),
        }
        options = ("--bind", f"127.0.0.1:{collector}", "--allow-origin", address)
        servers = ("--bootstrap-servers", bootstrap_servers)
        commands = [
            ["dpstream.pipeline.cli", "collect", "--job", NAME, *options, *servers],
            ["dpstream.pipeline.demo.devices.page", str(port), json.dumps(settings), *servers],
        ]
        with (tmp_path / "processes.log").open("ab") as log:
            running = [
                subprocess.Popen(
                    [sys.executable, "-m", *command],
                    cwd=ROOT,
                    env=os.environ,
                    stdout=log,
                    stderr=log,
                )
                for command in commands
            ]
        try:
            answers(f"{url}/readyz")
            answers(f"{address}/config.json")
            yield Demo(address, job, cluster)
        finally:
            for process in running:
                process.terminate()
            for process in running:
                process.wait(30)


def answers(url: str) -> None:
    """Wait until somebody answers there, and is ready."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def taken(page: Page, after: int = 0) -> dict[str, str]:
    """What the page says of a report of a later epoch, once it is acknowledged."""
    page.wait_for_function(
        """after => document.getElementById("delivery").dataset.state === "taken"
            && Number(document.getElementById("bytes").dataset.epoch) > after""",
        arg=after,
    )
    return said(page)


def said(page: Page) -> dict[str, str]:
    """The page's words about what left last: of one report, also if the next one leaves now."""
    shown = page.locator("#bytes")
    while True:
        epoch = shown.get_attribute("data-epoch")
        fields = page.locator("#bytes div").all()
        read = dict(each.locator("span").all_inner_texts() for each in fields)
        for name in ("epoch", "words", "report"):
            read[name] = shown.get_attribute(f"data-{name}") or ""
        read["left"] = page.inner_text("#left-words")
        if shown.get_attribute("data-epoch") == epoch:
            return read


def test_the_words_of_the_page_are_the_bytes_that_arrive_and_none_is_drawn_twice(
    demo: Demo, watch: Watch
) -> None:
    watched = watch(demo.address)
    page = watched.page
    page.goto(demo.address)
    expect(page.locator("#terms")).to_contain_text("odds of 55 to 1")
    page.click("#join")
    first = taken(page)
    page.click("#value")
    expect(page.locator("#value-words")).to_have_text("Dark mode is on")
    expect(page.locator("#spent-words")).to_contain_text("epsilon 4 of the 8")

    # What the page says has arrived.
    epoch, device = int(first["epoch"]), first["a device, drawn"]
    (content,) = set(demo.arrived()[epoch, demo.tag(epoch, device)])
    assert content.hex() == first["answer"]
    assert json.loads(first["words"]) == [*content[2:]]
    assert f"“I say {content[2]}.”" in first["left"]

    # Reloads, in the middle of anything, draw nothing twice.
    for _ in range(6):
        page.wait_for_timeout(300)
        page.reload()
    second = taken(page, epoch)
    assert second["a device, drawn"] == device
    expect(page.locator("#value-words")).to_have_text("Dark mode is on")

    # A second tab is the same device.
    tab = page.context.new_page()
    tab.goto(demo.address)
    third = taken(tab, int(second["epoch"]))
    fourth = taken(page, int(third["epoch"]))
    assert third["a device, drawn"] == fourth["a device, drawn"] == device
    tab.close()

    # Without a network a report is kept, and sent again unchanged.
    watched.cable_cut = True
    page.context.set_offline(True)
    page.wait_for_function("() => document.getElementById('delivery').dataset.state === 'waiting'")
    kept = said(page)
    page.context.set_offline(False)
    fifth = taken(page, int(kept["epoch"]))
    arrived = demo.arrived()
    at_kept = arrived[int(kept["epoch"]), demo.tag(int(kept["epoch"]), device)]
    assert {content.hex() for content in at_kept} == {kept["answer"]}

    # All of it is one device, of which each epoch has one report.
    assert len(demo.enrolled()) == 1
    for (epoch, tag), contents in arrived.items():
        assert tag == demo.tag(epoch, device)
        assert len(set(contents)) == 1
    assert int(fifth["epoch"]) in {epoch for epoch, _ in arrived}
    assert watched.complaints == []
    assert page.evaluate("window.violations") == []
    # The statement that the browser has pinned is the operator's.
    pinned = page.evaluate("fetch('/config.json').then((answer) => answer.json())")
    assert demo.job.signed_description is not None
    assert bytes.fromhex(pinned["signer"]) == base64.b64decode(
        demo.job.signed_description.told()["signer"]
    )
