"""Images are read as item logs of users without names, and compared with curators."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.pipeline.devices.item_log import ItemLog
from dpstream.pipeline.devices.rows import InputError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from experiments import prepare_image
from experiments.evaluation import counted, unnamed_producer
from experiments.evaluation.counted import CountedEpoch, counted_epochs
from experiments.evaluation.data import ChangeLogFile
from experiments.evaluation.images import image_log

PIXELS = np.array([[0, 200, 0], [90, 0, 255]])
IMAGE = b"P5\n3 2\n255\n" + bytes(PIXELS.reshape(-1).tolist())


def job_of(protocol: str = "fragments", **parameters: object) -> DeployedJob:
    values = {
        "name": "image",
        "protocol": protocol,
        "parameters": {
            "epsilon": 1,
            "delta": 1e-3,
            "domain": {"grid": [2, 3]},
            "neighbors": "removal",
            **parameters,
        },
        "epochs": {"count": 1},
        "shuffle": {"minimum": 500},
    }
    return deploy_job(make_job(values), deployed_at=0, deployment=bytes(16))


def values_of(epoch: CountedEpoch) -> NDArray[np.float64]:
    assert epoch.counts is not None
    listed = epoch.counts.estimates.listed()
    assert listed is not None
    assert listed.population == 545
    values: NDArray[np.float64] = listed.intervals[0]
    return values


def test_value_of_a_pixel_is_its_number_of_users(tmp_path: Path) -> None:
    job, path = job_of(), tmp_path / "image.pgm.gz"
    (tmp_path / "source").write_bytes(IMAGE)
    prepare_image.main([str(tmp_path / "source"), str(path)])
    assert gzip.decompress(path.read_bytes()) == IMAGE
    log = ChangeLogFile(str(path)).load(job)
    assert isinstance(log, ItemLog)
    assert log.ground_truth(job.domain)[0].tolist() == PIXELS.reshape(-1).tolist()
    assert (len(log.users), log.users[0], log.users[-1], log.users[1:3]) == (
        545,
        "1",
        "545",
        ["2", "3"],
    )
    with pytest.raises(IndexError):
        log.users[545]


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"P5 2 2 255\n123", "got 3 pixels; expected 2 x 2"),
        (b"P5 4 1 255\n1234", "'0;3' is not a point"),
    ],
)
def test_image_outside_the_domain_is_rejected(contents: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        image_log(contents, job_of().domain, "a.pgm")


def test_users_are_divided_among_producers_if_one_would_exceed_its_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = job_of()
    log = image_log(IMAGE, job.domain, "a.pgm")
    (alone,) = counted_epochs(job, log, seed=1)
    assert unnamed_producer.producers_needed(job, 545) == 1
    monkeypatch.setattr(unnamed_producer, "U4_MAX", 500)
    needed = unnamed_producer.producers_needed(job, 545)
    law, shuffling = job.law, job.protocol_entry.shuffling
    assert shuffling is not None
    capacity = shuffling.capacity
    assert capacity(law, 1, -(-545 // needed)) <= 500 < capacity(law, 1, -(-545 // (needed - 1)))
    (divided,) = counted_epochs(job, log, seed=1)
    monkeypatch.setattr(counted, "MOST_TOPIC_BYTES", 0)
    assert counted.added_up_at_once(job, 545)
    (at_once,) = counted_epochs(job, log, seed=1)
    deviation = float(np.sqrt(545) * 2)
    for epoch in (alone, divided, at_once):
        assert epoch.ground_truth.tolist() == PIXELS.reshape(-1).tolist()
        assert np.abs(values_of(epoch) - epoch.ground_truth).max() < 6 * deviation
    # Each producer draws separately.
    assert len({tuple(values_of(each).tolist()) for each in (alone, divided)}) == 2
