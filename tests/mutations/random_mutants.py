"""Mutants at random: does a test notice them?

    python -m tests.mutations.random_mutants [--sample N] [--log FILE] [MODULE ...]

Of all that can be changed in a module (`random_changes`) a sample is drawn with a fixed seed. Each
mutant lives in memory, in a forked process that runs the tests of its module: those that pass
without a mutation, the quickest first, as many as there is time for. Whoever is not noticed is
printed; `survivors.md` says of each why it weakens no privacy. cosmic-ray is needed for the changes
(`pip install '.[mutants]'`); it would run tests by starting Python anew for each mutant.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any, Final

from tests.mutations.random_changes import Mutant, sampled

ROOT: Final = Path(__file__).parents[2]
TARGETS: Final = Path(__file__).parent / "random_targets.toml"
AUDIT: Final = (
    "tests/pipeline/audit/test_quick_audit.py::test_an_audit_acquits_the_installed_protocol[{}]"
)
ALL_TESTS_SECONDS: Final = 15.0
"""For which the tests of a module are run, the quickest first."""
LOOKED_AT_SECONDS: Final = 25.0
"""For which tests are run without a mutation, to see how quick they are."""
ONE_TEST_SECONDS: Final = 8
"""After which a test is too slow to be one of them."""
LEAST_CPU_SECONDS: Final = 60
"""After which a mutant has not come to an end; more, if its tests take longer without it."""
MEMORY: Final = 8 << 30
"""Bytes of address space: some mutants would ask for any amount of it."""


@dataclass(frozen=True, slots=True)
class Target:
    """Modules, and the tests that should notice what is changed in them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    sample: int


@dataclass(slots=True)
class Run:
    """What became of a run of tests.

    Attributes:
        seconds: that each test took which passed.
        failed: the tests that failed, or what else there is to say.
        in_time: whether it came to an end.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    in_time: bool = True

    @property
    def by(self) -> str | None:
        """Who noticed something."""
        if not self.in_time:
            return "time"
        return self.failed[0] if self.failed else None


def targets() -> list[Target]:
    """All of them, as `random_targets.toml` says."""
    tables = tomllib.loads(TARGETS.read_text())["targets"]
    return [
        Target(
            tuple(each["modules"]),
            (
                *(f"tests/{test}" for test in each["tests"]),
                *(AUDIT.format(protocol) for protocol in each.get("audited", ())),
            ),
            each["sample"],
        )
        for each in tables
    ]


def run_tests(
    mutant: Mutant | None, tests: Sequence[str], seconds: Mapping[str, float] | None = None
) -> Run:
    """Run tests in a process of their own; with `seconds`, those alone, the quickest first."""
    begun = sum(seconds.values()) if seconds else 2 * LOOKED_AT_SECONDS
    cpu_seconds = int(LEAST_CPU_SECONDS + 3 * begun)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.close(reader)
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            _run_here(mutant, tests, seconds, writer)
        os._exit(0)
    os.close(writer)
    # Whoever waits for what does not come uses no time of the processor.
    with _alarm(20 * cpu_seconds, child), open(reader, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        late = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        return Run(in_time=False) if late else Run(failed=[f"signal {os.WTERMSIG(status)}"])
    if not said:
        return Run(failed=["tests could not be run"])
    body: dict[str, Any] = json.loads(said)
    return Run(body["seconds"], body["failed"])


@contextlib.contextmanager
def _alarm(seconds: int, child: int) -> Any:
    def end(*_: object) -> None:
        os.kill(child, signal.SIGKILL)

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _run_here(
    mutant: Mutant | None,
    tests: Sequence[str],
    seconds: Mapping[str, float] | None,
    writer: int,
) -> None:
    import pytest

    if mutant is not None:
        name = mutant.module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        sys.meta_path.insert(0, _Mutated(name, ROOT / mutant.module, mutant.source))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    signal.signal(signal.SIGPROF, _too_slow)
    options = ["-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", "--rootdir", str(ROOT)]
    options += [] if seconds is None else ["-x"]
    watcher = _Watcher(seconds)
    code = int(pytest.main([*options, *tests], plugins=[watcher]))
    if code and not watcher.run.failed and not watcher.run.seconds:
        watcher.run.failed.append("tests could not be collected")
    said = {"seconds": watcher.run.seconds, "failed": watcher.run.failed}
    with open(writer, "wb") as pipe:
        pipe.write(json.dumps(said).encode())


class _Watcher:
    """Notes how long tests take; with their seconds, takes the quickest first and no others.

    Seconds are those of the processor: they are the same however busy a machine is.
    """

    def __init__(self, seconds: Mapping[str, float] | None) -> None:
        self.run = Run()
        self._known = seconds
        self._begun = 0.0

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        known = self._known
        if known is None:
            # A few of every file, if there is no time for all of them.
            before: Counter[Path] = Counter()
            places = {}
            for item in items:
                before[item.path] += 1
                places[item.nodeid] = before[item.path]
            items.sort(key=lambda item: places[item.nodeid])
        else:
            chosen = [item for item in items if item.nodeid in known]
            items[:] = sorted(chosen, key=lambda item: known[item.nodeid])

    def pytest_runtest_logstart(self) -> None:
        self._begun = time.process_time()
        if self._known is None:
            signal.setitimer(signal.ITIMER_PROF, ONE_TEST_SECONDS)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.run.failed.append(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if nodeid not in self.run.failed:
            self.run.seconds[nodeid] = time.process_time() - self._begun

    def pytest_runtest_teardown(self, item: Any) -> None:
        if self._known is None and sum(self.run.seconds.values()) > LOOKED_AT_SECONDS:
            item.session.shouldstop = "enough"


def _too_slow(*_: object) -> None:
    raise TimeoutError


class _Mutated(MetaPathFinder, Loader):
    """Imports one module from another text."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        self._name, self._path, self._source = name, path, source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: object = None
    ) -> ModuleSpec | None:
        """See `MetaPathFinder`."""
        if fullname != self._name:
            return None
        locations = [str(self._path.parent)] if self._path.name == "__init__.py" else None
        return spec_from_file_location(
            fullname, self._path, loader=self, submodule_search_locations=locations
        )

    def exec_module(self, module: object) -> None:
        """See `Loader`."""
        code = compile(self._source, str(self._path), "exec", dont_inherit=True)
        exec(code, module.__dict__)


def quickest(seconds: Mapping[str, float]) -> dict[str, float]:
    """As many tests as there is time for, and one in any case."""
    chosen: dict[str, float] = {}
    for test in sorted(seconds, key=seconds.__getitem__):
        if chosen and sum(chosen.values()) + seconds[test] > ALL_TESTS_SECONDS:
            break
        chosen[test] = seconds[test]
    return chosen


def main() -> int:
    """Try samples of all modules, or of those named."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations.random_mutants")
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--sample", type=int, help="of each module; otherwise as targets say")
    parser.add_argument("--log", type=Path, help="of what was tried, which is not tried again")
    chosen = parser.parse_args()
    os.chdir(ROOT)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    _import_what_is_not_ours()
    tried = survived = 0
    for target in targets():
        count = chosen.sample or target.sample
        mutants = [
            mutant
            for module in target.modules
            if not chosen.modules or module in chosen.modules
            for mutant in sampled(module, (ROOT / module).read_text(), count)
            if str(mutant) not in _logged(chosen.log)
        ]
        if not mutants:
            continue
        whole = run_tests(None, target.tests)
        seconds = quickest(whole.seconds)
        print(f"{len(seconds)} tests, {sum(seconds.values()):.1f} s", flush=True)
        for failed in whole.failed:
            print(f"fails, or is too slow, without a mutation: {failed}", flush=True)
        if not seconds:
            continue
        for mutant in mutants:
            begun = time.monotonic()
            by = run_tests(mutant, target.tests, seconds).by
            took = time.monotonic() - begun
            tried += 1
            survived += by is None
            print(f"{'SURVIVED' if by is None else by}  {took:.1f} s  {mutant}", flush=True)
            _log(chosen.log, mutant, by, took)
    print(f"{tried} mutants, {tried - survived} noticed, {survived} not")
    return 0


def _logged(log: Path | None) -> set[str]:
    if log is None or not log.exists():
        return set()
    return {json.loads(line)["mutant"] for line in log.read_text().splitlines()}


def _log(log: Path | None, mutant: Mutant, by: str | None, seconds: float) -> None:
    if log is not None:
        line = {"mutant": str(mutant), "by": by, "seconds": round(seconds, 1)}
        with log.open("a") as lines:
            lines.write(json.dumps(line) + "\n")


def _import_what_is_not_ours() -> None:
    """Once, for all forks."""
    import hypothesis  # noqa: F401
    import mpmath  # noqa: F401
    import pyarrow  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import randomgen  # noqa: F401
    import scipy.optimize
    import scipy.stats  # noqa: F401


if __name__ == "__main__":
    sys.exit(main())
