"""Images are read as item logs of users without names, and compared with curators."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from dpstream.pipeline.devices.item_log import ItemLog
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from experiments import prepare_image
from experiments.evaluation.data import ChangeLogFile

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
