"""Test that registry entries are complete, and that only they import their protocols."""

from __future__ import annotations

import ast
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpstream.pipeline.protocols.registry import PROTOCOLS


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocol_entry_is_complete(name: str) -> None:
    protocol = PROTOCOLS[name]
    assert protocol.name == name
    assert dataclasses.is_dataclass(protocol.parameters)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(protocol, "name", "other")  # noqa: B010
    assert protocol.planning is not None, "plan supports every protocol"


def test_device_code_does_not_import_accounting() -> None:
    check = (
        "import dpstream.pipeline.devices.producer, sys; found = [m for m in sys.modules if "
        "m.startswith(('dpstream.randomizers.accounting', 'scipy'))]; sys.exit(', '.join(found) or "
        "0)"
    )
    finished = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_only_the_requested_protocol_is_imported() -> None:
    check = (
        "import sys; from dpstream.pipeline.protocols.registry import OWN, PROTOCOLS, module_of; "
        "loaded = lambda: [each for each in OWN if "
        "f'dpstream.pipeline.protocols.{module_of(each)}' in sys.modules]; assert "
        "list(PROTOCOLS)[:len(OWN)] == list(OWN) and 'bun' in PROTOCOLS; assert not loaded(), "
        "loaded(); assert PROTOCOLS['count_min'].name == 'count_min'; assert loaded() == "
        "['count_min'], loaded()"
    )
    finished = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert (finished.returncode, finished.stderr) == (0, "")


ROOT = Path(__file__).parents[3]


def modules_of_protocols() -> set[str]:
    known = {entry.parameters.__module__ for entry in PROTOCOLS.values()}
    for entry in PROTOCOLS.values():
        known |= {entry.law(example.parameters).__module__ for example in entry.examples}
    return known | {f"dpstream.aggregators.{module.rpartition('.')[2]}" for module in known}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def test_protocol_modules_are_imported_only_where_allowed() -> None:
    known = modules_of_protocols()
    assert {
        "dpstream.randomizers.future_rand",
        "dpstream.randomizers.count_min",
        "dpstream.aggregators.count_min",
    } <= known
    streets = ("protocols", "conformance/laws", "audit/recomputed")
    places = {ROOT / "pipeline" / street for street in streets}
    for path in (ROOT / "pipeline").rglob("*.py"):
        if places.isdisjoint(path.parents):
            assert known.isdisjoint(imported(path)), path


def test_accounting_does_not_import_protocols() -> None:
    known = modules_of_protocols()
    for path in (ROOT / "randomizers" / "accounting").glob("*.py"):
        assert known.isdisjoint(imported(path)), path
