"""What a device does, one step at a time, without input or output: document in, document out.

Every step is stored before anything that follows from it is sent. A step that finds nothing to do
returns the document it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dpstream.randomizers.byte_generator import ReadBytes
from dpstream.randomizers.client.account import Limit
from dpstream.randomizers.client.device_errors import (
    ClosedError,
    DeviceError,
    NotJoinedError,
    StatementError,
)
from dpstream.randomizers.client.document import Document, Membership, Waiting
from dpstream.randomizers.client.statements import Statement
from dpstream.randomizers.least_delta import SLACK
from dpstream.randomizers.one_device import OneDevice
from dpstream.topics.envelopes import IDENTITY_BYTES, EnvelopeError, encode_body, encode_envelope

MOST_WAITING: Final = 32
"""Reports that a device keeps while nobody takes them; the oldest is given up for another one."""
CLOCK_TOLERANCE: Final = 60_000
"""Milliseconds between the device's clock and the server's, from which the server's counts."""
MOST_AHEAD: Final = 86_400_000
"""Milliseconds that a server can move a device ahead of a clock that may be right."""
LAST_MOMENT: Final = 253_402_300_799_999
"""Milliseconds since 1970, of year 9999: no clock that is right says more."""
LONGEST_WAIT: Final = 86_400.0
"""Seconds that a server can make a device wait."""
_OFF: Final = 1 + 1e-9
"""By how much logarithms of clients may be off."""
_FIRST_WAIT: Final = 1.0
_LAST_WAIT: Final = 3_600.0

_REFUSALS: Final = {400, 403, 413, 415}
_REFUSED_CONFLICTS: Final = {"late", "fingerprint"}
_PROBLEMS: Final = "/problems/"
"""What the types of problems of collectors begin with. Others in between say 400 and 403 too."""

Seal = Callable[[bytes, bytes, bytes], tuple[bytes, bytes]]
"""Content, public key and context in; box and id of the key out."""


def check_randomizer(statement: Statement) -> None:
    """Check that this app has a randomizer for a job, and that its law can keep the promise.

    The loss of local protocols is computed here, from the weights that are drawn by. Of those that
    assume the shuffle stage, the law states what it was calibrated to. A lower bound on its delta
    is computed from its noise (`dpstream.randomizers.least_delta`), and it may assume as many
    contributors as the statement requires of a window. Whether so many report, no device sees.

    Raises:
        DeviceError: it has none.
        StatementError: the statement promises less than the law loses, or more epochs than it has.
    """
    try:
        devices = OneDevice(statement.protocol, statement.law).devices
        loss, least = devices.guarantee, devices.least_delta()
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DeviceError(
            f"this app has no randomizer for job {statement.job}: update the app"
        ) from None
    promised = statement.guarantee
    if (
        loss.unit != statement.unit
        or loss.epsilon > promised["epsilon"] * _OFF
        or loss.delta > promised["delta"] * _OFF
    ):
        raise StatementError(
            f"the statement promises epsilon {promised['epsilon']:.9g}, delta "
            f"{promised['delta']:.9g} for each {statement.unit}, the law of job {statement.job} "
            f"loses epsilon {loss.epsilon:.9g}, delta {loss.delta:.9g} for each {loss.unit}: the "
            "device does not join"
        )
    if not least <= loss.delta * SLACK:
        raise StatementError(
            f"the noise of job {statement.job} cannot give epsilon {loss.epsilon:.9g}, delta "
            f"{loss.delta:.9g}: delta is at least {least:.3g}; the device does not join"
        )
    if devices.assumed_contributors > statement.minimum:
        raise StatementError(
            f"the law of job {statement.job} assumes {devices.assumed_contributors:,} contributors "
            f"of each window, the statement requires {statement.minimum:,}: the device does not "
            "join"
        )
    if devices.law.last_epoch < statement.clock.count:
        raise StatementError(
            f"the law of job {statement.job} ends with epoch {devices.law.last_epoch:,} of a "
            f"horizon of {statement.clock.count:,}: the device does not join"
        )


def check_newer(document: Document, statement: Statement) -> None:
    """Raise `StatementError` if a statement is older than, or contradicts, what was joined.

    Of the deployment that a device is in, the last epoch may change, as its budget does: in a
    later revision. Everything else is pinned.
    """
    member = document.member(statement.job)
    pinned = None if member is None else member.statement
    if pinned is not None and pinned.deployment == statement.deployment:
        if pinned.text == statement.text:
            return
        if not pinned.differs_in_last_epoch_alone(statement):
            raise StatementError(
                "the server tells another thing of this deployment than when it was joined: the "
                "device stays with what it has joined"
            )
        if statement.revision <= pinned.revision:
            raise StatementError(
                "the server tells an older thing of this deployment than is known: the device "
                "stays with what it knows"
            )
    elif statement.deployed < document.account.newest(statement.job):
        raise StatementError(
            f"the deployment of job {statement.job} that the server tells of is older than one "
            "that the device has joined: it is not joined"
        )


def joined(
    document: Document,
    statement: Statement,
    device: bytes,
    limit: Limit,
    now: int,
    *,
    again: bool = False,
) -> Document:
    """The device joins a deployment, or finds that it is in it already.

    Args:
        document: what it keeps.
        statement: of the deployment, which is believed.
        device: 16 random bytes, its id if it joins.
        limit: of the app.
        now: milliseconds since 1970.
        again: the user, who had left the job, wants to be in it.

    Raises:
        StatementError: as of `check_newer`, or the deployment was left.
        ClosedError: the job is over.
        NotJoinedError: the user has left the job.
        LimitError: the account has no room for it.
    """
    member = document.member(statement.job)
    check_newer(document, statement)
    if member is not None and member.statement.deployment == statement.deployment:
        if member.text == statement.text and not member.gone:
            return document
        now_in = replace(member, text=statement.text, gone=False)
        return document.with_member(statement.job, now_in)
    if statement.job in document.members and member is None and not again:
        raise NotJoinedError("the user has left this job: join again only if they want to")
    if document.account.entry(statement.deployment) is not None:
        raise StatementError(
            "this deployment was joined before and left: drawing anew would cost privacy again, so "
            "the device waits for another one"
        )
    clock = statement.clock
    epoch = max(clock.epoch_at(now), clock.first)
    if not clock.has(epoch):
        raise ClosedError(f"job {statement.job} is over")
    account = document.account.opened(statement, limit)
    return Document(account, document.members).with_member(
        statement.job, Membership(statement.text, device)
    )


def left(document: Document, job: str) -> Document:
    """Everything of a job is forgotten but what it has cost."""
    return document.with_member(job, None)


def present_member(document: Document, job: str) -> Membership:
    """The device in a running deployment of a job; `NotJoinedError` if it is in none."""
    member = document.member(job)
    if member is None:
        raise NotJoinedError(f"the device is not in job {job}: call join first")
    if member.gone:
        raise NotJoinedError(
            f"the deployment of job {job} that the device was in has ended: call join for another"
        )
    return member


def corrected(own: int, server: int | None, deployed: int) -> int:
    """Estimate the time, in milliseconds since 1970.

    The server's time may be a lie, as the device's may be wrong. Neither costs privacy: epochs only
    go up, each is drawn once, and the account charges for each. But a device that has drawn an
    epoch is silent until the next one, also at honest collectors. So the server moves it at most
    `MOST_AHEAD` ahead of its own clock, unless that shows a time before the deployment and is
    wrong for certain.

    Args:
        own: the device's clock.
        server: the server's clock; None without an answer.
        deployed: the time of the deployment, as its operator signed it.
    """
    own = min(max(own, 0), LAST_MOMENT)
    if server is None or not 0 <= server <= LAST_MOMENT:
        return own
    if abs(server - own) <= CLOCK_TOLERANCE:
        return own
    return server if own < deployed - MOST_AHEAD else min(server, own + MOST_AHEAD)


def epoch_at(statement: Statement, now: int) -> int:
    """The epoch to report; `ClosedError` if the deployment has none then."""
    epoch = statement.clock.epoch_at(now)
    if epoch < statement.clock.first:
        raise ClosedError(f"job {statement.job} has not begun")
    if not statement.clock.has(epoch):
        raise ClosedError(f"job {statement.job} is over")
    return epoch


def drawn(
    document: Document,
    job: str,
    epoch: int,
    value: int | list[int],
    limit: Limit,
    read: ReadBytes,
    seal: Seal | None,
) -> Document:
    """The report of an epoch, charged for, drawn and waiting; nothing if it was drawn before.

    Charge and draw are one document: neither is ever stored without the other.

    Args:
        document: what the device keeps.
        job: name.
        epoch: to report.
        value: as `DeviceValues.number` returned it.
        limit: of the app.
        read: cryptographic randomness.
        seal: how contents are sealed; not asked for where they are not.

    Raises:
        LimitError: the account has no room for it.
        DeviceError: the randomizer cannot do what the statement says. It does not say the value.
    """
    member = present_member(document, job)
    if epoch <= member.epoch:
        return document
    statement = member.statement
    horizon = statement.clock.horizon(epoch)
    account = document.account.charged(statement, statement.charge_index(epoch), limit)
    fresh = horizon != member.horizon
    if statement.unit == "stream" and fresh == (account is document.account):
        raise DeviceError(f"the account of job {job} does not fit what was drawn: nothing is drawn")
    try:
        device = _randomizer(member, fresh, read)
        words = device.report(statement.clock.local(epoch), value, read)
        content = statement.form.pack(words)
    except (ValueError, EnvelopeError):
        # What they say may name the value.
        raise DeviceError(
            f"the randomizer of this app cannot report to job {job}: the app is too old for it, or "
            "what it keeps is damaged; nothing was sent"
        ) from None
    report = read(IDENTITY_BYTES)
    key = None
    public_key = statement.key_at(epoch)
    if statement.sealed:
        if public_key is None or seal is None:
            raise DeviceError(f"job {job} names no key that epoch {epoch} is sealed to")
        content, key = seal(content, public_key, sealing_info(statement, epoch, report))
    envelope = encode_envelope(member.device, report, fresh, content)
    body = encode_body(statement.deployment, statement.fingerprint, epoch, key, [envelope])
    waiting = (*member.waiting, Waiting(epoch, report, body))[-MOST_WAITING:]
    now = replace(
        member,
        epoch=epoch,
        horizon=horizon,
        state=device.state(),
        waiting=waiting,
    )
    return Document(account, document.members).with_member(job, now)


def sealing_info(statement: Statement, epoch: int, report: bytes) -> bytes:
    """What a device's box is about, the same as `dpstream.topics.sealing.device_context`."""
    return b"".join(
        (
            b"dpstream sealed report\0device\0",
            statement.deployment,
            statement.fingerprint,
            epoch.to_bytes(8, "little"),
            report,
        )
    )


@dataclass(frozen=True, slots=True)
class ReportOutcome:
    """What an answer means for a report.

    Attributes:
        kind: "acknowledged"; "refused" for ever; "gone", with the deployment; "early", before its
            epoch; "again" later.
        others: whether other reports can be tried at once.
        begins: of an early one's epoch, milliseconds since 1970, as the server says.
    """

    kind: str
    others: bool
    begins: int | None = None


def outcome_of(status: int, problem: Mapping[str, object]) -> ReportOutcome:
    """What an answer means.

    Only what a collector says is final: what has no type of its problems may be of anybody on the
    way, and the report is sent again, until it is late.

    Args:
        status: of HTTP.
        problem: the answer's JSON; empty if it is none.
    """
    told = problem.get("type")
    kind = told.removeprefix(_PROBLEMS) if isinstance(told, str) else ""
    known = kind != "" and kind != told
    if status == 202:
        return ReportOutcome("acknowledged", others=True)
    if status == 410:
        return ReportOutcome("gone", others=False)
    if known and (status in _REFUSALS or (status == 409 and kind in _REFUSED_CONFLICTS)):
        return ReportOutcome("refused", others=True)
    begins: Any = problem.get("begins")
    timed = type(begins) is int and 0 <= begins <= LAST_MOMENT
    if status == 409 and kind == "early" and known and timed:
        return ReportOutcome("early", others=True, begins=begins)
    # What is wrong with this one need not be wrong with the next.
    return ReportOutcome("again", others=status in (400, 403, 409, 413, 415))


def settled(document: Document, job: str, waiting: Waiting, kind: str) -> Document:
    """A report is done with, as `ReportOutcome.kind` says; nothing for "again" and "early"."""
    member = document.member(job)
    if member is None or waiting not in member.waiting or kind in ("again", "early"):
        return document
    rest = tuple(each for each in member.waiting if each != waiting)
    return document.with_member(
        job,
        replace(
            member,
            waiting=() if kind == "gone" else rest,
            gone=member.gone or kind == "gone",
        ),
    )


def seconds_to_wait(failures: int, retry_after: float | None, jitter: float) -> float:
    """How long to leave the server alone.

    Args:
        failures: in a row, at least 1.
        retry_after: what the server asks for, in seconds.
        jitter: uniform from 0 to 1, drawn for this alone, so that a fleet does not come at once.
    """
    longest = min(_FIRST_WAIT * float(1 << min(failures - 1, 30)), _LAST_WAIT)
    own = longest * (0.5 + 0.5 * jitter)
    asked = min(max(retry_after or 0.0, 0.0), LONGEST_WAIT)
    return max(own, asked * (1 + 0.1 * jitter))


def seconds_to_begin(begins: int, now: int, jitter: float) -> float:
    """How long to keep an early report; a day at most, since clocks may be wrong.

    Args:
        begins: its epoch, milliseconds since 1970.
        now: the same.
        jitter: as of `seconds_to_wait`.
    """
    missing = min(max((begins - now) / 1000, _FIRST_WAIT), LONGEST_WAIT)
    return missing * (1 + 0.1 * jitter)


def _randomizer(member: Membership, fresh: bool, read: ReadBytes) -> OneDevice:
    statement = member.statement
    if not fresh:
        return OneDevice.restore(statement.protocol, statement.law, member.state or {})
    device = OneDevice(statement.protocol, statement.law)
    device.enrol(read)
    return device
