"""Mutations: changes of the installed code that each weaken privacy, and tests that detect them.

The table is a folder of TOML files, one for each area. A mutation is a piece of the source that
occurs exactly once, its replacement, a description of the weakness, and the tests that detect it:
audits of a protocol, attacks on the implementation, and conformance.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = "dpstream"
"""Folder of links that makes the root folders importable."""
TABLE: Final = Path(__file__).parent / "table"
AUDIT: Final = "tests/pipeline/audit/test_quick_audit.py::"
"""Prefix of detection by ``dpstream audit --quick``, of one protocol or of shared code."""
ATTACKS: Final = "tests/attacks/"
"""Prefix of detection by an attack on the implementation."""
CONFORMANCE: Final = "tests/conformance/"
"""Prefix of detection by the conformance suite."""


class MutationError(Exception):
    """The table does not match the source, or a name in it is unknown."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """Change of one file.

    Attributes:
        area: File of the table that contains it.
        old: A piece of the file's text, which occurs there exactly once.
        weakens: Description of the lost protection.
        detected_by: Test ids of pytest. The first is an audit, an attack or one of the conformance
            suite; others detect it, too.
    """

    name: str
    area: str
    file: str
    old: str
    new: str
    weakens: str
    detected_by: tuple[str, ...]

    @property
    def witness(self) -> str:
        """First test that must detect it."""
        return self.detected_by[0]

    @property
    def module(self) -> str | None:
        """Module name of the file; None if it is no module."""
        path = Path(self.file)
        if path.suffix != ".py":
            return None
        parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
        return ".".join((PACKAGE, *parts))

    def applied(self, source: str) -> str:
        """Return the mutated text; raises `MutationError` unless `old` occurs once and changes."""
        times = source.count(self.old)
        if times != 1 or self.old == self.new:
            raise MutationError(
                f"{self.name}: its text occurs {times} times in {self.file}, must be once and be "
                f"changed; bring tests/mutations/table/{self.area}.toml up to date"
            )
        return source.replace(self.old, self.new)


def all_mutations() -> list[Mutation]:
    """Return the whole table, area by area; raises `MutationError` for repeated names."""
    mutations = [
        Mutation(
            name=name,
            area=path.stem,
            file=entry["file"],
            old=entry["old"],
            new=entry["new"],
            weakens=entry["weakens"],
            detected_by=tuple(entry["detected_by"]),
        )
        for path in sorted(TABLE.glob("*.toml"))
        for name, entry in tomllib.loads(path.read_text()).items()
    ]
    names = [mutation.name for mutation in mutations]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise MutationError(f"twice in the table: {', '.join(twice)}")
    return mutations


def mutations_named(names: Sequence[str]) -> list[Mutation]:
    """Return the mutations of these names or areas, by default all."""
    mutations = all_mutations()
    known = {mutation.name for mutation in mutations} | {mutation.area for mutation in mutations}
    if unknown := sorted(set(names) - known):
        raise MutationError(f"no mutation or area is called {', '.join(unknown)}")
    return [each for each in mutations if not names or {each.name, each.area} & set(names)]
