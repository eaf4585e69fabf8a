"""What a protocol is, is known in its own modules, its entry, its law and what attacks just it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from dpstream.pipeline.protocols.registry import PROTOCOLS

ROOT = Path(__file__).parents[3]


def modules_of_protocols() -> set[str]:
    """Those of parameters, laws and devices, and the aggregators of the same names."""
    known = {entry.parameters.__module__ for entry in PROTOCOLS.values()}
    for entry in PROTOCOLS.values():
        known |= {entry.law(example.parameters).__module__ for example in entry.examples}
    return known | {module.replace("randomizers", "aggregators") for module in known}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def test_nothing_but_its_entry_its_exact_law_and_attacks_on_it_imports_a_protocol() -> None:
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


def test_accounting_knows_no_protocol() -> None:
    known = modules_of_protocols()
    for path in (ROOT / "randomizers" / "accounting").glob("*.py"):
        assert known.isdisjoint(imported(path)), path
