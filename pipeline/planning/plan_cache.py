"""Plans that were made before, kept in the folder of local state.

A plan is a pure function of the job, of what is asked, and of the code: a second time it is read.
Where it is kept (``plans/`` below `pipeline.state.state_home`) only the owner may look; a file that
is damaged, or of other code, is passed over and written anew, and where nothing can be written
nothing is kept. Plans that were made with counts of true values are never kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from pipeline.jobs.job_files import Job
from pipeline.planning.plan import Plan
from pipeline.state import private_folder, state_home
from pipeline.whole_files import read_whole_file, replaced_whole, write_new

KEPT: Final = 64
"""Plans that are kept, the latest ones."""
LARGEST: Final = 4 << 20
"""Bytes of the largest that is."""

_PACKAGES = ("aggregators", "pipeline", "randomizers", "topics")
_COMPUTED_WITH = ("numpy", "scipy")


def plans_folder() -> Path:
    """Where plans are kept."""
    return state_home() / "plans"


def kept_plan(job: Job, asked: dict[str, Any], make: Callable[[], Plan]) -> Plan:
    """A plan that was made before, or that is made now and kept.

    Args:
        job: what is planned.
        asked: everything else that the plan depends on, as JSON values; nothing that is private.
        make: makes it.
    """
    if not job.protocol_entry.parameters.__module__.startswith("randomizers."):
        return make()  # of another package, whose code may change without ours
    path = plans_folder() / f"{_key(job, asked)}.json"
    found = _read(path)
    if found is not None:
        return found
    made = make()
    with suppress(OSError, ValueError):
        _write(path, _PLANS.dump_json(made))
    return made


def _read(path: Path) -> Plan | None:
    try:
        return _PLANS.validate_json(read_whole_file(path, LARGEST))
    except (OSError, ValidationError):
        return None


def _write(path: Path, data: bytes) -> None:
    if len(data) > LARGEST:
        return
    folder = private_folder(path.parent)
    with suppress(FileExistsError):
        write_new(path, b"", 0o600)
    with replaced_whole(path) as part:
        part.write_bytes(data)
    kept = sorted(folder.glob("*.json"), key=lambda each: each.stat().st_mtime)
    for old in kept[:-KEPT]:
        old.unlink(missing_ok=True)


def _key(job: Job, asked: dict[str, Any]) -> str:
    body = {"job": job.to_json(), "asked": asked, "code": _code()}
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


@cache
def _code() -> str:
    """What changes with the code, and with what it computes with."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for package in _PACKAGES:
        for source in sorted((root / package).rglob("*.py")):
            digest.update(f"{source.relative_to(root)}\n".encode())
            digest.update(hashlib.sha256(source.read_bytes()).digest())
    for library in _COMPUTED_WITH:
        digest.update(f"{library} {version(library)}\n".encode())
    return digest.hexdigest()


_PLANS = TypeAdapter(Plan)
