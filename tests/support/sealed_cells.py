"""Sealed jobs in which every user has a cell, so that every count must be 1."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.topics.manifests import WindowStatus
from tests.support.world import Accidents, World, own_cells

CELLS = 12
EPOCHS = 2


def written_job(sealed: Mapping[str, Any] | None, **values: Any) -> dict[str, Any]:
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


def new_world(
    job: DeployedJob, folder: Path, keys: KeyRing, accidents: Accidents | None = None
) -> World:
    """Build a world of the job without reports."""
    return World(job, folder, own_cells(CELLS, EPOCHS), accidents or Accidents(), keys=keys)


def run(world: World) -> World:
    """Send and process everything, across crashes."""
    return world.run(range(1, EPOCHS + 1), rounds=2)


def check(world: World) -> None:
    records = world.published()
    assert sorted(records) == list(range(1, EPOCHS + 1))
    for record in records.values():
        assert record.window_status is WindowStatus.RELEASED
        assert record.reason is None
        assert record.headline is not None
        assert (record.headline.ci95_low, record.headline.ci95_high) == (1.0, 1.0)
