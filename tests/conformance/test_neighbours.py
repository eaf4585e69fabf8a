"""Whatever a user's values and rows are, all that anybody sees but the randomized view is the same.

Runs from rows of input to the page, by the commands that a user gives, with the same public coins,
of which some users' rows differ. The randomized view is the words of reports, and the words that
the shuffle stage releases; the latter are made those of the first run, so that everything after
them must be the same bit for bit. What there is to be seen is listed in `pipeline.public_facts`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.jobs.deployed_job import DeployedJob
from pipeline.public_facts import OBSERVABLES
from tests.conformance.cases import CASES, Case
from tests.support.commands import Commands
from tests.support.memory_run import RunCluster, run_in_memory
from tests.support.neighbour_inputs import NEIGHBOURS, write_inputs
from tests.support.public_view import SameRelease
from topics.batches import decode_batch, encode_batch
from topics.names import Role


def send_what_is_refused(cluster: RunCluster, job: DeployedJob) -> None:
    """A batch once more, the same of nobody who is registered, and what is no record."""
    topic = job.topic(Role.REPORTS)
    first = next(cluster.read(topic)).value
    stranger = encode_batch(replace(decode_batch(first), enrolment=b"a stranger here."))
    for value in (first, stranger, b"no record"):
        cluster.send(topic, value, 0)


@pytest.mark.parametrize(
    "case",
    [
        # Two examples of every protocol; ``make verify`` runs the others.
        pytest.param(case, marks=[pytest.mark.verify] if case.number > 1 else [])
        for case in CASES
    ],
    ids=str,
)
@pytest.mark.parametrize("minimum", [12, 100], ids=["released", "withheld"])
def test_nothing_but_the_randomized_view_depends_on_values(
    case: Case, minimum: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for dummies in (None, "shuffle") if hasattr(case.parameters, "dummies") else (None,):
        folder = tmp_path / str(dummies)
        release = SameRelease(folder / "released")
        release.folder.mkdir(parents=True)
        first = None
        for variant in NEIGHBOURS:
            try:
                inputs = write_inputs(
                    folder / f"input {variant}", case, variant, minimum=minimum, dummies=dummies
                )
            except ValueError:
                assert dummies == "shuffle"  # Not of every parameters.
                break
            seen = run_in_memory(
                folder / variant, inputs, release, Commands(capsys), send_what_is_refused
            )
            first = first or seen
            assert seen.keys() == {each.name for each in OBSERVABLES}
            for name, observed in seen.items():
                assert observed == first[name], (name, variant)
        assert (release.epochs == [1, 2, 3, 4]) == (first is not None and minimum == 12)


def test_what_can_be_seen_has_a_name_of_its_own() -> None:
    names = [each.name for each in OBSERVABLES]
    assert len(set(names)) == len(names)
