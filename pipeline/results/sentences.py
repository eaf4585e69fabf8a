"""What was published of an epoch as a sentence for whoever knows neither protocols nor statistics.

It is made of a job's own words, names epochs by its calendar, and claims no more than is known:
numbers have the digits that their intervals allow, nobody is counted below zero, and items whose
intervals overlap are called what they are, alike. Intervals are those of 95 %; of an item that was
selected for its size, the one that holds for all items at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from aggregators.estimate import GAP, NORMAL_95
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.epoch_words import EpochName, epoch_name, period
from pipeline.results.headlines import headline_of
from pipeline.results.known_digits import KnownCount, known_count, step_of
from pipeline.results.queries import Query
from pipeline.results.questions import Answer, Top
from pipeline.stages.estimate_records import EstimateRecord
from topics.manifests import Fate

LOOKED_BACK = 200
"""So many epochs are looked at for the last one that is complete."""

_MOST_ALIKE = 64
_WHY = {
    Fate.TOO_SMALL: "too few devices took part, so nothing was released",
    Fate.EMPTY: "nobody took part",
    Fate.SPOILED: "what was released of it was spoiled",
}
_GAP = "reports that it needs were never received"


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence, or two.

    Attributes:
        parts: one after the other; those at odd places, such as numbers, carry weight.
    """

    parts: tuple[str, ...]

    def __str__(self) -> str:
        return "".join(self.parts)


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
    name = _capital(epoch_name(job, last.epoch).name)
    more = f"{name} is not over yet." if is_known(last) else _nothing(job, last)
    *parts, end = said.parts
    return Sentence((*parts, f"{end} {more}"))


def epoch_sentence(job: DeployedJob, record: EstimateRecord, *, titled: bool = True) -> Sentence:
    """What was published of one epoch; `titled` as of `sentence_of`."""
    when = epoch_name(job, record.epoch)
    if not is_known(record):
        return Sentence((_nothing(job, record),))
    if job.domain.measure is not None:
        return _measured(job, record, when)
    if job.domain.kind == "value":
        return _counted(job, record, when, titled=titled)
    lead = f"{job.title}: " if titled and job.title is not None else ""
    if job.domain.kind == "numbers":
        return _median(job, record, when, lead)
    return _most_held(job, record, when, lead)


def what_is_counted(job: DeployedJob) -> tuple[str, str]:
    """What a count is of: what leads to it, and the people, as they are counted.

    "Students enrolled" of students is "students enrolled"; another title comes first.
    """
    title, people = job.title, job.people
    if title is not None and title.casefold().startswith(f"{people} ".casefold()):
        return "", people + title[len(people) :]
    state = job.reads("1")
    noun = people if state == "1" or job.domain.kind != "value" else f"{people} {state}"
    return ("" if title is None else f"{title}: "), noun


def _nothing(job: DeployedJob, record: EstimateRecord) -> str:
    why = _WHY.get(record.fate)
    if why is None:
        why = _GAP if GAP in record.flags else "its reports do not suffice"
    return f"Nothing can be said about {epoch_name(job, record.epoch).name}: {why}."


def _counted(
    job: DeployedJob, record: EstimateRecord, when: EpochName, *, titled: bool
) -> Sentence:
    found = headline_of(job.domain, record)
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    lead, noun = what_is_counted(job)
    lead = lead if titled else ""
    known = known_count(found.value, found.low, found.high, record.population)
    word, number = known.about("").strip().rsplit(" ", 1)
    opening = f"{lead}{word.lower() if lead else word} "
    return Sentence((opening, number, f" {noun} {when.at}{_how_sure(known)}."))


def _how_sure(known: KnownCount) -> str:
    if known.may_be_none:
        return ""
    share = f" ({known.share})" if known.share else ""
    return f"{share}, between {known.low:,} and {known.high:,}"


def _measured(job: DeployedJob, record: EstimateRecord, when: EpochName) -> Sentence:
    found = headline_of(job.domain, record)
    what, _, unit = found.name.partition(", ")
    value, low, high = (_tenths(each) for each in (found.value, found.low, found.high))
    return Sentence((f"The {what} is ", value, f" {unit} {when.at}, between {low} and {high}."))


def _median(job: DeployedJob, record: EstimateRecord, when: EpochName, lead: str) -> Sentence:
    found = headline_of(job.domain, record)
    if found.value is None:
        return Sentence((_nothing(job, record),))
    low, high = found.interval.split(" to ")
    half = f"half of the {job.people}"
    value = found.shown(found.value)
    return Sentence(
        (
            f"{lead}{half if lead else _capital(half)} lie below ",
            value,
            f" {when.at}, between {low} and {high}.",
        )
    )


def _most_held(job: DeployedJob, record: EstimateRecord, when: EpochName, lead: str) -> Sentence:
    answers = largest(job, record)
    if not answers:
        return Sentence((_nothing(job, record),))
    wide = [_widened(job, each) for each in answers]
    people = None if job.domain.column is not None else record.population
    known = [
        known_count(each.value, low, high, people)
        for each, (low, high) in zip(answers, wide, strict=True)
    ]
    if known[0].may_be_none:
        most = max(each.high for each in known)
        nobody = "no item can be told from none" if lead else "No item can be told from none"
        return Sentence(
            (f"{lead}{nobody} {when.at}; each is of fewer than {most:,} {job.people}.",)
        )
    first_low, _ = wide[0]
    alike = [place for place, (_, high) in enumerate(wide) if high >= first_low]
    names = [job.reads(answers[place].name) for place in alike]
    opening = f"{lead}{'most' if lead else 'Most'} often {when.at}: "
    first = f"about {known[0].value:,} {job.people}{_how_sure(known[0])}"
    if len(names) == 1:
        return Sentence((opening, names[0], f", with {first}."))
    listed = _or(names)
    return Sentence((opening, listed, f"; they cannot be told apart. {names[0]}: {first}."))


def largest(job: DeployedJob, record: EstimateRecord) -> tuple[Answer, ...]:
    """The items most held, the largest first."""
    return Query(job.domain, Top(_MOST_ALIKE)).answers(record.estimate)


def ranks(job: DeployedJob, record: EstimateRecord) -> dict[int, tuple[int, int]]:
    """Between which places each item may stand, by its number; empty where not all are known.

    An item stands before another if the intervals that hold for all items at once say so; those
    between which they do not may stand in any order.
    """
    estimate = record.estimate
    if job.domain.kind != "items" or job.domain.column is not None or estimate is None:
        return {}
    values, lows, highs = estimate.intervals
    factor = _factor(job)
    lows, highs = values - factor * (values - lows), values + factor * (highs - values)
    surely_above = len(values) - np.searchsorted(np.sort(lows), highs, side="right")
    perhaps_above = len(values) - np.searchsorted(np.sort(highs), lows, side="left")
    numbers = estimate.numbers.tolist()
    places = zip(numbers, surely_above.tolist(), perhaps_above.tolist(), strict=True)
    # An item is itself among those that may stand before it.
    return {number: (above + 1, perhaps) for number, above, perhaps in places}


def _widened(job: DeployedJob, answer: Answer) -> tuple[float, float]:
    """The interval of an item that holds, with those of all others, in 19 of 20 cases: Bonferroni.

    Two of which these do not overlap differ, whatever their errors have in common.
    """
    factor = _factor(job)
    return (
        answer.value - factor * (answer.value - answer.low),
        answer.value + factor * (answer.high - answer.value),
    )


def _factor(job: DeployedJob) -> float:
    return NormalDist().inv_cdf(1 - 0.025 / max(job.domain.size - 1, 1)) / NORMAL_95


def change_words(job: DeployedJob, change: EstimateRecord) -> tuple[str, str] | None:
    """A count's change since the epoch before: its number, and what can be said of it.

    Args:
        job: of one count.
        change: as of `changes` with a lag of 1.
    """
    if not is_known(change) or job.domain.kind != "value":
        return None
    found = change.headline
    assert found is not None
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    step = step_of(found.low, found.high)
    half = -(-(found.high - found.low) / 2 // step) * step
    value = round(found.value / step) * step
    before = f"the {period(job)} before"
    if found.low > 0 or found.high < 0:
        # Which way it went is said in words: nobody counts "-4,780 fewer".
        way = "more" if value > 0 else "fewer"
        return f"{abs(value):,.0f} ± {half:,.0f}", f"{way} than {before}"
    number = f"{value:+,.0f} ± {half:,.0f}".replace("-", "\N{MINUS SIGN}")
    return number, f"cannot be told from no change since {before}"


def _or(names: Sequence[str]) -> str:
    if len(names) <= 3:
        return f"{', '.join(names[:-1])} or {names[-1]}"
    others = f"{len(names) - 2:,} others"
    at_least = "at least " if len(names) == _MOST_ALIKE else ""
    return f"{names[0]}, {names[1]} or one of {at_least}{others}"


def _tenths(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}".removesuffix(".0")


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
