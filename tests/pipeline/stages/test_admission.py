"""Test that admission rejects messages outside the limits of a job."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.stages.admission import WRITTEN_OUT_MAX, Admission, Rejection
from dpstream.topics.batches import Batch, encode_batch
from dpstream.topics.messages import Messages
from dpstream.topics.records import Reason
from tests.support import noisy_cells
from tests.support.new_jobs import new_job

CELLS = 12


@pytest.fixture(autouse=True)
def noisy_cells_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, noisy_cells.NAME, noisy_cells.NOISY_CELLS)


def deployed(order: str = "sorted") -> DeployedJob:
    job = new_job("small", noisy_cells.NAME, {"cells": CELLS}, count=1, minimum=1, order=order)
    return deploy_job(job, deployed_at=0)


@pytest.fixture
def job() -> DeployedJob:
    return deployed()


def admitted(job: DeployedJob, words: Messages) -> object:
    batch = Batch(job.fingerprint, job.deployment, bytes(16), bytes(16), 1, words)
    return Admission(job).admit(job.topics.partition_of(1), encode_batch(batch))


def counted(values: NDArray[np.uint16]) -> Messages:
    return Messages(values, np.ones(len(values), np.uint32))


@pytest.mark.parametrize("encoded", [Messages, counted])
def test_admission_rejects_messages_outside_the_domain(
    job: DeployedJob, encoded: type[Messages]
) -> None:
    largest = encoded(np.array([[0], [CELLS - 1]], "<u2"))
    assert isinstance(admitted(job, largest), Batch)
    assert isinstance(admitted(job, encoded(np.zeros((0, 1), "<u2"))), Batch)
    for word in (CELLS, 2**16 - 1):
        rejection = admitted(job, encoded(np.array([[0], [word]], "<u2")))
        assert rejection == Rejection(
            Reason.PROTOCOL, f"message: got {word}; noisy_cells expects at most {CELLS - 1}"
        )


@pytest.mark.parametrize("values", [np.zeros((1, 1), "<u4"), np.zeros((1, 2), "<u2")])
def test_admission_rejects_messages_in_another_format(
    job: DeployedJob, values: NDArray[np.unsignedinteger]
) -> None:
    rejection = admitted(job, Messages(values))
    assert isinstance(rejection, Rejection)
    assert rejection.reason is Reason.PROTOCOL
    assert rejection.detail.endswith("noisy_cells expects 1 x uint16")


def test_admission_limits_messages_per_record_in_random_order() -> None:
    """All workers must accept the same records, because they rewrite each other's windows."""
    assert WRITTEN_OUT_MAX == 16_777_216, "workers of other versions accept other records"
    for messages in (WRITTEN_OUT_MAX, WRITTEN_OUT_MAX + 1):
        words = Messages(np.array([[3], [7]], "<u2"), np.array([1, messages - 1], np.uint32))
        assert isinstance(admitted(deployed(), words), Batch)
        outcome = admitted(deployed("random"), words)
        if messages == WRITTEN_OUT_MAX:
            assert isinstance(outcome, Batch)
        else:
            assert isinstance(outcome, Rejection)
            assert outcome.reason is Reason.OVERSIZED
            assert outcome.detail.startswith("messages in the record: got 16777217;")
