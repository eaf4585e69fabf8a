"""Try mutations, and write a table with the tests that detect them.

    python -m tests.mutations [--parallel N] [--log FILE] [--every-test] [NAME | AREA ...]

Each mutation is tried with the first test of its `detected_by`. With `--log`, a killed run can be
continued: detections are reused if the code is unchanged. With names, only these mutations are
tried; with `--every-test`, all tests of `detected_by`. In both cases nothing is written.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.mutations.mutation import MutationError, mutations_named
from tests.mutations.page import PAGE, page_of
from tests.mutations.seen import Seen
from tests.mutations.trying import MutationOutcome, Trial, try_mutations


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutation or area to try")
    parser.add_argument("--parallel", type=int, default=2, help="number of copies to run at a time")
    parser.add_argument("--log", type=Path, metavar="FILE", help="file with earlier detections")
    parser.add_argument("--every-test", action="store_true", help="try all tests in detected_by")
    chosen = parser.parse_args()
    try:
        mutations = mutations_named(chosen.names)
    except MutationError as error:
        print(error, file=sys.stderr)
        return 2
    if chosen.every_test:
        mutations = [replace(m, detected_by=(test,)) for m in mutations for test in m.detected_by]
    seen = Seen(chosen.log) if chosen.log else None
    known = {m: trial for m in mutations if seen and (trial := seen.trial(m)) is not None}
    if seen:
        print(f"{len(known)} of {len(mutations)} were detected earlier", flush=True)
    done = len(known)

    def tell(trial: Trial) -> None:
        nonlocal done
        done += 1
        print(f"{done:3}/{len(mutations)}  {describe(trial)}", flush=True)
        if seen:
            seen.add(trial)

    untried = [mutation for mutation in mutations if mutation not in known]
    with tempfile.TemporaryDirectory() as folder:
        tried = try_mutations(untried, Path(folder).resolve(), chosen.parallel, tell)
    by_mutation = known | {trial.mutation: trial for trial in tried}
    trials = [by_mutation[mutation] for mutation in mutations]
    free = [trial for trial in trials if trial.outcome is not MutationOutcome.DETECTED]
    print(f"{len(trials) - len(free)} of {len(trials)} detected")
    for trial in free:
        print(describe(trial))
    if not chosen.names and not chosen.every_test and not free:
        PAGE.write_text(page_of(trials))
    return 1 if free else 0


def describe(trial: Trial) -> str:
    line = f"{trial.outcome.value:10} {trial.seconds:6.1f} s  {trial.mutation.name}"
    return f"{line}\n{'':23}{trial.by}  {trial.said}" if trial.by else line


if __name__ == "__main__":
    sys.exit(main())
