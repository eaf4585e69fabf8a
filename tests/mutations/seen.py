"""Save detections, so that a killed run can be continued if the code is unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from tests.mutations.mutation import ROOT, Mutation
from tests.mutations.trying import TREE, MutationOutcome, Trial


class Seen:
    """Detections saved as lines, by mutation, test, and digest of all code."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._code = code_digest(ROOT)
        lines = path.read_text().splitlines() if path.exists() else []
        self._trials = {entry["key"]: entry for entry in map(json.loads, lines)}

    def trial(self, mutation: Mutation) -> Trial | None:
        entry = self._trials.get(self._key(mutation))
        if entry is None:
            return None
        by, said, seconds = entry["by"], entry["said"], entry["seconds"]
        return Trial(mutation, MutationOutcome.DETECTED, by, said, seconds)

    def add(self, trial: Trial) -> None:
        if trial.outcome is MutationOutcome.DETECTED:
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
    """Return the SHA-256 (hex) of all modules in a copy, without the table of mutations."""
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
