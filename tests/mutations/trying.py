"""Mutations tried: on a copy of what is installed, in which the tests that should notice are run.

A mutation is *convicted* if those tests pass in the copy as it is, and in the mutated one a test
fails because something that it asserts does not hold. A copy that cannot be imported, or that
stumbles over its own code, convicts nobody.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from queue import Queue
from typing import Any, Final

from tests.mutations.mutation import ROOT, Mutation
from tests.mutations.witness import MODULE, REPORT

TREE: Final = ("aggregators", "pipeline", "randomizers", "tests", "topics")
FILES: Final = ("pyproject.toml", "PRIVACY.md", "README.md")
SECONDS: Final = 600.0
"""After which the run of a mutation has taken too long, which says nothing."""
UNMUTATED_SECONDS: Final = 3_600.0
"""The same of all tests together, in the copy as it is."""

_NICE: Final = 10
# Of what a test asserts: its own assertions, `pytest.raises` and `pytest.fail`, and the public
# suite for protocols.
_ASSERTED: Final = {"AssertionError", "Failed", "DoesNotConformError"}


class Verdict(Enum):
    """What came of a mutation."""

    CONVICTED = "convicted"
    SURVIVED = "survived"
    BROKEN = "broken"
    """Tests failed, and not because something that they assert does not hold."""
    TIMED_OUT = "timed out"
    UNFOUNDED = "unfounded"
    """The tests do not pass without the mutation, or there are none of these names."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of a mutation, and why.

    Attributes:
        mutation: that was tried.
        verdict: what came of it.
        by: the test that failed first, if any.
        said: what it said.
        seconds: that the mutated run took.
    """

    mutation: Mutation
    verdict: Verdict
    by: str = ""
    said: str = ""
    seconds: float = 0.0


class InstalledCopy:
    """A copy of what is installed, with its tests, in a folder of its own.

    Args:
        folder: where it lies; must not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        ignored = shutil.ignore_patterns("__pycache__", "node_modules", "*.pyc")
        for name in TREE:
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        for name in FILES:
            shutil.copy(ROOT / name, folder / name)

    def run(self, tests: Sequence[str], mutation: Mutation | None = None) -> dict[str, Any] | None:
        """Run tests in the copy, until the first one fails if it is mutated.

        Returns:
            What `tests.mutations.witness` has written down; None if it took too long.
        """
        if mutation is None:
            return self._run(tests, "randomizers", (), UNMUTATED_SECONDS)
        path = self.folder / mutation.file
        source = path.read_text()
        try:
            path.write_text(mutation.applied(source))
            _forget_compiled(path)
            return self._run(tests, mutation.module or "randomizers", ("-x",))
        finally:
            path.write_text(source)
            _forget_compiled(path)

    def _run(
        self,
        tests: Sequence[str],
        module: str,
        options: Sequence[str],
        seconds: float = SECONDS,
    ) -> dict[str, Any] | None:
        report, home = self.folder / "report.json", self.folder / "home"
        report.unlink(missing_ok=True)
        # What tests start themselves finds the copy before the repository, too.
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "DPSTREAM_HOME": str(home),
            # Plugins that no test needs take longer to load than most tests.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            REPORT: str(report),
            MODULE: module,
        }
        command = ["nice", "-n", str(_NICE), sys.executable, "-m", "pytest", "-q"]
        command += ["-p", "no:cacheprovider"]
        command += ["-p", "pytest_timeout", "-p", "tests.mutations.witness", *options, *tests]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired:
            return None
        if not report.exists():
            said = (done.stdout + done.stderr).strip().splitlines()[-1:]
            return {"passed": [], "failures": [_failure("nothing was run", said)], "imported": None}
        body: dict[str, Any] = json.loads(report.read_text())
        return body


def try_mutations(
    mutations: Sequence[Mutation],
    folder: Path,
    parallel: int = 1,
    tell: Callable[[Trial], None] = lambda trial: None,
) -> list[Trial]:
    """Try mutations, so many at a time, each in a copy below the folder; in their order."""
    copies: Queue[InstalledCopy] = Queue()
    for number in range(parallel):
        copies.put(InstalledCopy(folder / f"copy{number}"))
    first = copies.get()
    passing = _passing(first, {test for each in mutations for test in each.convicted_by})
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
    """Those of these tests, or files of them, that pass as a whole without a mutation."""
    report = copy.run(sorted(tests))
    if report is None:
        return set()
    if not report["passed"] and len(tests) > 1:
        # Where one of them is not there, none is run.
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
    if failing := [test for test in mutation.convicted_by if test not in passing]:
        return Trial(mutation, Verdict.UNFOUNDED, failing[0], "does not pass without the mutation")
    begun = time.monotonic()
    report = copy.run(mutation.convicted_by, mutation)
    seconds = time.monotonic() - begun
    if report is None:
        return Trial(mutation, Verdict.TIMED_OUT, seconds=seconds)
    expected = str(copy.folder / mutation.file)
    if mutation.module is not None and report["imported"] not in (None, expected):
        raise RuntimeError(f"{report['imported']} was run instead of {expected}")
    if not report["failures"] and not report["passed"]:
        return Trial(mutation, Verdict.UNFOUNDED, said="no test was run", seconds=seconds)
    if not report["failures"]:
        return Trial(mutation, Verdict.SURVIVED, seconds=seconds)
    failure = report["failures"][0]
    asserted = failure["when"] != "collect" and _ASSERTED & set(failure["kinds"])
    if mutation.module is not None and report["imported"] is None:
        asserted = False
    verdict = Verdict.CONVICTED if asserted else Verdict.BROKEN
    said = f"{failure['kinds'][0]}: {failure['said']}"
    return Trial(mutation, verdict, failure["test"], said, seconds)


def _failure(said: str, lines: Sequence[str]) -> dict[str, Any]:
    return {"test": "", "when": "collect", "kinds": ["Exception"], "said": f"{said}: {lines}"}


def _forget_compiled(path: Path) -> None:
    """What was compiled is told from its source by size and second: that is not enough here."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()
