"""Walkthrough of the demonstration in four screens, for readers without prior knowledge."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

import numpy as np

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import epoch_name
from dpstream.pipeline.results.privacy_sentences import trusted_party
from dpstream.pipeline.results.sentences import epoch_sentence
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.guarantee import needs_no_trust, percent_right, rounded_up
from dpstream.randomizers.randomness import cryptographic_generator

STUDENT = "1006"
"""Student whose device is shown: enrolled twice, with a pause in between."""

PEOPLE = 28_785
"""Number of students in the change log."""

SCREENS = 4
WIDTH = 96
"""Maximum width of a line, in columns."""
_CHART_WIDTH = 74
_WEEKS = 60
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class WalkthroughScreen:
    number: int
    title: str
    lines: tuple[str, ...]

    @property
    def heading(self) -> str:
        """Title, preceded by the screen's number.

        >>> WalkthroughScreen(2, "What one device sends", ()).heading
        '2 of 4: What one device sends'
        """
        return f"{self.number} of {SCREENS}: {self.title}"

    def folded(self, width: int) -> list[str]:
        """Return the lines wrapped to `width` columns with a hanging indent; URLs are not broken.

        >>> WalkthroughScreen(1, "The question", ("  how many, of all",)).folded(12)
        ['  how many,', '    of all']
        """
        return [part for line in self.lines for part in _fold(line, min(width, WIDTH))]


def explain_statistic(jobs: Sequence[DeployedJob], people: int) -> WalkthroughScreen:
    first = jobs[0]
    begin = epoch_name(first, 1).name
    lines = [
        f"{people:,} {first.people} took courses at a university, in {first.epochs.count} weeks "
        f"starting with {begin}.",
        "How many were enrolled in each week? What an observer can learn about any one of them "
        "has a stated limit.",
        f"The same {first.people} are counted in {len(jobs)} ways:",
    ]
    for job in jobs:
        epsilon, trust = rounded_up(job.guarantee.epsilon, 3), trusted_party(job.guarantee.trust)
        if trust != "none":
            trust = f"{trust} and {job.shuffle.minimum:,} honest {job.people}"
        lines.append(f"  {job.name}, epsilon {epsilon}, trusted party: {trust}")
    lines.append("The last screen explains what epsilon means for one of them.")
    return WalkthroughScreen(1, "The question", tuple(lines))


def explain_reports(job: DeployedJob, values: Sequence[int]) -> WalkthroughScreen:
    """Return the screen with a student's weekly values and their device's reports.

    The reports are drawn for this screen by the job's own mechanism, and never sent. The job has
    one report of one byte per week.
    """
    rng = cryptographic_generator()
    device = job.protocol_entry.randomizer(job.law)
    device.enroll(1, rng)
    sent = bytearray()
    for epoch, value in enumerate(values, 1):
        report = device.report(epoch, np.array([value], np.int8), None, rng)
        sent += np.asarray(report).tobytes()
    start = max(0, values.index(1) - 10) if 1 in values else 0
    part = slice(start, start + _WEEKS)
    lines = [
        f"The values of one student, from {epoch_name(job, start + 1).name} on (█: enrolled):",
        "  " + "".join("█" if value else "·" for value in values[part]),
        f"The device sends one byte per week, {len(sent)} in total. For the same weeks:",
        *(f"  {line}" for line in _wrapped(sent[part].hex(" "), 3 * 20)),
        "The device randomizes each byte: if its student had never been enrolled, it might have "
        "sent the same bytes. The last screen says what that means for a guess.",
    ]
    return WalkthroughScreen(2, "What one student's device sends", tuple(lines))


def explain_estimates(
    runs: Sequence[tuple[DeployedJob, Sequence[EstimateRecord]]], page: str | None
) -> WalkthroughScreen:
    job, records = runs[-1]
    fullest = max(records, key=lambda record: record.summary.value or 0.0).epoch
    heights = _heights([record.summary.value or 0.0 for record in records])
    lines = [
        f"All {len(records)} weeks from {epoch_name(job, 1).name} on; the highest bar is about "
        f"{round(max(heights), -2):,.0f} {job.people}:",
        "  " + _bars(heights),
        f"The week with the most {job.people}:",
    ]
    for each, published in runs:
        of_fullest = [
            epoch_sentence(each, record) for record in published if record.epoch == fullest
        ]
        lines += [f"  {each.name}: {sentence}" for sentence in of_fullest]
    if page is not None:
        lines += ["All weeks, with their confidence intervals:", f"  {page}"]
    return WalkthroughScreen(3, "What is published", tuple(lines))


def explain_guarantee(jobs: Sequence[DeployedJob]) -> WalkthroughScreen:
    guarantees = [job.guarantee for job in jobs]
    lines = ["A guess about one student that was 50 % likely is right in at most:"]
    for job, guarantee in zip(jobs, guarantees, strict=True):
        seen = f"the shuffled reports of all {job.people}"
        if needs_no_trust(guarantee.trust):
            seen = "all reports that the device ever sends"
        right = percent_right(guarantee.epsilon, guarantee.delta)
        lines.append(f"  {job.name}: {right} of cases, for an observer of {seen};")
    together = [sum(getattr(each, name) for each in guarantees) for name in ("epsilon", "delta")]
    right = percent_right(*together)
    lines.append(f"  all {len(jobs)} combined: {right} of cases, for an observer of all of these.")
    lines.append(
        "Whatever else an observer knows, and however fast its computers, the reports of jobs "
        "without a trusted party add no more than this; learning more requires the device or its "
        "producer."
    )
    lines += [_rests_on(job) for job in jobs if not needs_no_trust(job.guarantee.trust)]
    return WalkthroughScreen(4, "What an observer can learn about one student", tuple(lines))


def _rests_on(job: DeployedJob) -> str:
    return (
        f"Only {job.name} relies on others: on the shuffler to shuffle, and on "
        f"{job.shuffle.minimum:,} {job.people} each week to participate honestly. It gives no "
        "protection against a shuffler, or operator of Kafka, that links reports to devices."
    )


def _fold(line: str, width: int) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    parts = wrap(
        line.lstrip().replace(" %", "\N{NO-BREAK SPACE}%"),
        width,
        initial_indent=indent,
        subsequent_indent=indent and f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace("\N{NO-BREAK SPACE}", " ") for part in parts]


def values_of(change_log: Path, user: str, epochs: int) -> list[int]:
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


def _heights(values: Sequence[float]) -> list[float]:
    blocks = np.array_split(np.array(values), min(_CHART_WIDTH, len(values)))
    return [max(float(np.mean(block)), 0.0) for block in blocks]


def _bars(heights: Sequence[float]) -> str:
    top = max(*heights, 1.0)
    return "".join(_BARS[round(height / top * (len(_BARS) - 1))] for height in heights)


def _wrapped(text: str, width: int) -> list[str]:
    return [text[start : start + width].rstrip() for start in range(0, len(text), width)]
