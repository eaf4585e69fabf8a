"""A job of users who have a cell each, sealed in one way or another: every count has to be 1."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.topics.manifests import Fate
from tests.support.world import Accidents, World, own_cells

CELLS = 12
EPOCHS = 2


def written_job(sealed: Mapping[str, Any] | None, **values: Any) -> dict[str, Any]:
    """What its job file says; `values` replace what is there."""
    return {
        "name": "sealed",
        "protocol": "cells",
        "parameters": {"cells": CELLS},
        "epochs": {"count": EPOCHS, "start": "2023-01-01", "length": "PT1H"},
        "shuffle": {"minimum": 10, "grace": "60 s", "producers": 2},
        "topics": {"partitions": 2},
        "sealed": sealed,
        **values,
    }


def begun(
    job: DeployedJob, folder: Path, keys: KeyRing, accidents: Accidents | None = None
) -> World:
    """The job, and nothing sent yet."""
    return World(job, folder, own_cells(CELLS, EPOCHS), accidents or Accidents(), keys=keys)


def run(world: World) -> World:
    """Everything that there is to send and to do, whoever dies meanwhile."""
    return world.run(range(1, EPOCHS + 1), rounds=2)


def check(world: World) -> None:
    """Every cell of every epoch was counted exactly once."""
    records = world.published()
    assert sorted(records) == list(range(1, EPOCHS + 1))
    for record in records.values():
        assert record.fate is Fate.RELEASED
        assert record.reason is None
        assert record.headline is not None
        assert (record.headline.low, record.headline.high) == (1.0, 1.0)
