"""The example jobs about an app, on a real broker: from a CSV file and from a topic of events."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dpstream.pipeline import demo
from dpstream.pipeline.actions import Append
from dpstream.pipeline.devices.producer_input import load_input
from dpstream.pipeline.devices.users import load_job_users
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import Connection
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.kafka.local_kafka import LocalKafka
from dpstream.pipeline.kafka.memory import SimulatedCluster, seeded_generators
from dpstream.topics.names import Role, TopicSettings
from tests.kafka.conftest import ROOT

FOLDER = Path(demo.__file__).parent
EVENTS, ROSTER = FOLDER / "app-events.csv.gz", FOLDER / "app-users.csv.gz"
EPOCHS = {"app-activity": 52, "search-retention": 12, "session-minutes": 8}


def run(home: Path, servers: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dpstream.pipeline.cli", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "DPSTREAM_HOME": str(home), "DPSTREAM_BOOTSTRAP_SERVERS": servers},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def job_file(tmp_path: Path, job_name: str, request: pytest.FixtureRequest) -> Path:
    """Return a copy of an example's job file, with a name and population of its own."""
    text = (FOLDER / f"{request.param}.yaml").read_text().replace(request.param, job_name)
    path = tmp_path / f"{request.param}.yaml"
    path.write_text(f"{text}population: {job_name}\n")
    return path


@pytest.fixture(scope="module")
def topic(broker: LocalKafka) -> Iterator[str]:
    """Return the name of a topic with the events of the file as JSON objects."""
    name = f"app-events-{uuid.uuid4().hex[:8]}"
    servers = broker.status().bootstrap_servers
    assert servers is not None
    with Cluster(Connection((servers,))) as cluster:
        cluster.create_topics([TopicSettings(name, 3, 1, {})])
        with gzip.open(EVENTS, "rt") as file:
            for number, row in enumerate(csv.DictReader(file)):
                # An event has only the fields that belong to it.
                event = {key: value for key, value in row.items() if value}
                if "duration" in event:
                    event["duration"] = float(event["duration"])
                cluster.producer.send(name, json.dumps(event).encode(), partition=number % 3)
        cluster.producer.flush(60)
        yield name


ONE = [
    pytest.param(name, marks=[] if name == "app-activity" else [pytest.mark.verify])
    for name in EPOCHS
]
"""Examples, of which one is tested more often."""


@pytest.mark.parametrize("job_file", ONE, indirect=True)
def test_up_runs_an_example_from_a_file(
    job_file: Path, tmp_path: Path, bootstrap_servers: str
) -> None:
    options = ("--input", EVENTS, "--users", ROSTER, "--output", tmp_path / "out", "--yes")
    body = json.loads(run(tmp_path / "home", bootstrap_servers, "up", job_file, *options, "--json"))
    assert len(body["epochs"]) == EPOCHS[job_file.stem]
    assert body["coverage"] >= 0.85
    written = (tmp_path / "out" / "estimates.csv").read_text().splitlines()
    assert len(written) > 5 * EPOCHS[job_file.stem]


@pytest.mark.parametrize("job_file", ONE, indirect=True)
def test_a_topic_of_json_events_gives_the_estimates_of_an_example(
    job_file: Path, job_name: str, tmp_path: Path, bootstrap_servers: str, topic: str
) -> None:
    home, last = tmp_path / "home", EPOCHS[job_file.stem]
    run(home, bootstrap_servers, "deploy", job_file, "--yes")
    options = ("--from-topic", topic, "--users", ROSTER, "--to-epoch", last)
    run(home, bootstrap_servers, "produce", job_name, *options)
    with Cluster(Connection((bootstrap_servers,))) as cluster:
        job = find_deployed(cluster, job_name)
        stages = SimulatedCluster(job, seeded_generators(1))
        for role in (Role.PRODUCERS, Role.REPORTS):
            for partition in range(len(job.start_offsets[role])):
                for each in cluster.read(job.topic(role), partition):
                    stages.log.append(Append(role, partition, each.value))
        stages.settle()
        records = stages.new_estimates()
    log = load_input(job, EVENTS, users=load_job_users(job, ROSTER))
    truth = log.ground_truth(job.domain)
    assert [record.epoch for record in records] == list(range(1, last + 1))
    inside = []
    for record in records:
        assert record.estimate is not None
        numbers = record.estimate.numbers
        _, low, high = record.estimate.intervals
        known = truth[record.epoch - 1][numbers - 1]
        inside += [*((low <= known) & (known <= high)).tolist()]
        assert record.population == 2_000
    assert np.mean(inside) >= 0.85
