"""Shared parts of sentences about all kinds of estimates."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dpstream.aggregators.estimate import CHANGES_USED, GAP, OUTSIDE
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import epoch_name
from dpstream.pipeline.results.known_digits import KnownCount
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import Fate

_WHY = {
    Fate.TOO_SMALL: "too few devices took part, so nothing was released",
    Fate.EMPTY: "nobody took part",
    Fate.SPOILED: "what was released of it was spoiled",
}
_GAP = "reports that it needs were never received"
_FLAGS = {
    GAP: f"{_GAP}, so the interval claims nothing",
    OUTSIDE: "noise has carried the estimate below 0 or above the population; pages cut it",
}


@dataclass(frozen=True, slots=True)
class Sentence:
    """One or two sentences; parts at odd positions, such as numbers, are emphasized."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return "".join(self.parts)


def nothing(job: DeployedJob, record: EstimateRecord) -> str:
    """State that an epoch has no result, and why."""
    why = _WHY.get(record.fate)
    if why is None:
        why = _GAP if GAP in record.flags else "its reports do not suffice"
    return f"Nothing can be said about {epoch_name(job, record.epoch).name}: {why}."


def how_sure(known: KnownCount) -> str:
    """Format a count's percentage and interval; empty if it may be 0."""
    if known.may_be_none:
        return ""
    share = f" ({known.share})" if known.share else ""
    return f"{share}, between {known.low:,} and {known.high:,}"


def assumption(job: DeployedJob, flags: Collection[str]) -> dict[str, str | None]:
    """Return the assumption of a job's intervals, and a warning if users have come close to it."""
    limit = job.change_limit
    if limit is None:
        return {"assumption": None, "warning": None}
    return {
        "assumption": f"{capital(str(limit))}.",
        "warning": f"{capital(limit.warning)}." if CHANGES_USED in flags else None,
    }


def flag_words(job: DeployedJob, flag: str) -> str:
    """Explain a flag of estimates, and the fix."""
    limit = job.change_limit
    if flag == CHANGES_USED and limit is not None:
        return f"{limit.warning}. To mend it, {limit.remedy}"
    return _FLAGS.get(flag, flag)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
