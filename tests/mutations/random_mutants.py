"""Mutants at random: does a test notice them?

    python -m tests.mutations.random_mutants [--seed N] [--sample N] [--at-most N] [--log FILE]
        [MODULE ...]

Of all that can be changed in a module (`random_changes`) a sample is drawn with a seed. Each
mutant lives in memory, in a forked process that runs tests of its module: those that pass without a
mutation and enter the function that is changed, the quickest first, as many as there is time for;
then a few that do not, since what a function said once may be remembered. Whoever is not noticed is
printed; `survivors.md` says of each why it weakens no privacy. cosmic-ray is needed for the changes
(`pip install '.[mutants]'`); it would run tests by starting Python anew for each mutant.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import resource
import signal
import sys
import threading
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import FrameType
from typing import Any, Final

from tests.mutations.forks import import_what_is_not_ours
from tests.mutations.random_changes import SEED, Mutant, sampled

ROOT: Final = Path(__file__).parents[2]
TARGETS: Final = Path(__file__).parent / "random_targets.toml"
OF_PROTOCOLS: Final = (
    "tests/conformance/test_golden.py::test_the_same_bytes_are_written_again[{}-0]",
    "tests/conformance/test_golden.py::"
    "test_constants_are_those_of_then_but_for_the_accuracy_of_their_search[{}-0]",
    "tests/conformance/test_paths.py::test_a_device_on_its_own_sends_what_the_law_says[{}-0]",
    "tests/conformance/test_privacy.py::"
    "test_no_two_neighbours_can_be_told_apart_better_than_stated[{}-0]",
    "tests/pipeline/audit/test_quick_audit.py::test_an_audit_acquits_the_installed_protocol[{}]",
)
"""What is run of each protocol that a target names."""
PROMISES: Final = (
    "tests/conformance/test_promises.py::test_promises_and_what_is_drawn_from_stay[{}]"
)
"""And what its jobs promise, part by part."""
EXAMPLES: Final = "tests/test_docstrings.py::test_examples[{}]"
"""What is run of each module: the examples in its docstrings."""
IMPORT_MUCH: Final = ("tests/conformance/", "tests/pipeline/audit/", "tests/test_docstrings.py")
"""Stand before tests that do, as all protocols, which takes seconds."""
ALL_TESTS_SECONDS: Final = 14.0
"""For which tests are run that enter what is changed, the quickest first."""
OTHER_TESTS_SECONDS: Final = 2.0
"""The same of those that do not."""
LOOKED_AT_SECONDS: Final = 50.0
"""For which tests are run without a mutation, to see how quick they are."""
ONE_TEST_SECONDS: Final = 8
"""After which a test is too slow to be one of them."""
LEAST_CPU_SECONDS: Final = 20
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
        entered: the functions of the modules that each of them entered, by module and first line;
            only where nothing is mutated.
        failed: the tests that failed, or what else there is to say.
        in_time: whether it came to an end.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    entered: dict[str, list[str]] = field(default_factory=dict)
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
    parts: defaultdict[str, list[str]] = defaultdict(list)
    for part in json.loads((ROOT / "tests/conformance/promises.json").read_text()):
        parts[part.rpartition("-")[0]].append(part)
    return [
        Target(
            tuple(each["modules"]),
            (
                *(f"tests/{test}" for test in each["tests"]),
                *(test.format(name) for name in each.get("protocols", ()) for test in OF_PROTOCOLS),
                *(
                    PROMISES.format(part)
                    for name in each.get("protocols", ())
                    for part in parts[name]
                ),
                *(EXAMPLES.format(name_of(module)) for module in each["modules"]),
            ),
            each["sample"],
        )
        for each in tables
    ]


def name_of(module: str) -> str:
    """What Python calls a module."""
    return module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def look_at(target: Target) -> Run:
    """Run the tests of a target without a mutation, in a process of their own."""
    return _in_a_process(2 * LOOKED_AT_SECONDS, None, target.tests, _Looking(target.modules))


def run_tests(mutant: Mutant, seconds: Mapping[str, float]) -> Run:
    """Run these tests in their order, in processes of their own, until one notices a mutant.

    Those that import much come last.
    """
    run = Run()
    for much in (False, True):
        part = {
            test: taken for test, taken in seconds.items() if test.startswith(IMPORT_MUCH) == much
        }
        if part and run.by is None:
            files = list(dict.fromkeys(test.partition("::")[0] for test in part))
            run = _in_a_process(sum(part.values()), mutant, files, _Chosen(part))
    return run


def _in_a_process(
    expected: float, mutant: Mutant | None, tests: Sequence[str], watcher: _Watcher
) -> Run:
    cpu_seconds = int(LEAST_CPU_SECONDS + 3 * expected)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.close(reader)
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            _run_here(mutant, tests, watcher, writer)
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
    return Run(body["seconds"], body["entered"], body["failed"])


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


def _run_here(mutant: Mutant | None, tests: Sequence[str], watcher: _Watcher, writer: int) -> None:
    import pytest

    if mutant is not None:
        place = ROOT / mutant.module
        sys.meta_path.insert(0, _Mutated(name_of(mutant.module), place, mutant.source))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    options = ["-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", "--rootdir", str(ROOT)]
    options += [] if mutant is None else ["-x"]
    code = int(pytest.main([*options, *tests], plugins=[watcher]))
    run = watcher.run
    if code and not run.failed and not run.seconds:
        run.failed.append("tests could not be collected")
    said = {"seconds": run.seconds, "entered": run.entered, "failed": run.failed}
    with open(writer, "wb") as pipe:
        pipe.write(json.dumps(said).encode())


class _Watcher:
    """Notes how long tests take.

    Seconds are those of the processor: they are the same however busy a machine is.
    """

    def __init__(self) -> None:
        self.run = Run()
        self._begun = 0.0

    def pytest_runtest_logstart(self) -> None:
        self._begun = time.process_time()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.run.failed.append(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if nodeid not in self.run.failed:
            self.run.seconds[nodeid] = time.process_time() - self._begun


class _Chosen(_Watcher):
    """Takes these tests, in their order, and no others."""

    def __init__(self, tests: Iterable[str]) -> None:
        super().__init__()
        self._places = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        chosen = [item for item in items if item.nodeid in self._places]
        items[:] = sorted(chosen, key=lambda item: self._places[item.nodeid])


class _Looking(_Watcher):
    """Notes which functions of some modules tests enter, and ends what takes too long."""

    def __init__(self, modules: Sequence[str]) -> None:
        super().__init__()
        self._modules = {str(ROOT / module): module for module in modules}
        self._entered: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        # A few of every file, if there is no time for all of them.
        before: Counter[Path] = Counter()
        places = {}
        for item in items:
            before[item.path] += 1
            places[item.nodeid] = before[item.path]
        items.sort(key=lambda item: places[item.nodeid])
        signal.signal(signal.SIGPROF, _too_slow)

    def pytest_runtest_logstart(self) -> None:
        super().pytest_runtest_logstart()
        self._entered = set()
        signal.setitimer(signal.ITIMER_PROF, ONE_TEST_SECONDS)
        threading.settrace(self._note)
        sys.settrace(self._note)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        sys.settrace(None)
        threading.settrace(None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        super().pytest_runtest_logfinish(nodeid)
        self.run.entered[nodeid] = sorted(self._entered)

    def pytest_runtest_teardown(self, item: Any) -> None:
        if sum(self.run.seconds.values()) > LOOKED_AT_SECONDS:
            item.session.shouldstop = "enough"

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        module = self._modules.get(frame.f_code.co_filename)
        if module is not None:
            self._entered.add(f"{module}:{frame.f_code.co_firstlineno}")


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


def quickest(seconds: Mapping[str, float], room: float = ALL_TESTS_SECONDS) -> dict[str, float]:
    """As many tests as there is time for, and one in any case, the quickest first."""
    chosen: dict[str, float] = {}
    for test in sorted(seconds, key=seconds.__getitem__):
        if chosen and sum(chosen.values()) + seconds[test] > room:
            break
        chosen[test] = seconds[test]
    return chosen


def chosen_for(place: str | None, whole: Run) -> dict[str, float]:
    """The tests that a change is tried with, and their seconds, in order.

    Args:
        place: the function that is changed, by module and first line; None if it is none, which
            any test may notice.
        whole: how tests were without a change.
    """
    entering = {
        test: taken
        for test, taken in whole.seconds.items()
        if place is None or place in whole.entered[test]
    }
    others = {test: taken for test, taken in whole.seconds.items() if test not in entering}
    if not entering:
        return quickest(others)
    return quickest(entering) | (quickest(others, OTHER_TESTS_SECONDS) if others else {})


def place_of(mutant: Mutant) -> str | None:
    """The innermost function whose body is changed, by module and first line."""
    begins = function_around((ROOT / mutant.module).read_text(), mutant.line)
    return None if begins is None else f"{mutant.module}:{begins}"


def function_around(source: str, line: int) -> int | None:
    """The first line, decorators included, of the innermost function whose body holds a line."""
    begins = None
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            held = node.body[0].lineno <= line <= node.end_lineno
            begins = max(begins or first, first) if held else begins
    return begins


def main() -> int:
    """Try samples of all modules, or of those named."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations.random_mutants")
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--seed", type=int, default=SEED, help="another one draws other mutants")
    parser.add_argument("--sample", type=int, help="of each module; otherwise as targets say")
    parser.add_argument("--at-most", type=int, help="of each module, where targets say more")
    parser.add_argument("--log", type=Path, help="of what was tried, which is not tried again")
    chosen = parser.parse_args()
    os.chdir(ROOT)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ.pop("PYTEST_ADDOPTS", None)
    import_what_is_not_ours()
    log = Log(chosen.log)
    tried = survived = 0
    for target in targets():
        count = chosen.sample or target.sample
        count = min(count, chosen.at_most or count)
        mutants = [
            mutant
            for module in target.modules
            if not chosen.modules or module in chosen.modules
            for mutant in sampled(module, (ROOT / module).read_text(), count, chosen.seed)
            if str(mutant) not in log.mutants
        ]
        if not mutants:
            continue
        whole = log.looked_at(target)
        if whole is None:
            whole = look_at(target)
            log.look(target, whole)
        print(f"{len(whole.seconds)} tests, {sum(whole.seconds.values()):.1f} s", flush=True)
        for failed in whole.failed:
            print(f"fails, or is too slow, without a mutation: {failed}", flush=True)
        if not whole.seconds:
            continue
        for mutant in mutants:
            begun = time.monotonic()
            by = run_tests(mutant, chosen_for(place_of(mutant), whole)).by
            took = time.monotonic() - begun
            tried += 1
            survived += by is None
            print(f"{'SURVIVED' if by is None else by}  {took:.1f} s  {mutant}", flush=True)
            log.add(mutant, by, took)
    print(f"{tried} mutants, {tried - survived} noticed, {survived} not")
    return 0


class Log:
    """What was tried of the same code, in a file, a line each, so that whoever was killed goes on.

    Args:
        path: of the file, which need not be there; None if there is none.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        known = path is not None and path.exists()
        self._lines = (
            [json.loads(line) for line in path.read_text().splitlines()] if path and known else []
        )
        self.mutants = {line["mutant"] for line in self._lines if "mutant" in line}

    def looked_at(self, target: Target) -> Run | None:
        """How its tests were without a mutation; None if they were not looked at."""
        for line in self._lines:
            if line.get("looked at") == _about(target):
                return Run(line["seconds"], line["entered"], line["failed"])
        return None

    def look(self, target: Target, run: Run) -> None:
        """Write that down."""
        said = {"seconds": run.seconds, "entered": run.entered, "failed": run.failed}
        self._write({"looked at": _about(target), **said})

    def add(self, mutant: Mutant, by: str | None, seconds: float) -> None:
        """Write down what came of a mutant."""
        self._write({"mutant": str(mutant), "by": by, "seconds": round(seconds, 1)})

    def _write(self, line: dict[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a") as lines:
                lines.write(json.dumps(line) + "\n")


def _about(target: Target) -> list[str]:
    return [*target.modules, *target.tests]


if __name__ == "__main__":
    sys.exit(main())
