"""Every mutation that weakens privacy is detected."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutations.__main__ import describe
from tests.mutations.mutation import (
    ATTACKS,
    AUDIT,
    CONFORMANCE,
    ROOT,
    Mutation,
    MutationError,
    all_mutations,
    mutations_named,
)
from tests.mutations.page import PAGE, row_of
from tests.mutations.trying import MutationOutcome, Trial, try_mutations

MUTATIONS = all_mutations()
CHEAP = "tests/randomizers/test_guarantee.py::test_pure_guarantee_omits_delta"


def test_mutations_apply_to_current_source() -> None:
    for mutation in MUTATIONS:
        mutated = mutation.applied((ROOT / mutation.file).read_text())
        if mutation.module is not None:
            ast.parse(mutated)


def test_every_area_has_mutations() -> None:
    areas = {mutation.area for mutation in MUTATIONS}
    assert areas == {"accounting", "budgets", "collector", "producer", "randomizers", "stages"}
    assert len(MUTATIONS) >= 60


def test_tests_that_are_listed_as_detecting_a_mutation_exist() -> None:
    for mutation in MUTATIONS:
        assert mutation.detected_by, mutation.name
        assert mutation.witness.startswith((AUDIT, ATTACKS, CONFORMANCE)), mutation.name
        for test in mutation.detected_by:
            path, _, name = test.partition("::")
            text = (ROOT / path).read_text()
            assert f"def {name.partition('[')[0]}(" in text or not name, test


def test_page_lists_every_mutation() -> None:
    page = PAGE.read_text()
    assert [m.name for m in MUTATIONS if row_of(m) not in page] == []
    rows = [line for line in page.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) == len(MUTATIONS)


def test_mutation_of_missing_or_repeated_source_text_is_rejected() -> None:
    mutation = Mutation("half", "area", "a.py", "1", "2", "it", ())
    for source in ("", "1 + 1"):
        with pytest.raises(MutationError, match=r"half: its text occurs . times in a\.py"):
            mutation.applied(source)
    with pytest.raises(MutationError, match="no mutation or area is called nothing"):
        mutations_named(["nothing", "stages"])


def changed(new: str, test: str = CHEAP) -> Mutation:
    old = 'f", delta {rounded_up(delta)}" if delta else ""'
    return Mutation(new, "area", "randomizers/guarantee.py", old, new, "it", (test,))


def test_only_failed_assertions_count_as_detection(tmp_path: Path) -> None:
    expected = {
        changed('f", delta {rounded_up(delta)}"'): MutationOutcome.DETECTED,
        changed('f", delta {rounded_up(delta)}" if delta > 0 else ""'): MutationOutcome.SURVIVED,
        changed('f", delta {rounded_up(delte)}"'): MutationOutcome.BROKEN,
        changed('f", delta'): MutationOutcome.BROKEN,
        changed(
            "", test="tests/randomizers/test_guarantee.py::test_of_nothing"
        ): MutationOutcome.UNFOUNDED,
    }
    trials = try_mutations(list(expected), tmp_path)
    assert [trial.outcome for trial in trials] == list(expected.values())


@pytest.mark.verify
def test_every_mutation_is_detected(tmp_path: Path) -> None:
    def tell(trial: Trial) -> None:
        print(describe(trial), flush=True)

    trials = try_mutations(MUTATIONS, tmp_path, parallel=2, tell=tell)
    assert [describe(t) for t in trials if t.outcome is not MutationOutcome.DETECTED] == []
