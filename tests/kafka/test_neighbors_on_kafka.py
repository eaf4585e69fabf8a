"""Test neighboring inputs on a real broker. See `tests.conformance.test_neighbors`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.cases import CASES, Case
from tests.support.commands import Commands
from tests.support.kafka_run import run_on_kafka
from tests.support.neighbor_inputs import NEIGHBORS, write_inputs
from tests.support.public_facts import OBSERVABLES
from tests.support.public_view import SameRelease


@pytest.mark.verify
@pytest.mark.parametrize(
    "case",
    [
        case
        for case in CASES
        # A learning job proceeds epoch by epoch; the in-memory tests cover it.
        if case.number == 0 and case.protocol.learning is None
    ],
    ids=str,
)
def test_observations_depend_on_values_only_through_released_messages(
    case: Case,
    bootstrap_servers: str,
    job_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    release = SameRelease(tmp_path / "released")
    release.folder.mkdir()
    seen = []
    for number, variant in enumerate(NEIGHBORS[:2]):
        inputs = write_inputs(
            tmp_path / f"input {number}",
            case,
            variant,
            name=f"{job_name}-{number}",
            minimum=12,
            dummies=None,
            # The reading order of several partitions depends on timing.
            partitions=1,
        )
        seen.append(
            run_on_kafka(
                bootstrap_servers, tmp_path / str(number), inputs, release, Commands(capsys)
            )
        )
    first, other = seen
    assert first.keys() == {each.name for each in OBSERVABLES}
    assert release.epochs == [1, 2, 3, 4]
    for name, observed in first.items():
        assert other[name] == observed, name
