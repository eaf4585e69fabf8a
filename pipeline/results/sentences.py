"""What was published of an epoch as a sentence for whoever knows neither protocols nor statistics.

It is made of a job's own words, names epochs by its calendar, and claims no more than is known:
numbers have the digits that their intervals allow, lie between nobody and everybody, and items
whose intervals overlap are called alike. Those are the intervals that hold for all items at once;
the one of 95 % of a single item stands beside its curve.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpstream.aggregators.estimate import GAP
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import epoch_name
from dpstream.pipeline.results.kinds.known_kinds import kind_of
from dpstream.pipeline.results.phrases import Sentence, capital, nothing
from dpstream.pipeline.stages.estimate_records import EstimateRecord

LOOKED_BACK = 200
"""So many epochs are looked at for the last one that is complete."""


def is_known(record: EstimateRecord) -> bool:
    """Whether something is claimed of an epoch: it has an estimate, and nothing is missing."""
    estimate = record.headline
    return estimate is not None and estimate.value is not None and GAP not in record.flags


def is_complete(job: DeployedJob, record: EstimateRecord) -> bool:
    """Whether an epoch is known, and was decided after its end where a calendar says when that is.

    Where input ends in the middle of an epoch, that one is not complete.
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


def hero_of(job: DeployedJob, records: Sequence[EstimateRecord]) -> EstimateRecord:
    """The epoch that says most of where a job stands: its last complete one.

    Where none is, the last one that is known, and else the last.

    Args:
        job: as deployed.
        records: in the order of their epochs, at least one.
    """
    latest = records[-LOOKED_BACK:]
    for suits in (lambda each: is_complete(job, each), is_known):
        for record in reversed(latest):
            if suits(record):
                return record
    return latest[-1]


def sentence_of(
    job: DeployedJob, records: Sequence[EstimateRecord], *, titled: bool = True
) -> Sentence:
    """Where a job stands: `hero_of`, and what is to be said of a later epoch that is not it.

    Args:
        job: as deployed.
        records: in the order of their epochs, at least one.
        titled: whether to say what is counted where the title is another; False where it stands
            above.
    """
    hero = hero_of(job, records)
    last, said = records[-1], epoch_sentence(job, hero, titled=titled)
    if last is hero:
        return said
    name = capital(epoch_name(job, last.epoch).name)
    more = f"{name} is not over yet." if is_known(last) else nothing(job, last)
    *parts, end = said.parts
    return Sentence((*parts, f"{end} {more}"))


def epoch_sentence(job: DeployedJob, record: EstimateRecord, *, titled: bool = True) -> Sentence:
    """What was published of one epoch; `titled` as of `sentence_of`."""
    when = epoch_name(job, record.epoch)
    if not is_known(record):
        return Sentence((nothing(job, record),))
    return kind_of(job.domain).sentence(job, record, when, titled=titled)


def change_words(job: DeployedJob, change: EstimateRecord) -> tuple[str, str] | None:
    """A count's change since the epoch before: its number, and what can be said of it.

    Args:
        job: as deployed.
        change: as of `changes` with a lag of 1.
    """
    return kind_of(job.domain).change_words(job, change) if is_known(change) else None
