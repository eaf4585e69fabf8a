"""Mutations: changes of the installed code, each of which takes privacy away, and who notices.

The table is a folder of TOML files, one for each part of the house. A mutation is a piece of the
source that occurs exactly once, what takes its place, what that weakens in words, and the tests
that convict whoever runs it: audits of a protocol, attacks on the implementation, and conformance.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = "dpstream"
"""The folder of links by which what lies at the root is imported."""
TABLE: Final = Path(__file__).parent / "table"
AUDIT: Final = "tests/pipeline/audit/test_quick_audit.py::"
"""Stands before what convicts by ``dpstream audit --quick``, of one protocol or what all share."""
ATTACKS: Final = "tests/attacks/"
"""Stands before what convicts by an attack on the implementation."""
CONFORMANCE: Final = "tests/conformance/"
"""Stands before what convicts by the conformance suite."""


class MutationError(Exception):
    """The table does not fit the source, or a name in it is none."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of one file.

    Attributes:
        name: unique.
        area: the file of the table that it stands in.
        file: what is changed, from the root of the repository.
        old: a piece of its text, which occurs there exactly once.
        new: what takes its place.
        weakens: what is lost, in words.
        convicted_by: names of tests as pytest takes them. The first is an audit, an attack or one
            of the conformance suite; others notice it, too.
    """

    name: str
    area: str
    file: str
    old: str
    new: str
    weakens: str
    convicted_by: tuple[str, ...]

    @property
    def witness(self) -> str:
        """Who is to convict it: the first of them."""
        return self.convicted_by[0]

    @property
    def module(self) -> str | None:
        """What Python calls the file; None if it is no module."""
        path = Path(self.file)
        if path.suffix != ".py":
            return None
        parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
        return ".".join((PACKAGE, *parts))

    def applied(self, source: str) -> str:
        """The mutated text of the file.

        Raises:
            MutationError: the piece does not occur in it, or more than once, or stays what it is.
        """
        times = source.count(self.old)
        if times != 1 or self.old == self.new:
            raise MutationError(
                f"{self.name}: its text occurs {times} times in {self.file}, must be once and be "
                f"changed; bring tests/mutations/table/{self.area}.toml up to date"
            )
        return source.replace(self.old, self.new)


def all_mutations() -> list[Mutation]:
    """The whole table, area by area.

    Raises:
        MutationError: a name stands in it twice.
    """
    mutations = [
        Mutation(
            name=name,
            area=path.stem,
            file=entry["file"],
            old=entry["old"],
            new=entry["new"],
            weakens=entry["weakens"],
            convicted_by=tuple(entry["convicted_by"]),
        )
        for path in sorted(TABLE.glob("*.toml"))
        for name, entry in tomllib.loads(path.read_text()).items()
    ]
    names = [mutation.name for mutation in mutations]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise MutationError(f"twice in the table: {', '.join(twice)}")
    return mutations


def mutations_named(names: Sequence[str]) -> list[Mutation]:
    """Those of these names, or of these areas; all if there are none.

    Raises:
        MutationError: a name is none.
    """
    mutations = all_mutations()
    known = {mutation.name for mutation in mutations} | {mutation.area for mutation in mutations}
    if unknown := sorted(set(names) - known):
        raise MutationError(f"no mutation or area is called {', '.join(unknown)}")
    return [each for each in mutations if not names or {each.name, each.area} & set(names)]
