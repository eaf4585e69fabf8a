"""What a batch may hold is known from the job alone: a table of counts has no room for the rest."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.jobs.deployed_job import DeployedJob, deploy_job
from pipeline.jobs.job_files import make_job
from pipeline.protocols.registry import PROTOCOLS
from pipeline.stages.admission import Admission, Refusal
from tests.support import noisy_cells
from topics.batches import Batch, encode_batch
from topics.records import Reason
from topics.words import Words

CELLS = 12


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> DeployedJob:
    monkeypatch.setitem(PROTOCOLS, noisy_cells.NAME, noisy_cells.NOISY_CELLS)
    values = {
        "name": "small",
        "protocol": noisy_cells.NAME,
        "parameters": {"cells": CELLS},
        "epochs": {"count": 1},
        "shuffle": {"minimum": 1},
    }
    return deploy_job(make_job(values), deployed_at=0)


def admitted(job: DeployedJob, words: Words) -> object:
    batch = Batch(job.fingerprint, job.deployment, bytes(16), bytes(16), 1, words)
    return Admission(job).admit(job.partition_of(1), encode_batch(batch))


def counted(values: NDArray[np.uint16]) -> Words:
    return Words(values, np.ones(len(values), np.uint32))


@pytest.mark.parametrize("encoded", [Words, counted])
def test_words_are_below_the_number_of_different_ones(
    job: DeployedJob, encoded: type[Words]
) -> None:
    largest = encoded(np.array([[0], [CELLS - 1]], "<u2"))
    assert isinstance(admitted(job, largest), Batch)
    assert isinstance(admitted(job, encoded(np.zeros((0, 1), "<u2"))), Batch)
    for word in (CELLS, 2**16 - 1):
        refusal = admitted(job, encoded(np.array([[0], [word]], "<u2")))
        assert refusal == Refusal(
            Reason.PROTOCOL, f"word {word}, noisy_cells has words below {CELLS}"
        )


@pytest.mark.parametrize("values", [np.zeros((1, 1), "<u4"), np.zeros((1, 2), "<u2")])
def test_words_of_another_form_are_refused(
    job: DeployedJob, values: NDArray[np.unsignedinteger]
) -> None:
    refusal = admitted(job, Words(values))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.PROTOCOL
    assert refusal.detail.endswith("noisy_cells has 1 x uint16")
