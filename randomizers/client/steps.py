"""Steps of a device without input or output: document in, document out.

Every step is stored before its consequences are sent. A step without effect returns its input.
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
"""Maximum number of undelivered reports of a device; the oldest is dropped for a new one."""
CLOCK_TOLERANCE: Final = 60_000
"""Maximum difference from the server's clock at which the device uses its own, in milliseconds."""
MOST_AHEAD: Final = 86_400_000
"""Maximum milliseconds that a server can move a device ahead of a clock that may be right."""
LAST_MOMENT: Final = 253_402_300_799_999
"""Maximum time of a correct clock, at the end of year 9999, in milliseconds since 1970."""
LONGEST_WAIT: Final = 86_400.0
"""Maximum seconds that a server can make a device wait, before jitter."""
_OFF: Final = 1 + 1e-9
"""Tolerance for the logarithms that clients compute, as a factor."""
_FIRST_WAIT: Final = 1.0
_LAST_WAIT: Final = 3_600.0

_REJECTIONS: Final = {400, 403, 413, 415}
_REJECTED_CONFLICTS: Final = {"late", "fingerprint"}
_PROBLEMS: Final = "/problems/"
"""Prefix of the problem types of collectors; intermediaries also respond with 400 and 403."""

Seal = Callable[[bytes, bytes, bytes], tuple[bytes, bytes]]
"""Function from content, public key and context to ciphertext and key id."""


def check_randomizer(statement: Statement) -> None:
    """Check that this app has a randomizer for a job and that its mechanism can keep the guarantee.

    The loss of local protocols is computed here, from the weights used for drawing. For protocols
    that assume the shuffler, the mechanism states what it was calibrated to. A lower bound on its
    delta is computed from its noise (`dpstream.randomizers.least_delta`). The mechanism may assume
    at most the statement's minimum number of contributors. No device can verify that this many
    report.

    Raises:
        DeviceError: If there is no randomizer.
        StatementError: If the statement promises less loss than the mechanism has, or more epochs.
    """
    try:
        devices = OneDevice(statement.protocol, statement.law).devices
        loss, least = devices.guarantee, devices.least_delta()
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DeviceError(
            f"this app has no randomizer for job {statement.job}. Update the app"
        ) from None
    promised = statement.guarantee
    if (
        loss.unit != statement.unit
        or loss.epsilon > promised["epsilon"] * _OFF
        or loss.delta > promised["delta"] * _OFF
    ):
        raise StatementError(
            f"the statement promises epsilon {promised['epsilon']:.9g}, delta "
            f"{promised['delta']:.9g} for each {statement.unit}, but the law of job "
            f"{statement.job} loses epsilon {loss.epsilon:.9g}, delta {loss.delta:.9g} for each "
            f"{loss.unit}: the device does not join"
        )
    if not least <= loss.delta * SLACK:
        raise StatementError(
            f"the noise of job {statement.job} cannot give epsilon {loss.epsilon:.9g}, delta "
            f"{loss.delta:.9g}: delta is at least {least:.3g}; the device does not join"
        )
    if devices.assumed_contributors > statement.minimum:
        raise StatementError(
            f"the law of job {statement.job} assumes {devices.assumed_contributors:,} "
            f"contributors in each window, but the statement requires {statement.minimum:,}: the "
            "device does not join"
        )
    if devices.law.last_epoch < statement.clock.count:
        raise StatementError(
            f"the law of job {statement.job} ends with epoch {devices.law.last_epoch:,}, but the "
            f"horizon has {statement.clock.count:,} epochs: the device does not join"
        )


def check_newer(document: Document, statement: Statement) -> None:
    """Raise `StatementError` if a statement is older than, or contradicts, the one joined.

    Within the same deployment, a later revision may change the last epoch, as the budget does.
    Everything else is pinned.
    """
    member = document.member(statement.job)
    pinned = None if member is None else member.statement
    if pinned is not None and pinned.deployment == statement.deployment:
        if pinned.text == statement.text:
            return
        if not pinned.differs_in_last_epoch_alone(statement):
            raise StatementError(
                "the server's statement of this deployment changed since the device joined: the "
                "device keeps the statement it joined with"
            )
        if statement.revision <= pinned.revision:
            raise StatementError(
                "the server's statement of this deployment is older than the device's: the device "
                "keeps its own"
            )
    elif statement.deployed < document.account.newest(statement.job):
        raise StatementError(
            f"the server offers a deployment of job {statement.job} that is older than one the "
            "device joined: the device does not join"
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
    """Join a deployment; without effect if the device is already in it.

    `device` is 16 random bytes, its id if it joins. `now` is in milliseconds since 1970. `again` is
    True if a user who had left the job wants to join again.

    Raises:
        StatementError: As in `check_newer`, or if the deployment was left.
        ClosedError: If the job has ended.
        NotJoinedError: If the user has left the job.
        LimitError: If the charge would exceed the limit.
    """
    member = document.member(statement.job)
    check_newer(document, statement)
    if member is not None and member.statement.deployment == statement.deployment:
        if member.text == statement.text and not member.gone:
            return document
        now_in = replace(member, text=statement.text, gone=False)
        return document.with_member(statement.job, now_in)
    if statement.job in document.members and member is None and not again:
        raise NotJoinedError("the user has left this job. Join again only with the user's consent")
    if document.account.entry(statement.deployment) is not None:
        raise StatementError(
            "the device has already joined and left this deployment: drawing again would cost "
            "privacy again, so the device waits for another deployment"
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
    """Delete everything about a job except its cost."""
    return document.with_member(job, None)


def present_member(document: Document, job: str) -> Membership:
    """Return the membership in a running deployment; `NotJoinedError` outside of one."""
    member = document.member(job)
    if member is None:
        raise NotJoinedError(f"the device has not joined job {job}: call join first")
    if member.gone:
        raise NotJoinedError(
            f"the deployment of job {job} that the device joined has ended: call join for the "
            "next one"
        )
    return member


def corrected(own: int, server: int | None, deployed: int) -> int:
    """Estimate the time, in milliseconds since 1970.

    The server's time (None without an answer) may be false, and the device's may be wrong. Neither
    costs privacy: epochs only increase, each is drawn once, and the account charges for each. But a
    device that has drawn an epoch is absent until the next one, also at honest collectors. The
    server therefore moves it at most `MOST_AHEAD` ahead of its own clock, unless that shows a time
    before the deployment and is certainly wrong. `deployed` is signed by the operator.
    """
    own = min(max(own, 0), LAST_MOMENT)
    if server is None or not 0 <= server <= LAST_MOMENT:
        return own
    if abs(server - own) <= CLOCK_TOLERANCE:
        return own
    return server if own < deployed - MOST_AHEAD else min(server, own + MOST_AHEAD)


def epoch_at(statement: Statement, now: int) -> int:
    """Return the epoch to report; `ClosedError` if the deployment has none at that time."""
    epoch = statement.clock.epoch_at(now)
    if epoch < statement.clock.first:
        raise ClosedError(f"job {statement.job} has not started")
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
    """Draw and charge the report of an epoch, and queue it; without effect if drawn before.

    Charge and draw are one document: neither is ever stored without the other.

    `value` comes from `DeviceValues.number`. `read` yields cryptographic randomness. `seal` is
    ignored for jobs without sealing.

    Raises:
        LimitError: If the charge would exceed the limit.
        DeviceError: If the randomizer does not support the statement. Never contains the value.
    """
    member = present_member(document, job)
    if epoch <= member.epoch:
        return document
    statement = member.statement
    horizon = statement.clock.horizon(epoch)
    account = document.account.charged(statement, statement.charge_index(epoch), limit)
    fresh = horizon != member.horizon
    if statement.unit == "stream" and fresh == (account is document.account):
        raise DeviceError(
            f"the account of job {job} does not match the saved draws: the device does not draw"
        )
    try:
        device = _randomizer(member, fresh, read)
        words = device.report(statement.clock.local(epoch), value, read)
        content = statement.content_format.pack(words)
    except (ValueError, EnvelopeError):
        # The messages of these errors may contain the value.
        raise DeviceError(
            f"the randomizer of this app cannot report to job {job}: the app is outdated or the "
            "device state is damaged; nothing was sent"
        ) from None
    report = read(IDENTITY_BYTES)
    key = None
    public_key = statement.key_at(epoch)
    if statement.sealed:
        if public_key is None or seal is None:
            raise DeviceError(f"job {job} has no sealing key for epoch {epoch}")
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
    """Return the context of a device's ciphertext, as `dpstream.topics.sealing.device_context`."""
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
    """Meaning of an answer for a report.

    Attributes:
        kind: "acknowledged"; "rejected" finally; "gone", with the deployment; "early", before its
            epoch; "again" later.
        others: True if other reports can be tried at once.
        begins: Start of an "early" report's epoch, as sent by the server, milliseconds since 1970.
    """

    kind: str
    others: bool
    begins: int | None = None


def outcome_of(status: int, problem: Mapping[str, object]) -> ReportOutcome:
    """Interpret an answer to a report.

    Only a collector's answer is final. An answer without one of its problem types may come from any
    intermediary, and the report is sent again until it is late.
    """
    problem_type = problem.get("type")
    kind = problem_type.removeprefix(_PROBLEMS) if isinstance(problem_type, str) else ""
    known = kind != "" and kind != problem_type
    if status == 202:
        return ReportOutcome("acknowledged", others=True)
    if status == 410:
        return ReportOutcome("gone", others=False)
    if known and (status in _REJECTIONS or (status == 409 and kind in _REJECTED_CONFLICTS)):
        return ReportOutcome("rejected", others=True)
    begins: Any = problem.get("begins")
    timed = type(begins) is int and 0 <= begins <= LAST_MOMENT
    if status == 409 and kind == "early" and known and timed:
        return ReportOutcome("early", others=True, begins=begins)
    # An error in this report need not occur in the next.
    return ReportOutcome("again", others=status in (400, 403, 409, 413, 415))


def settled(document: Document, job: str, waiting: Waiting, kind: str) -> Document:
    """Remove a report by its `ReportOutcome.kind`; "again" and "early" have no effect."""
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
    """Return the pause before the next request, in seconds.

    Args:
        failures: In a row, at least 1.
        retry_after: Seconds requested by the server.
        jitter: Uniform from 0 to 1, drawn independently, to spread the requests of a fleet.
    """
    longest = min(_FIRST_WAIT * float(1 << min(failures - 1, 30)), _LAST_WAIT)
    own = longest * (0.5 + 0.5 * jitter)
    requested = min(max(retry_after or 0.0, 0.0), LONGEST_WAIT)
    return max(own, requested * (1 + 0.1 * jitter))


def seconds_to_start(begins: int, now: int, jitter: float) -> float:
    """Return seconds from `now` to `begins` (ms), at most a day, since clocks may be wrong."""
    missing = min(max((begins - now) / 1000, _FIRST_WAIT), LONGEST_WAIT)
    return missing * (1 + 0.1 * jitter)


def _randomizer(member: Membership, fresh: bool, read: ReadBytes) -> OneDevice:
    statement = member.statement
    if not fresh:
        return OneDevice.restore(statement.protocol, statement.law, member.state or {})
    device = OneDevice(statement.protocol, statement.law)
    device.enroll(read)
    return device
