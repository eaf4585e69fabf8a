"""Measure the code and imports that a job without options uses.

``python -m tests.test_plain_path`` prints both, by package and by file.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import CodeType, FrameType

import dpstream
from dpstream.pipeline.devices.producer import Producer
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog, MemoryWorker
from dpstream.pipeline.stages.environment import Environment
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.stages.stage_builder import build_stage
from dpstream.topics.names import Role

MOST_FUNCTIONS, MOST_FILES = 330, 62
MOST_LINES, MOST_MODULES = 25_000, 150

ROOTS = (
    "dpstream.pipeline.devices.producer",
    "dpstream.pipeline.jobs.job_files",
    "dpstream.pipeline.kafka.workers.worker",
    "dpstream.pipeline.protocols.value_stream",
    "dpstream.pipeline.results.follow",
    "dpstream.pipeline.stages.stage_builder",
)
"""Modules of a plain job: producer, job file, worker, protocol, reader and stages."""

_ROOT = Path(dpstream.__file__).parent
_NOT_COUNTED = ("pipeline/kafka/memory.py", "pipeline/simulation/")
"""Code that replaces Kafka."""


def functions_of_a_report() -> tuple[set[tuple[str, str]], set[str]]:
    """Return the functions that process a report, and the modules imported meanwhile.

    Comprehensions and lambdas count as part of the enclosing function.
    """
    keys = {"epsilon": 4, "max_changes": 4}
    settings = {"protocol": "value_stream", "parameters": keys, "shuffle": {"minimum": 10}}
    job = deploy_job(make_job({"name": "plain", "epochs": {"count": 8}, **settings}), deployed_at=0)
    known = set(sys.modules)
    log = MemoryLog()
    workers = []
    for name in job.route.stages:
        stage = build_stage(job, name, Environment(wall_clock=lambda: 0))
        workers.append(MemoryWorker(stage, log, reader=name))
    for worker in workers:
        for partition in range(len(job.start_offsets[worker.stage.role])):
            worker.run(worker.assign(partition))
    users = dict.fromkeys(map(str, range(20)), 1)
    seen: set[CodeType] = set()
    before = sys.getprofile()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            seen.add(frame.f_code)
        elif event == "return" and frame.f_code is EstimateRecord.to_bytes.__code__:
            sys.setprofile(before)

    def run(producer: Producer, epoch: int) -> None:
        producer.report(epoch, users)
        producer.close(epoch)
        for _ in range(2):
            for worker in workers:
                while worker.run(worker.poll()):
                    pass

    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        producer = stack.enter_context(
            Producer(job, Path(folder), name="plain", transport=MemoryDriver(log))
        )
        producer.enroll(list(users))
        run(producer, 1)
        sys.setprofile(note)
        try:
            run(producer, 2)
        finally:
            sys.setprofile(before)
    assert log.end(Role.ESTIMATES, 0) == 2
    imported = {name for name in sys.modules.keys() - known if name.startswith("dpstream.")}
    return set(_ours(seen)), imported


def _ours(seen: set[CodeType]) -> Iterator[tuple[str, str]]:
    for code in seen:
        path = Path(code.co_filename)
        if path.is_relative_to(_ROOT) and not code.co_name.startswith("<"):
            file = path.relative_to(_ROOT).as_posix()
            if not file.startswith(_NOT_COUNTED):
                yield file, code.co_qualname


def import_closure() -> dict[str, int]:
    modules = dict(_modules())
    found: set[str] = set()
    waiting = list(ROOTS)
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += _imported(modules[module], modules)
    return {name: len(modules[name].read_text().splitlines()) for name in found}


def _modules() -> Iterator[tuple[str, Path]]:
    for folder, _, files in os.walk(_ROOT, followlinks=True):
        for file in files:
            path = Path(folder) / file
            if path.suffix == ".py":
                parts = ("dpstream", *path.relative_to(_ROOT).with_suffix("").parts)
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def _imported(path: Path, modules: dict[str, Path]) -> set[str]:
    """Return the imports of a module, except imports in functions or only for types."""
    named: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                continue
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Import():
                named |= {alias.name for alias in node.names}
            case ast.ImportFrom(module=str(module)):
                named |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        waiting += ast.iter_child_nodes(node)
    ours = {name for name in named if name.startswith("dpstream.")}
    packages = {name.rsplit(".", depth)[0] for name in ours for depth in range(name.count("."))}
    return packages & modules.keys()


def test_reporting_to_a_plain_job_calls_few_functions() -> None:
    functions, _ = functions_of_a_report()
    files = {file for file, _ in functions}
    assert ("pipeline/stages/chunk_stage.py", "ChunkStage.record") in functions
    assert len(functions) <= MOST_FUNCTIONS
    assert len(files) <= MOST_FILES


def test_plain_job_imports_few_modules() -> None:
    closure = import_closure()
    assert "dpstream.topics.frames" in closure
    assert sum(closure.values()) <= MOST_LINES
    assert len(closure) <= MOST_MODULES


def test_reporting_to_a_plain_job_imports_no_optional_module() -> None:
    """Runs in a separate process, because other tests have imported everything here."""
    shown = subprocess.run(
        [sys.executable, "-m", "tests.test_plain_path"],
        capture_output=True,
        check=True,
        cwd=_ROOT.parent,
        text=True,
    )
    assert shown.stdout.splitlines()[-1] == "imported meanwhile: nothing else"


def _print(title: str, numbers: Mapping[str, int]) -> None:
    print(title)
    for name, number in Counter(numbers).most_common():
        print(f"{number:6} {name}")


if __name__ == "__main__":
    closure = import_closure()
    functions, imported = functions_of_a_report()
    files = Counter(file for file, _ in functions)
    _print(f"{len(functions)} functions in {len(files)} files", files)
    _print(f"{sum(closure.values())} lines in {len(closure)} modules", closure)
    print("imported meanwhile:", ", ".join(sorted(imported - closure.keys())) or "nothing else")
