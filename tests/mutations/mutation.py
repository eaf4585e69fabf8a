"""Mutations: changes of the installed code that weaken privacy, and the tests that detect them.

The table is a folder of TOML files, one per area. A mutation consists of a text that occurs exactly
once in the source, its replacement, a description of the weakness, and the tests that detect it:
audits of a protocol, attacks on the implementation, and conformance tests.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = "dpstream"
"""Folder of links that make the root folders importable."""
EXPERIMENTS: Final = "experiments"
"""Root folder that is a package itself."""
TABLE: Final = Path(__file__).parent / "table"
AUDIT: Final = "tests/pipeline/audit/test_quick_audit.py::"
"""Prefix of the ids of tests that run ``dpstream audit --quick``."""
ATTACKS: Final = "tests/attacks/"
"""Prefix of the ids of attacks on the implementation."""
CONFORMANCE: Final = "tests/conformance/"
"""Prefix of the ids of conformance tests."""


class MutationError(Exception):
    """The table does not match the source, or a requested name is unknown."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """Change of one file.

    Attributes:
        area: Name of the table file that contains the mutation.
        old: Text that occurs exactly once in the mutated file.
        weakens: Description of the lost protection.
        detected_by: Pytest ids of all listed tests that detect the mutation. The first is an audit,
            an attack or a conformance test.
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
        """Test that must detect the mutation."""
        return self.detected_by[0]

    @property
    def module(self) -> str | None:
        """Module name of the file, or None if it is not a module."""
        path = Path(self.file)
        if path.suffix != ".py":
            return None
        parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
        return ".".join(parts if parts[0] == EXPERIMENTS else (PACKAGE, *parts))

    def applied(self, source: str) -> str:
        """Return the mutated text; raise `MutationError` unless `old` occurs once and changes."""
        times = source.count(self.old)
        if times != 1 or self.old == self.new:
            raise MutationError(
                f"{self.name}: its text occurs {times} times in {self.file}; expected once, and a "
                f"different new text. Update tests/mutations/table/{self.area}.toml"
            )
        return source.replace(self.old, self.new)


def all_mutations() -> list[Mutation]:
    """Return all mutations by area; raise `MutationError` if names are repeated."""
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
        raise MutationError(f"names that are repeated in the table: {', '.join(twice)}")
    return mutations


def mutations_named(names: Sequence[str]) -> list[Mutation]:
    """Return the mutations with these names or in these areas; by default, return all."""
    mutations = all_mutations()
    known = {mutation.name for mutation in mutations} | {mutation.area for mutation in mutations}
    if unknown := sorted(set(names) - known):
        raise MutationError(f"no mutation or area is called {', '.join(unknown)}")
    return [each for each in mutations if not names or {each.name, each.area} & set(names)]
