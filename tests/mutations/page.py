"""Write the page with all mutations and the tests that detected them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from tests.mutations.mutation import ATTACKS, AUDIT, Mutation
from tests.mutations.trying import Trial

PAGE: Final = Path(__file__).parent / "README.md"
BEGIN: Final = "<!-- written by python -m tests.mutations -->"


def page_of(trials: Sequence[Trial]) -> str:
    """Return the page: its current introduction and a table of the detected mutations."""
    head, _, _ = PAGE.read_text().partition(BEGIN)
    return f"{head}{BEGIN}\n\n" + "\n".join(_lines(trials)) + "\n"


def row_of(mutation: Mutation) -> str:
    """Return a mutation's table row without the measurements."""
    named = f"| {mutation.name} | `{mutation.file}` | {mutation.weakens}"
    return f"{named} | `{mutation.witness.removeprefix('tests/')}` |"


def _lines(trials: Sequence[Trial]) -> Iterator[str]:
    kinds = Counter(_kind(trial) for trial in trials)
    yield f"{len(trials)} mutations, all of them detected: " + ", ".join(
        f"{count} by {kind}" for kind, count in kinds.most_common()
    )
    for area, of_area in groupby(trials, lambda trial: trial.mutation.area):
        yield f"\n## {area.capitalize()}\n"
        yield "| mutation | in | what it weakens | detected by | seconds |"
        yield "|---|---|---|---|---:|"
        for trial in of_area:
            yield f"{row_of(trial.mutation)} {trial.seconds:.0f} |"


def _kind(trial: Trial) -> str:
    if trial.by.startswith(AUDIT):
        return "`dpstream audit`"
    return "attacks" if trial.by.startswith(ATTACKS) else "the conformance suite"
