"""What was seen before a run was killed: convictions, as long as nothing has changed since."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from tests.mutations.mutation import ROOT, Mutation
from tests.mutations.trying import TREE, Trial, Verdict


class Seen:
    """Convictions in a file, a line each.

    They are known by mutation, by the test that is to convict, and by all code there is: of other
    code nothing has been seen.

    Args:
        path: of the file, which need not be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._code = code_digest(ROOT)
        lines = path.read_text().splitlines() if path.exists() else []
        self._trials = {entry["key"]: entry for entry in map(json.loads, lines)}

    def trial(self, mutation: Mutation) -> Trial | None:
        """What has come of it; None if that was not seen."""
        entry = self._trials.get(self._key(mutation))
        if entry is None:
            return None
        by, said, seconds = entry["by"], entry["said"], entry["seconds"]
        return Trial(mutation, Verdict.CONVICTED, by, said, seconds)

    def add(self, trial: Trial) -> None:
        """Write down a conviction; what else may come of a mutation is tried again."""
        if trial.verdict is Verdict.CONVICTED:
            entry = {
                "key": self._key(trial.mutation),
                "name": trial.mutation.name,
                "by": trial.by,
                "said": trial.said,
                "seconds": trial.seconds,
            }
            with self._path.open("a") as lines:
                lines.write(json.dumps(entry) + "\n")

    def _key(self, mutation: Mutation) -> str:
        about = [self._code, mutation.file, mutation.old, mutation.new, mutation.witness]
        return sha256(json.dumps(about).encode()).hexdigest()


def code_digest(root: Path) -> str:
    """SHA-256 of all modules in a copy, those of the table of mutations left out, in hex."""
    digest = sha256()
    for path in _modules(root):
        body = path.read_bytes()
        digest.update(f"{path.relative_to(root)}\0{len(body)}\0".encode() + body)
    return digest.hexdigest()


def _modules(root: Path) -> Iterator[Path]:
    table = root / "tests" / "mutations"
    for name in TREE:
        for path in sorted((root / name).rglob("*.py")):
            if not path.is_relative_to(table) and "node_modules" not in path.parts:
                yield path
