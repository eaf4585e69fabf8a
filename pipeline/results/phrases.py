"""Shared parts of sentences about all kinds of estimates."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from dpstream.aggregators.estimate import CHANGES_USED, GAP, INCOMPLETE, OUTSIDE
from dpstream.aggregators.panel_estimates import SMALL_GROUP
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import epoch_name
from dpstream.pipeline.results.known_digits import KnownCount
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.topics.manifests import WindowStatus

_WHY = {
    WindowStatus.EMPTY: "no device reported",
    WindowStatus.CORRUPT: "its released data is corrupt",
}
_GAP = "required reports are missing"
_FLAGS = {
    GAP: f"{_GAP}, so no 95 % interval is claimed",
    INCOMPLETE: "some epochs of the window have no estimate; a mean and its interval cover only "
    "the others, and a sum is not shown",
    SMALL_GROUP: "groups in which fewer devices than parameters.by_minimum answer have no numbers",
    OUTSIDE: "noise moved the estimate below 0 or above the population; the live page clips it",
}
_PLAIN = re.compile(r"[\w '\u2019-]+")
"""Texts without punctuation, which can be part of a sentence."""
_END = ".:;,!?… "


@dataclass(frozen=True, slots=True)
class Sentence:
    """One or two sentences, in parts; parts at odd positions, such as numbers, are emphasized."""

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return "".join(self.parts)


def nothing(job: DeployedJob, record: EstimateRecord) -> str:
    if record.window_status is WindowStatus.SUPPRESSED:
        why = f"fewer than {job.shuffle.minimum:,} devices reported"
    else:
        default = _GAP if GAP in record.flags else "it has too few reports"
        why = _WHY.get(record.window_status, default)
    return f"No estimate for {epoch_name(job, record.epoch).name}: {why}."


def how_sure(known: KnownCount) -> str:
    """Format a count's percentage and interval as text; empty if the count may be 0."""
    if known.may_be_none:
        return ""
    share = f"{known.share}; " if known.share else ""
    return f" ({share}95 % CI {known.low:,} to {known.high:,})"


def is_plain(text: str) -> bool:
    """Return whether a text can be part of a sentence without breaking it."""
    return _PLAIN.fullmatch(text) is not None


def title_label(title: str | None) -> str:
    """Format a title to precede a sentence, in quotes if its punctuation would break the sentence.

    >>> title_label("Logins."), title_label('The "best". Ever!'), title_label(None)
    ('Logins: ', '“The "best". Ever!”: ', '')
    """
    if title is None:
        return ""
    bare = title.rstrip(_END)
    return f"{bare}: " if is_plain(bare) else f"“{title}”: "


def assumption(job: DeployedJob, flags: Collection[str]) -> dict[str, str | None]:
    """Return the assumed limit on a user's changes, and a warning if users may have exceeded it."""
    limit = job.change_limit
    if limit is None:
        return {"assumption": None, "warning": None}
    return {
        "assumption": f"The 95 % interval {limit}.",
        "warning": f"{capital(limit.warning)}." if CHANGES_USED in flags else None,
    }


def flag_words(job: DeployedJob, flag: str) -> str:
    """Explain a flag on an estimate, and what to do about it."""
    limit = job.change_limit
    if flag == CHANGES_USED and limit is not None:
        return f"{limit.warning}. To fix it, {limit.remedy}"
    return _FLAGS.get(flag, flag)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
