"""Sentences about an epoch for readers who know neither protocols nor statistics.

- Sentences use the job's wording and calendar, and claim only what is known.
- Numbers have the digits that their intervals support, and lie between 0 and the population.
- Items with overlapping intervals are called tied. These intervals hold for all items together; the
  95 % interval of a single item is shown with its curve.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpstream.aggregators.estimate import GAP
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import epoch_name
from dpstream.pipeline.results.kinds import kind_of
from dpstream.pipeline.results.kinds.headline import Headline
from dpstream.pipeline.results.measure_sentences import measure_sentence, row_headline
from dpstream.pipeline.results.measure_series import measure_series
from dpstream.pipeline.results.phrases import Sentence, capital, nothing
from dpstream.pipeline.stages.estimate_records import EstimateRecord

LATEST_ESTIMATES = 200
"""Maximum number of latest epochs that are searched for a complete epoch."""


def is_known(record: EstimateRecord) -> bool:
    estimate = record.headline
    return estimate is not None and estimate.value is not None and GAP not in record.flags


def is_complete(job: DeployedJob, record: EstimateRecord) -> bool:
    """Return whether an epoch is known and, if there is a calendar, was finalized after its end.

    If the input ends in the middle of an epoch, that epoch is incomplete.
    """
    if not is_known(record):
        return False
    calendar = job.epochs.calendar
    if calendar is None:
        return True
    try:
        return record.closed_at >= 1000 * calendar.start_of(record.epoch + 1).timestamp()
    except OverflowError:
        return True


def latest_complete_record(job: DeployedJob, records: Sequence[EstimateRecord]) -> EstimateRecord:
    """Return the latest complete record, else the latest known record, else the latest record.

    `records` are in the order of epochs, at least one.
    """
    latest = records[-LATEST_ESTIMATES:]
    for suits in (lambda each: is_complete(job, each), is_known):
        for record in reversed(latest):
            if suits(record):
                return record
    return latest[-1]


def sentence_of(
    job: DeployedJob, records: Sequence[EstimateRecord], *, titled: bool = True
) -> Sentence:
    """Describe the `latest_complete_record`, and the latest epoch if it is a different epoch.

    `records` are in the order of epochs, at least one. `titled` is False if the title is displayed
    above; otherwise it precedes the sentence, unless it is part of the noun.
    """
    complete = latest_complete_record(job, records)
    last, sentence = records[-1], epoch_sentence(job, complete, titled=titled)
    if last is complete:
        return sentence
    name = capital(epoch_name(job, last.epoch).name)
    more = f"{name} has not ended yet." if is_known(last) else nothing(job, last)
    *parts, end = sentence.parts
    return Sentence((*parts, f"{end} {more}"))


def epoch_sentence(job: DeployedJob, record: EstimateRecord, *, titled: bool = True) -> Sentence:
    when = epoch_name(job, record.epoch)
    if not is_known(record):
        return Sentence((nothing(job, record),))
    if rows := measure_series(job):
        return measure_sentence(job, rows, record, when, titled=titled)
    return kind_of(job.domain).sentence(job, record, when, titled=titled)


def headline_of(job: DeployedJob, record: EstimateRecord) -> Headline:
    if rows := measure_series(job):
        return row_headline(rows, record, None)
    return kind_of(job.domain).headline(job.domain, record)


def change_words(job: DeployedJob, change: EstimateRecord) -> tuple[str, str] | None:
    """Return a count's change since the previous epoch, as number and words, or None."""
    return kind_of(job.domain).change_words(job, change) if is_known(change) else None
