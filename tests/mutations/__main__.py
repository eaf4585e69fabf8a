"""Tries mutations, and writes the table of who convicted what.

    python -m tests.mutations [--parallel N] [NAME | AREA ...]

With names it tries those, and writes nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.mutations.mutation import MutationError, mutations_named
from tests.mutations.page import PAGE, page_of
from tests.mutations.trying import Trial, Verdict, try_mutations


def main() -> int:
    """0 if every mutation was convicted."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a mutation, or an area of them")
    parser.add_argument("--parallel", type=int, default=2, help="copies that are run at a time")
    chosen = parser.parse_args()
    try:
        mutations = mutations_named(chosen.names)
    except MutationError as error:
        print(error, file=sys.stderr)
        return 2
    done = 0

    def tell(trial: Trial) -> None:
        nonlocal done
        done += 1
        print(f"{done:3}/{len(mutations)}  {describe(trial)}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        trials = try_mutations(mutations, Path(folder).resolve(), chosen.parallel, tell)
    free = [trial for trial in trials if trial.verdict is not Verdict.CONVICTED]
    print(f"{len(trials) - len(free)} of {len(trials)} convicted")
    if not chosen.names and not free:
        PAGE.write_text(page_of(trials))
    return 1 if free else 0


def describe(trial: Trial) -> str:
    """One line, and what was said by the test."""
    line = f"{trial.verdict.value:10} {trial.seconds:6.1f} s  {trial.mutation.name}"
    return f"{line}\n{'':23}{trial.by}  {trial.said}" if trial.by else line


if __name__ == "__main__":
    sys.exit(main())
