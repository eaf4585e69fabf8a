"""Everything except the randomized view is independent of users' values and rows.

Runs go from input rows to the page, through the user commands, with the same public randomness and
different rows of some users. The randomized view consists of the messages in reports and the
messages that the shuffler releases. The latter are replaced by the messages of the first run, so
that everything computed from them must be identical. `tests.support.public_facts` lists all
observables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.state import sealing_keys_folder
from dpstream.topics.batches import decode_batch, encode_batch
from dpstream.topics.names import Role
from tests.conformance.cases import CASES, Case
from tests.support.commands import Commands
from tests.support.memory_run import RunCluster, run_in_memory
from tests.support.neighbor_inputs import NEIGHBORS, write_event_inputs, write_inputs
from tests.support.public_facts import OBSERVABLES
from tests.support.public_view import SameRelease
from tests.support.sealing import (
    SHUFFLE_KEYS,
    sealed_section,
    shares_section,
    write_private_keys,
)

COMPARED = ("laplace_histogram", "jl_hh", "bucket", "sparse_recovery", "count_mean_sketch")
"""Protocols included for comparison, whose data flow is the same as in others."""
SUPPRESSED = ("future_rand", "fragments", "shuffled_counts")
"""Protocols whose suppressed windows are compared too."""


DIVIDED = ("fragments-4", "single_message-0", "count_min-0", "hadamard-0")
"""Cases that only ``make verify`` compares with parallel shufflers."""


def send_rejected_values(cluster: RunCluster, job: DeployedJob) -> None:
    """Send a duplicate batch, a batch of an unregistered producer, and a malformed record."""
    topic, partition = job.topic(Role.REPORTS), job.topics.partition_of(1)
    first = next(cluster.read(topic, partition)).value
    stranger = first
    if not job.seals_batches:
        stranger = encode_batch(replace(decode_batch(first), enrollment=b"a stranger here."))
    for value in (first, stranger, b"no record"):
        cluster.send(topic, value, partition)


@pytest.mark.parametrize(
    ("case", "minimum"),
    [
        # One example of every protocol, and some suppressed ones; ``make verify`` runs the rest.
        pytest.param(
            case,
            minimum,
            id=f"{case}-{'released' if minimum == 12 else 'suppressed'}",
            marks=[
                pytest.mark.verify
                if case.number > 0
                or case.protocol.name in COMPARED
                or (minimum > 12 and case.protocol.name not in SUPPRESSED)
                else pytest.mark.slow
            ],
        )
        for case in CASES
        for minimum in (12, 100)
    ],
)
def test_observations_depend_on_values_only_through_released_messages(
    case: Case, minimum: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for dummies in (None, "shuffle") if hasattr(case.parameters, "dummies") else (None,):
        folder = tmp_path / str(dummies)
        release = SameRelease(folder / "released")
        release.folder.mkdir(parents=True)
        first = None
        for variant in NEIGHBORS:
            try:
                inputs = write_inputs(
                    folder / f"input {variant}", case, variant, minimum=minimum, dummies=dummies
                )
            except ValueError:
                assert dummies == "shuffle"  # Shuffler dummies do not apply to all parameters.
                break
            seen = run_in_memory(
                folder / variant, inputs, release, Commands(capsys), send_rejected_values
            )
            first = first or seen
            assert seen.keys() == {each.name for each in OBSERVABLES}
            for name, observed in seen.items():
                assert observed == first[name], (name, variant)
        assert (release.epochs == [1, 2, 3, 4]) == (first is not None and minimum == 12)


@pytest.mark.parametrize("minimum", [12, pytest.param(100, marks=pytest.mark.verify)])
def test_presence_times_and_enrollment_do_not_depend_on_events(
    minimum: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = SameRelease(tmp_path / "released")
    release.folder.mkdir(parents=True)
    first: dict[str, Any] = {}
    for variant in NEIGHBORS:
        inputs = write_event_inputs(tmp_path / f"input {variant}", variant, minimum=minimum)
        folder = tmp_path / variant
        seen = run_in_memory(folder, inputs, release, Commands(capsys), send_rejected_values)
        first = first or seen
        assert seen.keys() == {each.name for each in OBSERVABLES}
        for name, observed in seen.items():
            assert observed == first[name], (name, variant)
    assert (release.epochs == [1, 2, 3, 4]) == (minimum == 12)


@pytest.mark.parametrize(
    ("sealed", "instances", "keys", "cases"),
    [
        pytest.param(
            sealed_section(SHUFFLE_KEYS),
            1,
            [1],
            ("fragments-0", "single_message-0"),
            id="three chained shufflers",
        ),
        pytest.param(
            sealed_section(SHUFFLE_KEYS),
            3,
            [1],
            ("fragments-0", "single_message-0"),
            id="three parallel shufflers",
            marks=pytest.mark.verify,
        ),
        pytest.param(
            shares_section(), 1, [1, 2], ("fragments-0", "future_rand-0"), id="two shares"
        ),
    ],
)
def test_observations_of_sealed_reports_do_not_depend_on_values(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    sealed: Mapping[str, Any],
    instances: int,
    keys: Sequence[int],
    cases: Sequence[str],
) -> None:
    """Covers protocols with a secret number of messages, and one with a fixed number."""
    for case in (case for case in CASES if str(case) in cases):
        release = SameRelease(tmp_path / str(case) / "released")
        release.folder.mkdir(parents=True)
        seen = []
        for variant in NEIGHBORS:
            inputs = write_inputs(
                tmp_path / str(case) / f"input {variant}",
                case,
                variant,
                minimum=12,
                dummies=None,
                sealed=sealed,
                instances=instances,
            )
            folder = tmp_path / str(case) / variant
            write_private_keys(folder / "home" / sealing_keys_folder().name, keys)
            seen.append(
                run_in_memory(folder, inputs, release, Commands(capsys), send_rejected_values)
            )
        assert release.epochs == [1, 2, 3, 4]
        for other in seen[1:]:
            for name, observed in seen[0].items():
                assert other[name] == observed, name


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("shuffled_counts-0", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.verify) for name in DIVIDED),
    ],
)
def test_parallel_shufflers_cannot_distinguish_neighbors(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (case,) = (case for case in CASES if str(case) == name)
    release = SameRelease(tmp_path / "released")
    release.folder.mkdir(parents=True)
    seen = []
    for variant in NEIGHBORS:
        folder = tmp_path / f"input {variant}"
        inputs = write_inputs(folder, case, variant, minimum=12, dummies=None, instances=2)
        run = run_in_memory(
            tmp_path / variant, inputs, release, Commands(capsys), send_rejected_values
        )
        seen.append(run)
    assert release.epochs == [1, 2, 3, 4]
    for other in seen[1:]:
        for observed, first in seen[0].items():
            assert other[observed] == first, observed


def test_observables_have_unique_names() -> None:
    names = [each.name for each in OBSERVABLES]
    assert len(set(names)) == len(names)
