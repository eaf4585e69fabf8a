"""Test result documents: valid by the schema, and written once even if publishers die."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import dpstream.pipeline.stages
from dpstream.aggregators.estimate import Estimate, Published
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.actions import Append
from dpstream.pipeline.devices.change_log import load_change_log
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, SimulatedCluster
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.publish_stage import PublishStage
from dpstream.pipeline.stages.result_documents import (
    MOST_ESTIMATES,
    ResultDocuments,
    document_key,
)
from dpstream.topics.frames import CodecError
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.small_run import generators, job_text, write_changes

SCHEMA = json.loads(
    (Path(dpstream.pipeline.stages.__path__[0]) / "result_document.schema.json").read_text()
)
VALIDATOR = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)
GUARANTEE = {"epsilon": 1.5, "delta": 1e-9, "unit": "stream", "trust": "none"}


def deployed(protocol: str, parameters: str, epochs: str = "count: 9") -> DeployedJob:
    text = f"name: a\nprotocol: {protocol}\nparameters: {{{parameters}}}\nepochs: {{{epochs}}}\n"
    return deploy_job(parse_job(text), deployed_at=0, deployment=bytes(16))


def items_job(labels: list[str]) -> DeployedJob:
    return deployed("hadamard_values", f"epsilon: 8, max_changes: 1, domain: {json.dumps(labels)}")


COUNT = deployed(
    "value_stream", "epsilon: 1, max_changes: 2", "count: 9, start: 2024-06-03, length: P1W"
)


def record(
    estimate: Published | None, window_status: WindowStatus = WindowStatus.RELEASED, **more: Any
) -> EstimateRecord:
    fields = {"guarantee": GUARANTEE, **more}
    return EstimateRecord(
        bytes(16), 2, window_status, 1_700_000_000_123, 90, 100, estimate, **fields
    )


def document(job: DeployedJob, each: EstimateRecord) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(ResultDocuments(job).document(each))
    VALIDATOR.validate(body)
    # Optional keys of a job file, and of means over epochs, are omitted from other documents.
    assert set(SCHEMA["properties"]) == set(SCHEMA["required"]) | {
        *("title", "unit", "averaged_epochs")
    }
    assert set(body) == set(SCHEMA["required"]) | set(job.given_texts("title", "unit"))
    return body


def test_schema_of_documents_is_valid() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["estimates"]["maxItems"] == MOST_ESTIMATES


def test_count_document_has_the_expected_content() -> None:
    estimate = Estimate.around(40.0, 5.0, 9.5, 70, 100, ("gap",))
    body = document(COUNT, record(estimate, assumes_changes=4))
    assert body == {
        "version": 1,
        "job": "a",
        "deployment": "00" * 16,
        "epoch": 2,
        "start": "2024-06-10T00:00:00Z",
        "end": "2024-06-17T00:00:00Z",
        "closed_at": "2023-11-14T22:13:20.123Z",
        "window_status": "released",
        "reason": None,
        "kind": "value",
        "population": 100,
        "contributors": 90,
        "reports": 70,
        "flags": ["gap"],
        "assumes_changes": 4,
        "guarantee": {"epsilon": 1.5, "delta": 1e-9, "unit": "stream"},
        "published": 1,
        "estimates": [
            {
                "item": None,
                "estimate": 40.0,
                "standard_error": 5.0,
                "ci95_low": 30.5,
                "ci95_high": 49.5,
            }
        ],
        "quantiles": [],
        "detection_threshold": None,
        "suppressed": [],
    }


@pytest.mark.parametrize(
    "window_status", [WindowStatus.SUPPRESSED, WindowStatus.EMPTY, WindowStatus.CORRUPT]
)
def test_suppressed_epoch_has_a_document_with_its_status(window_status: WindowStatus) -> None:
    reason = "two sums are of other shares" if window_status is WindowStatus.CORRUPT else None
    body = document(COUNT, record(None, window_status, reason=reason))
    assert (body["window_status"], body["reason"]) == (window_status.value, reason)
    assert (body["published"], body["estimates"], body["reports"]) == (0, [], 0)


def test_document_has_the_largest_items_in_domain_order() -> None:
    size = MOST_ESTIMATES + 2
    job = items_job([f"i{number}" for number in range(size)])
    values = np.full(size, 5.0)
    values[[3, 7]] = -1.0
    body = document(job, record(ItemEstimates(values, 5.0, 9.5, 70, 100)))
    assert body["published"] == size
    items = [each["item"] for each in body["estimates"]]
    assert items == [f"i{number}" for number in range(size) if number not in (3, 7)]


@pytest.mark.parametrize(
    "changed",
    [
        {"closed_at": 10**30},
        {"closed_at": -1},
        {"population": -1},
        {"reason": "\ud800"},
        {"guarantee": {"epsilon": float("nan")}},
        {"guarantee": {"delta": "1e-9"}},
    ],
    ids=str,
)
def test_invalid_estimate_record_is_rejected(changed: dict[str, Any]) -> None:
    body = record(None).to_json()
    assert EstimateRecord.from_bytes(json.dumps(body).encode()) == record(None)
    with pytest.raises(CodecError, match="not an estimate record"):
        EstimateRecord.from_bytes(json.dumps(body | changed).encode())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[DeployedJob, MemoryLog]:
    folder = tmp_path_factory.mktemp("run")
    job = deploy_job(parse_job(job_text(epochs=3)), deployed_at=0, deployment=bytes(16))
    changes = load_change_log(write_changes(folder / "changes.csv", epochs=3), last_epoch=3)
    cluster = SimulatedCluster(job, generators)
    transport = MemoryDriver(cluster.log)
    producer = Producer(job, None, name="p", transport=transport, generators=generators)
    producer.enroll(changes.users)
    for epoch, values in enumerate(changes.values_by_epoch(), 1):
        producer.report_all(epoch, values)
        producer.close(epoch)
        cluster.settle()
    producer.shut()
    return job, cluster.log


class TestDelivery:
    @staticmethod
    def copy(log: MemoryLog) -> MemoryLog:
        fresh = MemoryLog(lambda: 0)
        for role in (Role.MANIFESTS, Role.PARTIALS):
            for value in log.values(role):
                fresh.append(Append(role, 0, value))
        return fresh

    @staticmethod
    def documents(log: MemoryLog) -> Iterator[tuple[bytes | None, bytes]]:
        """Return all documents ever written, including compacted ones."""
        for each in log._partitions[Role.RESULTS, 0].records:
            yield each.key, each.value

    @staticmethod
    def expected(job: DeployedJob, log: MemoryLog) -> list[tuple[bytes | None, bytes]]:
        first: dict[int, EstimateRecord] = {}
        for value in log.values(Role.ESTIMATES):
            each = EstimateRecord.from_bytes(value)
            first.setdefault(each.epoch, each)
        documents = ResultDocuments(job)
        return [(document_key(each), documents.document(each)) for each in first.values()]

    @pytest.mark.parametrize("keep", [True, False], ids=["kept", "lost"])
    def test_each_epoch_has_one_document_when_workers_are_killed(
        self, run: tuple[DeployedJob, MemoryLog], keep: bool
    ) -> None:
        job, finished = run
        died = 0
        while True:
            log = self.copy(finished)
            driver = MemoryDriver(log)
            steps, reply = PublishStage(job).assign(0, None, 0.0), None
            try:
                for _ in range(died):
                    reply = driver.carry_out(steps.send(reply))
            except StopIteration:
                break
            driver.crash(keep=keep)
            MemoryDriver(log).run(PublishStage(job).assign(0, None, 0.0))
            assert list(log.values(Role.ESTIMATES)) == list(finished.values(Role.ESTIMATES))
            assert dict(self.documents(log)) == dict(self.expected(job, log))
            # All written documents were read: none is written twice.
            assert len(list(self.documents(log))) == 3
            died += 1
        assert died > 8

    def test_concurrent_workers_write_the_same_bytes(
        self, run: tuple[DeployedJob, MemoryLog]
    ) -> None:
        job, finished = run
        paused = 0
        while True:
            log = self.copy(finished)
            driver = MemoryDriver(log)
            steps, reply = PublishStage(job).assign(0, None, 0.0), None
            try:
                for _ in range(paused):
                    reply = driver.carry_out(steps.send(reply))
            except StopIteration:
                break
            MemoryDriver(log).run(PublishStage(job).assign(0, None, 0.0))
            # The paused worker continues with its old state.
            with suppress(StopIteration):
                while True:
                    reply = driver.carry_out(steps.send(reply))
            by_key: dict[bytes | None, set[bytes]] = {}
            for key, value in self.documents(log):
                by_key.setdefault(key, set()).add(value)
            assert {key: {value} for key, value in self.expected(job, log)} == by_key
            paused += 1

    def test_document_describes_the_first_estimate(
        self, run: tuple[DeployedJob, MemoryLog]
    ) -> None:
        job, finished = run
        first, *_ = map(EstimateRecord.from_bytes, finished.values(Role.ESTIMATES))
        log = self.copy(finished)
        other = EstimateRecord(
            first.deployment,
            1,
            first.window_status,
            5,
            4,
            3,
            Estimate.around(0.5, 1.0, 2.0, 3, 4),
            {},
        )
        log.append(Append(Role.ESTIMATES, 0, other.to_bytes()))
        MemoryDriver(log).run(PublishStage(job).assign(0, None, 0.0))
        (_, value), *_ = self.documents(log)
        assert json.loads(value)["estimates"][0]["estimate"] == 0.5
