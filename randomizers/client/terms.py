"""Terms of joining a job, as numbers and sentences, to show before anything is charged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from dpstream.randomizers.client.account import Account, Limit, losses
from dpstream.randomizers.client.epoch_clock import EpochClock
from dpstream.randomizers.client.event_terms import event_sentences
from dpstream.randomizers.client.events import DeviceEvents
from dpstream.randomizers.client.statements import Statement
from dpstream.randomizers.client.values import DeviceValues
from dpstream.randomizers.guarantee import percent_right

_SPANS: Final = (
    ("day", 86_400_000),
    ("hour", 3_600_000),
    ("minute", 60_000),
    ("second", 1000),
    ("millisecond", 1),
)


@dataclass(frozen=True, slots=True)
class Terms:
    """A verified statement and its consequences for a device's account.

    Attributes:
        statement: The signed statement; `Device.join` joins exactly this one.
        deployed: Time of deployment by the operator, milliseconds since 1970.
        epsilon, delta: Cost of one charge.
        unit: Unit of a charge: the "stream" of a horizon, or each reported "epoch".
        neighbors: Pairs of inputs whose difference the guarantee protects.
        trust: Trusted party.
        values: Values of the job; an app can check that it has such values.
        epochs: Times of reports.
        answers: Number of answers in a horizon; None if the device answers in all of its epochs.
        recurring: True if another horizon follows and is charged.
        sealed: True if collectors cannot read reports.
        tokens: True if collectors require a token.
        spent, limit: Amount spent so far for the population, and the app's limit.
        charges: Number of further charges within the limit; None if unlimited.
        events: Questions that the device answers from recorded events, and the public attributes
            that `Device.join` needs; None if the app passes values.
        description: All terms as sentences.
    """

    statement: bytes = field(repr=False)
    job: str
    population: str
    deployed: int
    epsilon: float
    delta: float
    unit: str
    neighbors: str
    trust: str
    values: DeviceValues
    epochs: EpochClock
    answers: int | None
    recurring: bool
    sealed: bool
    tokens: bool
    spent: Limit
    limit: Limit
    charges: int | None
    events: DeviceEvents | None
    description: str

    def __str__(self) -> str:
        return self.description


def terms_of(statement: Statement, account: Account, limit: Limit) -> Terms:
    """Return the terms of joining for a device with an account and a limit."""
    spent = account.spent(statement.population)
    room = [
        max(allowed - used, 0) // cost
        for allowed, used, cost in (
            (limit.epsilon, spent.epsilon, statement.epsilon),
            (limit.delta, spent.delta, statement.delta),
        )
        if cost
    ]
    charges = min(room, default=None)
    return Terms(
        statement=statement.text,
        job=statement.job,
        population=statement.population,
        deployed=statement.deployed,
        epsilon=float(statement.guarantee["epsilon"]),
        delta=float(statement.guarantee["delta"]),
        unit=statement.unit,
        neighbors=str(statement.guarantee["neighbors"]),
        trust=str(statement.guarantee["trust"]),
        values=statement.values,
        epochs=statement.clock,
        answers=statement.answers,
        recurring=statement.recurring,
        sealed=statement.sealed,
        tokens=statement.tokens,
        spent=spent,
        limit=limit,
        charges=charges,
        events=statement.events,
        description=_description(statement, spent, limit, charges),
    )


def _description(statement: Statement, spent: Limit, limit: Limit, charges: int | None) -> str:
    clock, cost = statement.clock, losses(statement.epsilon, statement.delta)
    last = (
        "with no end date"
        if clock.last is None
        else f"at most {clock.last - clock.first + 1} times"
    )
    epsilon, delta = (float(statement.guarantee[name]) for name in ("epsilon", "delta"))
    percent = percent_right(epsilon, delta)
    right = f"that was 50 % likely is right in at most {percent} of cases"
    sentences = [
        f"Job {statement.job} asks every {_every(clock)}, {last}, starting "
        f"{_moment(clock, clock.first)}."
    ]
    if statement.events is not None:
        sentences += event_sentences(
            statement.events,
            lambda epochs: span_text(clock.months * epochs, clock.milliseconds * epochs),
        )
    if statement.answers is not None:
        sentences += _of_answers(statement, statement.answers)
    if statement.unit == "stream":
        # A deployment within a horizon of the calendar covers only the rest of that horizon.
        later = (clock.horizon(clock.first) + 1) * clock.count + 1
        until = f" before {_moment(clock, later)}" if statement.recurring else ""
        sentences.append(
            f"All answers{until} together cost {cost}: a guess about the user {right}."
        )
        if until:
            sentences.append(f"Every further {clock.count} times cost the same again.")
        if statement.rolling is not None:
            sentences.append(_of_rolling(*statement.rolling))
    else:
        sentences.append(f"Each answer costs {cost}: a guess about it {right}.")
    enough = "any number" if charges is None else f"{charges}"
    sentences += [
        f"For population {statement.population}, {spent} of the {limit} that this app allows is "
        f"already spent. Remaining charges of this size: {enough}.",
        f"Protected: the difference between {statement.guarantee['neighbors']}.",
        f"Trusted party: {statement.guarantee['trust']}.",
    ]
    if statement.sealed:
        sentences.append("Collectors cannot read the answers.")
    who = " and who reports" if statement.tokens else ""
    sentences.append(f"Collectors see the network address and a random id{who}.")
    return " ".join(sentences)


def _of_answers(statement: Statement, answers: int) -> list[str]:
    count = statement.clock.count
    kept, again = (
        (", and the same in all later rounds", f" and again every {count} times")
        if statement.recurring
        else ("", "")
    )
    late = span_text(0, round(1000 * statement.late))
    return [
        f"In a round of {count} times, this device answers {answers}, drawn at random when it "
        f"joins{kept}. An answer whose time has passed by then is skipped, and an answer that "
        f"has not arrived {late} after its time is lost.",
        "An answer is random: the user's value at that time only makes some answers likelier.",
        *_of_content(statement),
        "Each time, the device sends an envelope of the same size, with or without an answer. It "
        f"sends one more when it joins{again}, to count the user as a participant.",
    ]


def _of_content(statement: Statement) -> Iterator[str]:
    slots, levels = statement.values.slots, statement.law.get("levels", ())
    if slots is not None and slots > 1:
        yield f"It is about one of {slots} places for items, drawn at random, which may be empty."
    if len(levels) > 1:
        yield (
            f"It is about a part of all possible values. Which of {len(levels)} divisions into "
            "such parts is used is drawn at random, and public."
        )


def _of_rolling(epochs: int, epsilon: int) -> str:
    once, twice = losses(epsilon, 0), losses(2 * epsilon, 0)
    return (
        f"Whatever the user does within any {epochs} times in a row costs {once} in total, even if "
        f"everything that this device ever sends is seen. What lasts longer costs more: {twice} "
        f"for {epochs + 1} to {2 * epochs} times in a row, and so on. If the app is installed "
        "again, the device draws again, and its costs are added to the earlier ones."
    )


def _moment(clock: EpochClock, epoch: int) -> str:
    begins = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=clock.begins(epoch))
    return f"{begins.isoformat()[:16].replace('T', ' ')} UTC"


def _every(clock: EpochClock) -> str:
    length = span_text(clock.months, clock.milliseconds)
    return length if " and " in length else length.removeprefix("1 ")


def span_text(months: int, milliseconds: int) -> str:
    """Return a length of time, such as "28 days" or "1 month and 1 hour"."""
    parts = [(months, "month")] if months else []
    rest = milliseconds
    for name, size in _SPANS:
        count, rest = divmod(rest, size)
        if count:
            parts.append((count, name))
    return " and ".join(f"{count} {name}{'s' if count > 1 else ''}" for count, name in parts)
