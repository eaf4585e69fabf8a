"""Mutations tried: on a copy of what is installed, in which the test that should notice is run.

A mutation is *convicted* if that test passes in the copy as it is, and in the mutated one fails
because something that it asserts does not hold. A copy that cannot be imported, or that stumbles
over its own code, convicts nobody.

In a copy waits a process that has imported what is not ours. Each run is a fork of it, and imports
the copy's modules for itself: the mutated one from the file that was changed, as is looked up
afterwards.
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

from tests.mutations.mutation import PACKAGE, ROOT, Mutation
from tests.mutations.witness import MODULE, REPORT

TREE: Final = ("aggregators", PACKAGE, "pipeline", "randomizers", "tests", "topics")
FILES: Final = ("pyproject.toml", "PRIVACY.md", "README.md")
SECONDS: Final = 600.0
"""After which the run of a mutation has taken too long, which says nothing."""
UNMUTATED_SECONDS: Final = 3_600.0
"""The same of all tests together, in the copy as it is."""

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
        seconds: of the processor that the mutated run took.
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
            shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
        for name in FILES:
            shutil.copy(ROOT / name, folder / name)
        # What tests start themselves finds the copy before the repository, too.
        environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "DPSTREAM_HOME": str(folder / "home"),
            # Plugins that no test needs take longer to load than most tests.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        # Of what no mutation touches a fork finds the compiled form.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # What the run that started this one is told may not be there, as plugins of its own.
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
        """End the process that waits in it."""
        with self._warm:
            assert self._warm.stdin is not None
            self._warm.stdin.close()

    def run(self, tests: Sequence[str], mutation: Mutation | None = None) -> dict[str, Any] | None:
        """Run tests in the copy, until the first one fails if it is mutated.

        Returns:
            What `tests.mutations.witness` has written down, and the ``seconds`` of the processor
            that it took; None if it took too long.
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
            body["failures"] = [_failure("nothing was run", printed.read_text().splitlines()[-1:])]
        return body | {"seconds": answer["seconds"]}

    def _obeyed(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        self._warm.stdin.write(json.dumps(order) + "\n")
        self._warm.stdin.flush()
        answer = self._warm.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that runs tests in {self.folder} has ended")
        body: dict[str, Any] = json.loads(answer)
        return body


def try_mutations(
    mutations: Sequence[Mutation],
    folder: Path,
    parallel: int = 1,
    tell: Callable[[Trial], None] = lambda trial: None,
) -> list[Trial]:
    """Try mutations, so many at a time, each in a copy below the folder; in their order.

    Each is tried with its witness. All of these are run without a mutation first, at once.
    """
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
    if mutation.witness not in passing:
        said = "does not pass without the mutation"
        return Trial(mutation, Verdict.UNFOUNDED, mutation.witness, said)
    report = copy.run([mutation.witness], mutation)
    if report is None:
        return Trial(mutation, Verdict.TIMED_OUT, seconds=SECONDS)
    seconds: float = report["seconds"]
    expected = str(copy.folder / PACKAGE / mutation.file)
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
