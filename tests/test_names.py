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
"""Names of several modules: protocols have theirs in every package."""
FEWEST_LINES: Final = 60
SMALL: Final = {
    "pipeline/addresses.py": "collector and page decide by addresses alike",
    "pipeline/cli/__main__.py": "what 'python -m' runs",
    "pipeline/cli/producers.py": "a command of a leaf, which may be deleted with it",
    "pipeline/cli/server_tls.py": "commands of two leaves, each of which may be deleted, use it",
    "pipeline/conformance/plugin.py": "the entry point of pytest",
    "pipeline/conformance/suite.py": "the file that pytest collects",
    "pipeline/demo/thermostat.py": "a whole program, for a page to show",
    "pipeline/devices/sealed_records.py": "only jobs with sealed reports import it",
    "pipeline/devices/ground_truths.py": "inputs, results and page compare with it",
    "pipeline/jobs/job_range.py": "every reader of records imports it, and little else",
    "pipeline/jobs/jobs_topic.py": "jobs and ledger read the topic by it",
    "pipeline/jobs/key_ring.py": "only jobs with keys import it",
    "pipeline/jobs/locks.py": "only deployments with sealed reports import it",
    "pipeline/json_values.py": "the one writer of JSON",
    "pipeline/kafka/event_topic.py": "only the input from a topic imports it",
    "pipeline/kafka/workers/groups.py": "tools and workers name the same groups",
    "pipeline/open_files.py": "worker, collector and page raise the same limit",
    "pipeline/operations/signals.py": "commands that run processes share it",
    "pipeline/operations/supervisor/lines.py": "lines of many workers, tested without any",
    "pipeline/plots.py": "the one module that imports Matplotlib",
    "pipeline/protocols/late_calibration.py": "keeps calibrations from being imported",
    "pipeline/protocols/registry.py": "the list of protocols, without any",
    "pipeline/results/kinds/known_kinds.py": "the list of kinds, without any",
    "pipeline/stages/sealed_admission.py": "only stages of sealed jobs import it",
    "pipeline/stages/stage.py": "the interface that drivers know of all stages",
    "randomizers/accounting/clustered_noise.py": "one noise distribution, with its proof",
    "randomizers/accounting/crowd_counts.py": "accounting knows no protocol",
    "randomizers/cell_codes/codes.py": "what codes of cells have in common",
    "randomizers/change_kernel.py": "devices, aggregators and calibrations share it",
    "randomizers/client/amounts.py": "the client checks amounts without numpy",
    "randomizers/client/device_errors.py": "every module of the client raises them",
    "randomizers/counted_messages.py": "devices, producers and checks share it",
    "randomizers/value_tree.py": "randomizer and aggregator share the tree",
    "topics/message_formats.py": "devices need the form of reports, and no codec",
}
"""Modules under `FEWEST_LINES`, each with the reason that it is separate."""


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
