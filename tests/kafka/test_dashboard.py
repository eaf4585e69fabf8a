"""Test that all queries of dashboard and rules find metrics of workers in a real Prometheus."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from dpstream.pipeline.kafka.local_kafka.broker import free_port
from tests.support.commands import Commands
from tests.support.prometheus_tools import find_tool
from tests.support.small_run import EPOCHS, job_text, write_changes

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
TIMEOUT = 90.0
STAGES = ("shuffle", "aggregate", "publish")

# Metric names (not label names) with their label matchers. Quoted text is one match.
_SELECTOR = re.compile(
    r'(?:\bup|\b(?!dpstream_job\b)(?:dpstream|kafka)[a-z0-9_:]+)(?:\{(?:[^"}]|"[^"]*")*\})?'
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., None]]:
    started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start_process(*command: str, **environment: str) -> None:
        log = tmp_path / f"{len(started)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        started.append((process, log))

    yield start_process
    for process, _ in started:
        process.send_signal(signal.SIGTERM)
    for process, log in started:
        try:
            process.wait(TIMEOUT)
        finally:
            process.kill()
            print(*process.args, log.read_text(), sep="\n")  # type: ignore[misc]


class Prometheus:
    def __init__(self, port: int) -> None:
        self.port = port

    def query(self, expression: str) -> list[Any]:
        """Return the current result of a query; empty while Prometheus is starting."""
        address = f"http://127.0.0.1:{self.port}/api/v1/query?{urlencode({'query': expression})}"
        try:
            with urlopen(address, timeout=10) as answer:
                body = json.load(answer)
        except HTTPError as error:
            if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
                return []
            pytest.fail(f"{expression}: {error.read().decode()}")
        except URLError:
            return []
        assert body["status"] == "success", expression
        result: list[Any] = body["data"]["result"]
        return result

    def jobs(self, expression: str) -> set[str]:
        return {found["metric"]["dpstream_job"] for found in self.query(expression)}


def configuration(ports: dict[str, int], folder: Path) -> Path:
    """Return the configuration of docker/ for these workers, with a short interval."""
    settings = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
    settings["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), "1s")
    settings["rule_files"] = [str(DOCKER / "prometheus" / "rules.yml")]
    workers = next(each for each in settings["scrape_configs"] if each["job_name"] == "dpstream")
    assert [each["port"] for each in workers.pop("dns_sd_configs")] == [9400]
    workers["static_configs"] = [{"targets": [f"127.0.0.1:{port}" for port in ports.values()]}]
    settings["scrape_configs"] = [workers]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(settings))
    return path


def of_workers(expression: str) -> bool:
    """Return whether workers export the metrics, not servers or an operator's limits."""
    others = ("dpstream_collector_", "estimate_limit")
    return not any(each in expression for each in others)


def dashboard_queries(jobs: str) -> list[str]:
    """Return the queries with their variables set: all measures, with or without a breakdown."""
    dashboard = json.loads((DOCKER / "grafana" / "dashboards" / "dpstream.json").read_text())
    variables = {"$job": jobs, '"$measure"': '".*"', '"$group_by"': '".*"', "$group_by": "by"}

    def filled(expression: str) -> str:
        for name, value in variables.items():
            expression = expression.replace(name, value)
        return expression

    return [
        filled(target["expr"])
        for panel in dashboard["panels"]
        for target in panel["targets"]
        if of_workers(target["expr"])
    ]


def test_dashboard_queries_find_worker_metrics(
    dpstream: Commands,
    start: Callable[..., None],
    job_name: str,
    bootstrap_servers: str,
    tmp_path: Path,
) -> None:
    local, hidden = f"{job_name}-local", f"{job_name}-hidden"
    text = job_text(local, more=", start: 2024-01-01, length: P1D")
    (tmp_path / "local.yaml").write_text(text)
    (tmp_path / "hidden.yaml").write_text(
        f"name: {hidden}\nprotocol: shuffled_counts\nparameters: {{epsilon: 1, delta: 1e-6}}\n"
        f"epochs: {{count: {EPOCHS}}}\nshuffle: {{minimum: 10}}\ntopics: {{partitions: 2}}\n"
    )
    ports = {stage: free_port() for stage in STAGES}
    for stage, port in ports.items():
        start(
            *(
                sys.executable,
                "-m",
                "dpstream.pipeline.cli",
                "run",
                stage,
                "--jobs",
                f"{job_name}-*",
            ),
            *("--metrics", str(port), "--name", "w1", "--bootstrap-servers", bootstrap_servers),
        )
    prometheus = Prometheus(free_port())
    start(
        find_tool("prometheus"),
        f"--config.file={configuration(ports, tmp_path)}",
        f"--storage.tsdb.path={tmp_path / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{prometheus.port}",
    )
    changes = write_changes(tmp_path / "changes.csv")
    for job, file in ((local, "local.yaml"), (hidden, "hidden.yaml")):
        deployed = dpstream("deploy", tmp_path / file)
        assert deployed.code == 0, deployed.errors
        produced = dpstream("produce", job, "--input", changes, "--name", "gateway")
        assert produced.code == 0, produced.errors

    rules = yaml.safe_load((DOCKER / "prometheus" / "rules.yml").read_text())["groups"][0]["rules"]
    queries = dashboard_queries(f"{job_name}-.*")
    selectors = {
        selector
        for query in [*queries, *(rule["expr"] for rule in rules)]
        for selector in _SELECTOR.findall(query)
        if of_workers(selector)
    }
    assert len(selectors) > 20
    # No record counts are exported for the job that hides its number of messages.
    told_of = {
        f'dpstream_last_epoch{{stage="publish"}} == {EPOCHS}': {local, hidden},
        'dpstream:lag_seconds{stage="shuffle"} == 0': {local, hidden},
        'dpstream:lag_records{stage="shuffle"} == 0': {local},
    }
    deadline = time.monotonic() + TIMEOUT
    while missing := [
        *(query for query in [*queries, *sorted(selectors)] if not prometheus.query(query)),
        *(query for query, jobs in told_of.items() if prometheus.jobs(query) != jobs),
    ]:
        assert time.monotonic() < deadline, f"not found: {missing}"
        time.sleep(0.2)
    assert prometheus.query('ALERTS{alertstate="firing"}') == []
