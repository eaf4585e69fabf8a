"""Try mutations on a copy of the installation by running the tests that should detect them.

A mutation is *detected* if its test passes in the unmodified copy, and fails in the mutated one
because of a failed assertion. A copy that cannot be imported, or that crashes, detects nothing.

A process with preloaded third-party modules waits in a copy. Each run is a fork of this process
that imports the copy's modules. A check ensures that the mutated module is from the changed file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from queue import Queue
from typing import Any, Final

from tests.mutations.mutation import EXPERIMENTS, PACKAGE, ROOT, Mutation
from tests.mutations.witness import MODULE, REPORT

TREE: Final = ("aggregators", PACKAGE, EXPERIMENTS, "pipeline", "randomizers", "tests", "topics")
FILES: Final = ("pyproject.toml", "PRIVACY.md", "README.md")
SECONDS: Final = 600.0
"""Timeout of a mutation's run (seconds), which is then inconclusive."""
UNMUTATED_SECONDS: Final = 3_600.0
"""Timeout of all tests in the unmodified copy (seconds)."""

# Assertion failures of tests: their own assertions, `pytest.raises` and `pytest.fail`, and the
# public suite for protocols.
_ASSERTED: Final = {"AssertionError", "Failed", "DoesNotConformError"}


class MutationOutcome(Enum):
    """Result of a mutation."""

    DETECTED = "detected"
    SURVIVED = "survived"
    BROKEN = "broken"
    """Tests failed, but not by an assertion."""
    TIMED_OUT = "timed out"
    UNFOUNDED = "unfounded"
    """The tests fail without the mutation, or do not exist."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Outcome of a mutation, with a reason and the processor seconds of the mutated run."""

    mutation: Mutation
    outcome: MutationOutcome
    by: str = ""
    said: str = ""
    seconds: float = 0.0


class InstalledCopy:
    """Copy of the installation with its tests, in a new folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        ignored = shutil.ignore_patterns("__pycache__", "node_modules", "*.gz", "*.pyc")
        for name in TREE:
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
        for name in FILES:
            shutil.copy(ROOT / name, folder / name)
        # Child processes of tests must also find the copy before the repository.
        environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "DPSTREAM_HOME": str(folder / "home"),
            # Unneeded plugins take longer to load than most tests.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        # Forks use compiled files of unmutated modules.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # Options of the outer run can name plugins that are missing here.
        environment.pop("PYTEST_ADDOPTS", None)
        self._warm = subprocess.Popen(
            [sys.executable, "-m", "tests.mutations.warm"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        with self._warm:
            assert self._warm.stdin is not None
            self._warm.stdin.close()

    def run(self, tests: Sequence[str], mutation: Mutation | None = None) -> dict[str, Any] | None:
        """Run tests in the copy; with a mutation, stop at the first failure.

        Returns:
            Output of `tests.mutations.witness`, and processor ``seconds``; None after a timeout.
        """
        if mutation is None:
            return self._run(tests, PACKAGE, (), UNMUTATED_SECONDS)
        path = self.folder / mutation.file
        source = path.read_text()
        try:
            path.write_text(mutation.applied(source))
            _forget_compiled(path)
            return self._run(tests, mutation.module or PACKAGE, ("-x",), SECONDS)
        finally:
            path.write_text(source)
            _forget_compiled(path)

    def _run(
        self, tests: Sequence[str], module: str, options: Sequence[str], seconds: float
    ) -> dict[str, Any] | None:
        report, printed = self.folder / "report.json", self.folder / "printed.txt"
        report.unlink(missing_ok=True)
        plugins = [
            "-p",
            "no:cacheprovider",
            "-p",
            "pytest_timeout",
            "-p",
            "tests.mutations.witness",
        ]
        answer = self._obeyed(
            {
                "arguments": ["-q", *plugins, *options, *tests],
                "environment": {REPORT: str(report), MODULE: module},
                "printed": str(printed),
                "seconds": seconds,
            }
        )
        if not answer["in_time"]:
            return None
        body: dict[str, Any] = {"passed": [], "imported": None}
        if report.exists():
            body = json.loads(report.read_text())
        else:
            body["failures"] = [_failure("no test was run", printed.read_text().splitlines()[-1:])]
        return body | {"seconds": answer["seconds"]}

    def _obeyed(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        self._warm.stdin.write(json.dumps(order) + "\n")
        self._warm.stdin.flush()
        answer = self._warm.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that runs tests in {self.folder} has exited")
        body: dict[str, Any] = json.loads(answer)
        return body


def try_mutations(
    mutations: Sequence[Mutation],
    folder: Path,
    parallel: int = 1,
    tell: Callable[[Trial], None] = lambda trial: None,
) -> list[Trial]:
    """Try mutations in parallel in copies below the folder, each with its witness test."""
    if not mutations:
        return []
    with ExitStack() as stack:
        copies: Queue[InstalledCopy] = Queue()
        for number in range(parallel):
            copy = InstalledCopy(folder / f"copy{number}")
            stack.callback(copy.close)
            copies.put(copy)
        first = copies.get()
        passing = _passing(first, {mutation.witness for mutation in mutations})
        copies.put(first)

        def attempt(mutation: Mutation) -> Trial:
            copy = copies.get()
            try:
                trial = _tried(copy, mutation, passing)
            finally:
                copies.put(copy)
            tell(trial)
            return trial

        with ThreadPoolExecutor(parallel) as pool:
            return list(pool.map(attempt, mutations))


def _passing(copy: InstalledCopy, tests: Collection[str]) -> set[str]:
    """Return the tests, or test files, that pass completely without a mutation."""
    report = copy.run(sorted(tests))
    if report is None:
        return set()
    if not report["passed"] and len(tests) > 1:
        # If a test is missing, pytest runs no tests.
        return set().union(*(_passing(copy, [test]) for test in tests))
    failed = [failure["test"] for failure in report["failures"]]
    return {
        test
        for test in tests
        if any(_is_of(each, test) for each in report["passed"])
        and not any(_is_of(each, test) for each in failed)
    }


def _is_of(name: str, selected: str) -> bool:
    return name == selected or name.startswith((f"{selected}::", f"{selected}["))


def _tried(copy: InstalledCopy, mutation: Mutation, passing: set[str]) -> Trial:
    if mutation.witness not in passing:
        said = "fails without the mutation"
        return Trial(mutation, MutationOutcome.UNFOUNDED, mutation.witness, said)
    report = copy.run([mutation.witness], mutation)
    if report is None:
        return Trial(mutation, MutationOutcome.TIMED_OUT, seconds=SECONDS)
    seconds: float = report["seconds"]
    of_experiments = mutation.file.startswith(f"{EXPERIMENTS}/")
    expected = str(copy.folder / ("" if of_experiments else PACKAGE) / mutation.file)
    if mutation.module is not None and report["imported"] not in (None, expected):
        raise RuntimeError(f"{report['imported']} was imported instead of {expected}")
    if not report["failures"] and not report["passed"]:
        return Trial(mutation, MutationOutcome.UNFOUNDED, said="no test was run", seconds=seconds)
    if not report["failures"]:
        return Trial(mutation, MutationOutcome.SURVIVED, seconds=seconds)
    failure = report["failures"][0]
    asserted = failure["when"] != "collect" and _ASSERTED & set(failure["kinds"])
    if mutation.module is not None and report["imported"] is None:
        asserted = False
    outcome = MutationOutcome.DETECTED if asserted else MutationOutcome.BROKEN
    said = f"{failure['kinds'][0]}: {failure['said']}"
    return Trial(mutation, outcome, failure["test"], said, seconds)


def _failure(said: str, lines: Sequence[str]) -> dict[str, Any]:
    return {"test": "", "when": "collect", "kinds": ["Exception"], "said": f"{said}: {lines}"}


def _forget_compiled(path: Path) -> None:
    """Delete compiled files, which are matched with sources only by size and seconds."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()
