"""The demonstration as a story in four screens, for whoever has never heard of any of it.

What is asked, what one student's device sends, what everyone sees, and what it would take to learn
about one.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

import numpy as np

from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.epoch_words import epoch_name
from pipeline.results.sentences import epoch_sentence
from pipeline.serve.privacy_sentences import odds, trusted_words
from pipeline.stages.estimate_records import EstimateRecord
from randomizers.randomness import cryptographic_generator

STUDENT = "1006"
"""Whose device is shown: one whose student was enrolled twice, with a pause."""

PEOPLE = 28_785
"""In the change log."""

SCREENS = 4
WIDTH = 96
"""Columns of a line at most."""
_WEEKS = 60
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class ScreenOfStory:
    """One of the four.

    Attributes:
        number: from 1 on.
        title: what it is about.
        lines: what it says.
    """

    number: int
    title: str
    lines: tuple[str, ...]

    @property
    def heading(self) -> str:
        """Its title, after its number.

        >>> ScreenOfStory(2, "What one device sends", ()).heading
        '2 of 4: What one device sends'
        """
        return f"{self.number} of {SCREENS}: {self.title}"


def what_is_asked(jobs: Sequence[DeployedJob], people: int) -> ScreenOfStory:
    """The question, and of whom it asks what trust."""
    first = jobs[0]
    begin = epoch_name(first, 1).name
    lines = [
        f"{people:,} {first.people} took courses of a university, in {first.epochs.count} weeks "
        f"from {begin} on.",
        "How many were enrolled in each? Nobody may learn of any one of them whether they were.",
        "It is asked in three ways, of the same people:",
    ]
    for job in jobs:
        guarantee = job.guarantee()
        trust = guarantee.trust.partition(":")[0].partition(",")[0]
        lines.append(f"  {job.name}: epsilon {guarantee.epsilon:.3g}; to be trusted: {trust}")
    return _screen(1, "What is asked", lines)


def what_a_device_sends(job: DeployedJob, values: Sequence[int]) -> ScreenOfStory:
    """What a student knows, and what their device makes of it, week by week.

    It is drawn here for this screen, by the job's own law, and sent nowhere.

    Args:
        job: of devices that send a byte each week.
        values: of the student, 0 or 1, one for each epoch.
    """
    rng = cryptographic_generator()
    device = job.protocol_entry.randomizer(job.law())
    device.enrol(1, rng)
    sent = bytearray()
    for epoch, value in enumerate(values, 1):
        report = device.report(epoch, np.array([value], np.int8), None, rng)
        sent += np.asarray(report).tobytes()
    start = max(0, values.index(1) - 10) if 1 in values else 0
    part = slice(start, start + _WEEKS)
    lines = [
        f"What one student knows, from {epoch_name(job, start + 1).name} on (█: enrolled):",
        "  " + "".join("█" if value else "·" for value in values[part]),
        f"The device sends a byte a week, {len(sent)} in all. Of the same weeks:",
        *(f"  {line}" for line in _wrapped(sent[part].hex(" "), 3 * 20)),
        "The device throws dice for each byte: had its student never been enrolled, it might have",
        "sent the same. How much less likely that is has a limit, which the last screen tells.",
    ]
    return _screen(2, "What one student's device sends", lines)


def what_everyone_sees(
    runs: Sequence[tuple[DeployedJob, Sequence[EstimateRecord]]], page: str | None
) -> ScreenOfStory:
    """What is published: the curve, and a week of it in a sentence for each job."""
    job, records = runs[-1]
    fullest = max(records, key=lambda record: record.summary.value or 0.0).epoch
    lines = [
        f"All {len(records)} weeks, from {epoch_name(job, 1).name} on:",
        "  " + _bars([record.summary.value or 0.0 for record in records]),
        f"and of {epoch_name(job, fullest).name}, when most were enrolled:",
    ]
    for each, published in runs:
        told = [epoch_sentence(each, record) for record in published if record.epoch == fullest]
        lines += [f"  {each.name}: {sentence}" for sentence in told]
    if page is not None:
        lines.append(f"with every week, and how sure it is: {page}")
    return _screen(3, "What everyone sees", lines)


def what_it_would_take(jobs: Sequence[DeployedJob]) -> ScreenOfStory:
    """What somebody would have to do to learn about one student."""
    lines = ["Whoever keeps everything that a device ever sends, and guesses about its student:"]
    for job in jobs:
        guarantee = job.guarantee()
        likely = odds(guarantee.epsilon).rpartition(": ")[2]
        lines.append(f"  {job.name}: {likely}.")
    lines += [
        "To learn more, they would have to look into the device itself; and in the last way, which",
        f"counts best: {trusted_words(jobs[-1].guarantee().trust)[:1].lower()}"
        f"{trusted_words(jobs[-1].guarantee().trust)[1:]}",
        "Neither faster computers nor anything that is known besides would tell them more.",
    ]
    return _screen(4, "What it would take to learn about one", lines)


def _screen(number: int, title: str, lines: Sequence[str]) -> ScreenOfStory:
    """A screen whose long lines are folded, further in than where they begin."""
    folded: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()))
        further = indent and f"{indent}  "
        folded += wrap(line.lstrip(), WIDTH, initial_indent=indent, subsequent_indent=further)
    return ScreenOfStory(number, title, tuple(folded))


def values_of(change_log: Path, user: str, epochs: int) -> list[int]:
    """A user's value at each epoch, from a change log as `prepare_oulad` writes it."""
    changes: dict[int, int] = {}
    with gzip.open(change_log, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["user"] == user:
                changes[int(row["epoch"])] = int(row["value"])
    return list(_held(changes, epochs))


def _held(changes: dict[int, int], epochs: int) -> Iterator[int]:
    value = 0
    for epoch in range(1, epochs + 1):
        value = changes.get(epoch, value)
        yield value


def _bars(values: Sequence[float], width: int = 74) -> str:
    """A curve in a line of characters, of the mean of as many values as share one."""
    blocks = np.array_split(np.array(values), min(width, len(values)))
    means = [float(np.mean(block)) for block in blocks]
    top = max(*means, 1.0)
    return "".join(_BARS[round(max(mean, 0.0) / top * (len(_BARS) - 1))] for mean in means)


def _wrapped(text: str, width: int) -> list[str]:
    return [text[start : start + width].rstrip() for start in range(0, len(text), width)]
