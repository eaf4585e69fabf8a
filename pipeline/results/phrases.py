"""What sentences about every kind of estimate share."""

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
    """A sentence, or two.

    Attributes:
        parts: one after the other; those at odd places, such as numbers, carry weight.
    """

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return "".join(self.parts)


def nothing(job: DeployedJob, record: EstimateRecord) -> str:
    """That nothing can be said about an epoch, and why."""
    why = _WHY.get(record.fate)
    if why is None:
        why = _GAP if GAP in record.flags else "its reports do not suffice"
    return f"Nothing can be said about {epoch_name(job, record.epoch).name}: {why}."


def how_sure(known: KnownCount) -> str:
    """The share of a count, and between which numbers it lies; empty where it may be none."""
    if known.may_be_none:
        return ""
    share = f" ({known.share})" if known.share else ""
    return f"{share}, between {known.low:,} and {known.high:,}"


def assumption(job: DeployedJob, flags: Collection[str]) -> dict[str, str | None]:
    """What the intervals of a job assume, and whether people have come close to it.

    Args:
        job: as deployed.
        flags: of its latest estimate.
    """
    limit = job.change_limit
    if limit is None:
        return {"assumption": None, "warning": None}
    return {
        "assumption": f"{capital(str(limit))}.",
        "warning": f"{capital(limit.warning)}." if CHANGES_USED in flags else None,
    }


def flag_words(job: DeployedJob, flag: str) -> str:
    """What a flag says of the estimates that carry it, and what can be done."""
    limit = job.change_limit
    if flag == CHANGES_USED and limit is not None:
        return f"{limit.warning}. To mend it, {limit.remedy}"
    return _FLAGS.get(flag, flag)


def capital(text: str) -> str:
    """With a capital letter."""
    return text[:1].upper() + text[1:]
