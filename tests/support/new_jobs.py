"""Build jobs in tests from keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpstream.pipeline.jobs.epochs import Epochs
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.jobs.job_sections import Topics
from dpstream.pipeline.jobs.shuffle import Shuffle

_SECTION_OF = {
    key: section
    for section, model in (("epochs", Epochs), ("shuffle", Shuffle), ("topics", Topics))
    for key in model.model_fields
}


def new_job(
    name: str,
    protocol: str,
    parameters: Mapping[str, Any],
    folder: Path = Path(),
    /,
    **keys: Any,
) -> Job:
    """Build a job from job file keys; keys of epochs, shuffle and topics need no section."""
    sections: dict[str, dict[str, Any]] = {}
    for key in keys.keys() & _SECTION_OF.keys():
        sections.setdefault(_SECTION_OF[key], {})[key] = keys.pop(key)
    values = {"name": name, "protocol": protocol, "parameters": parameters, **sections, **keys}
    return make_job(values, folder)


def hidden_sizes(
    values: Sequence[str], epsilon: float, delta: float, column: str = "version"
) -> dict[str, Any]:
    """Return the keys of a job file with a public attribute whose group sizes are hidden."""
    noise = {"epsilon": epsilon, "delta": delta}
    keys = {"values": list(values), "column": column, "public": True, "hide_sizes": noise}
    return {"attributes": {"version": keys}, "by": ["version"]}
