"""Names of modules and classes are unique, and small modules have a stated reason."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dpstream.pipeline.protocols.registry import OWN, module_of
from tests.support.sources import FOLDERS, ROOT

SHARED: Final = {"__init__", "calibration", *map(module_of, OWN)}
"""Module names that occur several times, because protocols repeat them in each package."""
FEWEST_LINES: Final = 60
SMALL: Final = {
    "pipeline/addresses.py": "collector and page share decisions about addresses",
    "pipeline/cli/__main__.py": "entry point of 'python -m'",
    "pipeline/cli/producers.py": "command of a leaf, deleted with the leaf",
    "pipeline/cli/server_tls.py": "shared by commands of two leaves, each of which can be deleted",
    "pipeline/conformance/finding.py": "imports exact laws by the name of a protocol",
    "pipeline/conformance/plugin.py": "entry point of pytest",
    "pipeline/conformance/suite.py": "file that pytest collects",
    "pipeline/demo/thermostat.py": "complete program that a page shows",
    "pipeline/devices/sealed_records.py": "imported only by jobs with sealed reports",
    "pipeline/jobs/job_range.py": "imported by all readers of records, without other modules",
    "pipeline/jobs/job_sections.py": "two sections, which many modules import without other ones",
    "pipeline/jobs/key_ring.py": "imported only by jobs with keys",
    "pipeline/jobs/locks.py": "imported only by deployments with sealed reports",
    "pipeline/json_values.py": "the only writer of JSON",
    "pipeline/kafka/event_topic.py": "imported only by input from a topic",
    "pipeline/open_files.py": "shared by worker, collector and page, to raise a limit",
    "pipeline/operations/signals.py": "shared by commands that run processes",
    "pipeline/operations/supervisor/target_tasks.py": "imported by workers without the supervisor",
    "pipeline/plots.py": "the only module that imports Matplotlib",
    "pipeline/protocols/late_calibration.py": "avoids importing calibrations",
    "pipeline/protocols/registry.py": "list of protocols, without importing a protocol",
    "pipeline/stages/idle_condition.py": "imported by supervisors without the stages",
    "pipeline/stages/sealed_admission.py": "imported only by stages of sealed jobs",
    "pipeline/stages/stage.py": "interface of all stages for drivers",
    "pipeline/values/item_sums.py": "numbers by item, shared by devices, results and simulation",
    "randomizers/cell_codes/codes.py": "common part of cell codes",
    "randomizers/client/amounts.py": "checks amounts in the client, without numpy",
    "randomizers/client/device_errors.py": "raised by every module of the client",
    "randomizers/counted_messages.py": "shared by devices, producers and checks",
    "topics/message_formats.py": "report format for devices, without the codec",
}
"""Modules shorter than `FEWEST_LINES`, with the reason why each is separate."""


def modules() -> list[Path]:
    return sorted(
        path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")
    )


def several(names: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """Return the names with several definitions and their locations."""
    places = defaultdict(list)
    for name, path in names:
        places[name].append(path.as_posix())
    return {name: found for name, found in places.items() if len(found) > 1}


def test_module_names_are_unique() -> None:
    assert several((path.stem, path) for path in modules() if path.stem not in SHARED) == {}


def test_class_names_are_unique() -> None:
    classes = (
        (node.name, path)
        for path in modules()
        for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert several(classes) == {}


def test_small_modules_have_a_stated_reason() -> None:
    small = {
        path.as_posix()
        for path in modules()
        if path.stem not in SHARED
        and len((ROOT / path).read_text("utf-8").splitlines()) < FEWEST_LINES
    }
    listed = {path for path in SMALL if (ROOT / path).exists()}
    assert small == listed
