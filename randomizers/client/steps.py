"""Steps of a device, as functions from one document to the next, without input or output.

`Device` stores the result of a step before it sends anything. A step without effect returns its
input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from dpstream.randomizers.byte_generator import ReadBytes
from dpstream.randomizers.client.account import Account, Limit
from dpstream.randomizers.client.amounts import EPSILON_DIGITS
from dpstream.randomizers.client.device_errors import (
    ClosedError,
    DeviceError,
    NotJoinedError,
    StatementError,
    StoreError,
    ValueRejectedError,
)
from dpstream.randomizers.client.document import Document, Membership, Waiting
from dpstream.randomizers.client.events import DeviceEvents
from dpstream.randomizers.client.statements import Statement
from dpstream.randomizers.event_histories import EventHistory
from dpstream.randomizers.guarantee import RollingGuarantee
from dpstream.randomizers.least_delta import SLACK
from dpstream.randomizers.one_device import OneDevice
from dpstream.topics.envelopes import IDENTITY_BYTES, EnvelopeError, encode_body, encode_envelope

MOST_WAITING: Final = 32
"""Maximum number of waiting reports per device; a new report replaces the oldest."""
CLOCK_TOLERANCE: Final = 60_000
"""Maximum difference from the server's clock at which the device uses its own, in milliseconds."""
MOST_AHEAD: Final = 86_400_000
"""Maximum time, in milliseconds, that a server can put a device ahead of a plausible clock."""
LAST_MOMENT: Final = 253_402_300_799_999
"""Maximum time of a correct clock, at the end of year 9999, in milliseconds since 1970."""
LONGEST_WAIT: Final = 86_400.0
"""Maximum time, in seconds, that a server can make a device wait, before jitter."""
_OFF: Final = 1 + 1e-9
"""Tolerance factor for errors in the logarithms that clients compute."""
_FIRST_WAIT: Final = 1.0
_LAST_WAIT: Final = 3_600.0
_REJECTIONS: Final = {400, 403, 413, 415}
_REJECTED_CONFLICTS: Final = {"late", "fingerprint"}
_PROBLEMS: Final = "/problems/"
"""Prefix of collectors' problem types; a 400 or 403 without it comes from an intermediary."""

Seal = Callable[[bytes, bytes, bytes], tuple[bytes, bytes]]
"""Function that returns ciphertext and key id for a content, a public key and a context."""


def check_randomizer(statement: Statement) -> None:
    """Check that this app has the job's randomizer and that the mechanism can keep its guarantee.

    For local protocols, the loss is computed from the weights with which reports are drawn. For
    protocols that trust the shuffler, the loss is the one that the mechanism declares, and a lower
    bound on its delta is computed from its noise (`dpstream.randomizers.least_delta`). The
    mechanism must not assume more contributors than the statement's minimum. No device can verify
    that this many contributors report.

    Raises:
        DeviceError: If there is no randomizer.
        StatementError: If the mechanism has a larger loss than the statement, or fewer epochs.
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
            f"the statement guarantees epsilon {promised['epsilon']:.9g}, delta "
            f"{promised['delta']:.9g} for each {statement.unit}, but the mechanism of job "
            f"{statement.job} has epsilon {loss.epsilon:.9g}, delta {loss.delta:.9g} for each "
            f"{loss.unit}: the device does not join"
        )
    if not least <= loss.delta * SLACK:
        raise StatementError(
            f"the noise of job {statement.job} is too small for epsilon {loss.epsilon:.9g}, delta "
            f"{loss.delta:.9g}: the actual delta is at least {least:.3g}; the device does not join"
        )
    if devices.assumed_contributors > statement.minimum:
        raise StatementError(
            f"the mechanism of job {statement.job} assumes {devices.assumed_contributors:,} "
            f"contributors in each window, but the statement requires {statement.minimum:,}: the "
            "device does not join"
        )
    if devices.answers != statement.answers:
        raise StatementError(
            f"the statement of job {statement.job} and its mechanism disagree on how often a "
            "device answers: the device does not join"
        )
    if statement.rolling is not None and not _rolls(statement, devices.rolling):
        raise StatementError(
            f"the statement of job {statement.job} states an epsilon for consecutive epochs, "
            "which its mechanism does not guarantee: the device does not join"
        )
    if devices.law.last_epoch < statement.clock.count:
        raise StatementError(
            f"the mechanism of job {statement.job} ends with epoch {devices.law.last_epoch:,}, but "
            f"the horizon has {statement.clock.count:,} epochs: the device does not join"
        )


def _rolls(statement: Statement, rolling: RollingGuarantee | None) -> bool:
    assert statement.rolling is not None
    epochs, epsilon = statement.rolling
    return (
        rolling is not None
        # The device answers again after each horizon of the statement.
        and epochs <= min(rolling.epochs, statement.clock.count)
        and rolling.epsilon <= epsilon / 10**EPSILON_DIGITS * _OFF
    )


def check_newer(document: Document, statement: Statement) -> None:
    """Raise `StatementError` if a statement is older than the accepted one or contradicts it.

    Within the same deployment, a later revision can change the last epoch, for example after a
    change of the budget, and give values to spare cells. Everything else is pinned.
    """
    member = document.member(statement.job)
    pinned = None if member is None else member.statement
    if pinned is not None and pinned.deployment == statement.deployment:
        if pinned.text == statement.text:
            return
        if not statement.is_revision_of(pinned):
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
    read: ReadBytes,
    seal: Seal | None,
    *,
    again: bool = False,
    attributes: Mapping[str, str] | None = None,
) -> Document:
    """Join a deployment; without effect if the device has already joined it.

    In jobs whose devices answer in few epochs, the device enrolls at once. `device` is the new id,
    16 random bytes. `now` is in milliseconds since 1970. `again` is True if a user who left the job
    wants to join again. `read` and `seal` are as in `drawn`. `attributes` are the user's public
    attributes; None keeps those of the present membership. They count from the next horizon on. In
    jobs with measures, the first epoch to report is the one in which the device joins. Recorded
    events are kept if a new deployment has the same measures and epochs.

    Raises:
        ValueRejectedError: If a public attribute of the job is missing.
        StatementError: As in `check_newer`, or if the device has left this deployment.
        ClosedError: If the job has ended.
        NotJoinedError: If the user has left the job and `again` is False.
        LimitError: If the charge would exceed the limit.
    """
    member = document.member(statement.job)
    check_newer(document, statement)
    events, public = statement.events, {} if member is None else member.public
    if events is not None:
        public = events.public_values(statement.job, public if attributes is None else attributes)
    if member is not None and member.statement.deployment == statement.deployment:
        if member.text == statement.text and not member.gone and member.public == public:
            return document
        now_in = replace(member, text=statement.text, gone=False, public=public)
        return document.with_member(statement.job, now_in)
    if statement.job in document.members and member is None and not again:
        raise NotJoinedError("the user has left this job. Join again only with the user's consent")
    if document.account.entry(statement.deployment) is not None:
        raise StatementError(
            "the device has already joined and left this deployment: joining again would cost "
            "privacy again, so the device waits for another deployment"
        )
    clock = statement.clock
    epoch = max(clock.epoch_at(now), clock.first)
    if not clock.has(epoch):
        raise ClosedError(f"job {statement.job} has ended")
    account = document.account.opened(statement, limit)
    joined = Document(account, document.members).with_member(
        statement.job,
        Membership(
            statement.text,
            device,
            history=None if events is None else _history_before(epoch, statement, events, member),
            public=public if events is not None else {},
        ),
    )
    return (
        joined
        if statement.answers is None
        else _enrolled(joined, statement.job, epoch, limit, read, seal)
    )


def _history_before(
    epoch: int, statement: Statement, events: DeviceEvents, earlier: Membership | None
) -> dict[str, Any]:
    """Return the history of a device that joins at an epoch, with earlier events."""
    saved = None
    if earlier is not None and earlier.history is not None:
        before, now = earlier.statement.clock, statement.clock
        calendars = [(each.start, each.months, each.milliseconds) for each in (before, now)]
        if calendars[0] == calendars[1] and earlier.statement.events == events:
            saved = earlier.history
    history = events.history(saved)
    if history.closed is None or history.closed < epoch - 1:
        history.close(epoch - 1)
    return history.to_json()


def left(document: Document, job: str) -> Document:
    """Delete everything about a job except its account entries."""
    return document.with_member(job, None)


def present_member(document: Document, job: str) -> Membership:
    """Return the membership in the running deployment; raise `NotJoinedError` without one."""
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
    """Return the best estimate of the time, in milliseconds since 1970.

    The server's time (None without an answer) can be false, and the device's can be wrong. Neither
    costs privacy: epochs only increase, each is drawn once, and the account charges for each. But a
    device that has drawn a future epoch is absent in all epochs before it, even for honest
    collectors. So the server can move a device at most `MOST_AHEAD` ahead of its own clock, unless
    that clock is certainly wrong: before the deployment. `deployed` is signed by the operator.
    """
    own = min(max(own, 0), LAST_MOMENT)
    if server is None or not 0 <= server <= LAST_MOMENT:
        return own
    if abs(server - own) <= CLOCK_TOLERANCE:
        return own
    return server if own < deployed - MOST_AHEAD else min(server, own + MOST_AHEAD)


def epoch_at(statement: Statement, now: int, ago: int = 0) -> int:
    """Return the epoch to report, `ago` epochs before the current one.

    Raises `ClosedError` if the deployment lacks that epoch, or no longer accepts its reports.
    """
    clock = statement.clock
    epoch = clock.epoch_at(now) - ago
    if epoch < clock.first:
        raise ClosedError(f"job {statement.job} has not started")
    if not clock.has(epoch):
        raise ClosedError(f"job {statement.job} has ended")
    if ago and now >= clock.begins(epoch + 1) + 1000 * statement.late:
        raise ClosedError(
            f"job {statement.job} no longer accepts reports for epoch {epoch}: the device was "
            "absent at that epoch"
        )
    return epoch


def _history(document: Document, job: str) -> tuple[Membership, DeviceEvents, EventHistory]:
    member = document.member(job)
    if member is None:
        raise NotJoinedError(f"the device has not joined job {job}: call join first")
    events = member.statement.events
    if events is None:
        raise ValueRejectedError(
            f"job {job} has no measures, so it has no events: pass the value to report"
        )
    try:
        return member, events, events.history(member.history)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise StoreError(
            f"the recorded events of job {job} are damaged: leave the job to delete them"
        ) from None


def events_of(document: Document, job: str) -> DeviceEvents:
    """Return the events of a joined job; raise `DeviceError` for other jobs."""
    return _history(document, job)[1]


def recorded(
    document: Document,
    job: str,
    moment: int,
    event: str,
    numbers: Mapping[str, float],
    labels: Mapping[str, str],
) -> Document:
    """Record an event of the user, at a moment in milliseconds since 1970.

    Raises:
        NotJoinedError: If the user has not joined the job.
        ValueRejectedError: If the job has no measures.
    """
    member, _, history = _history(document, job)
    epoch = member.statement.clock.epoch_at(moment)
    history.record(epoch, 1000 * moment, event, numbers, labels)
    return document.with_member(job, replace(member, history=history.to_json()))


def labeled(document: Document, job: str, moment: int, attributes: Mapping[str, str]) -> Document:
    """Record private attributes, as of a moment in milliseconds since 1970; see `recorded`."""
    member, events, history = _history(document, job)
    labels = events.private_labels(job, attributes)
    history.record_labels(member.statement.clock.epoch_at(moment), 1000 * moment, labels)
    return document.with_member(job, replace(member, history=history.to_json()))


def ended_epochs(document: Document, job: str, now: int) -> range:
    """Return the ended epochs that the device has not reported, and that are still accepted.

    Raises `ClosedError` if the job has ended.
    """
    member, _, history = _history(document, job)
    statement = member.statement
    clock = statement.clock
    last = clock.epoch_at(now) - 1
    if clock.last is not None and last > clock.last:
        last = clock.last
    first = max(member.epoch, history.closed or 0, clock.first - 1) + 1
    while first <= last and now >= clock.begins(first + 1) + 1000 * statement.late:
        first += 1
    if first > last == clock.last:
        raise ClosedError(f"job {job} has ended")
    return range(first, last + 1)


def seconds_to_report(statement: Statement, now: int, jitter: float) -> float:
    """Return the seconds until a random moment in the first half of the time for a report.

    `now` is in milliseconds since 1970. Reports of an epoch are accepted for `Statement.late` after
    its end, but the random moment is at most half an epoch later.
    """
    clock = statement.clock
    next_epoch = max(clock.epoch_at(now), clock.first) + 1
    begins, ends = clock.begins(next_epoch), clock.begins(next_epoch + 1)
    spread = min(1000 * statement.late, ends - begins) / 2
    return (begins - now + jitter * spread) / 1000


def drawn(
    document: Document,
    job: str,
    epoch: int,
    value: int | list[int] | None,
    limit: Limit,
    read: ReadBytes,
    seal: Seal | None,
) -> Document:
    """Draw, charge and queue the report for an epoch; without effect if it was already drawn.

    Charge and draw are in one document, so neither is ever stored without the other.

    `value` comes from `DeviceValues.number`. In jobs with measures it is None: the history closes
    the epoch and has its value, and both are in the same document as the draw. `read` yields
    cryptographic randomness. `seal` is ignored for jobs without sealing.

    Raises:
        ClosedError: If the device joined after that epoch.
        LimitError: If the charge would exceed the limit.
        DeviceError: If the randomizer fails; the message never contains the value.
    """
    member = present_member(document, job)
    if epoch <= member.epoch:
        return document
    statement, history = member.statement, None
    if statement.events is not None:
        _, events, history = _history(document, job)
        if history.closed is not None and epoch <= history.closed:
            return document
        history.close(epoch)
        value = events.value(history, epoch)
    assert value is not None
    horizon = statement.clock.horizon(epoch)
    if epoch < (member.enrolled or 0) or horizon < (member.horizon or 0):
        raise ClosedError(f"the device had not joined job {job} at epoch {epoch}")
    if statement.answers is not None:
        document = _enrolled(document, job, epoch, limit, read, seal)
        member = present_member(document, job)
    account, fresh = _charged(document, member, epoch, limit)
    try:
        device = _randomizer(member, fresh, read)
        words = device.report(statement.clock.local(epoch), value, read)
        content = statement.content_format.pack(words)
    except (ValueError, EnvelopeError):
        # The messages of these errors can contain the value.
        raise DeviceError(
            f"the randomizer of this app cannot report to job {job}: the app is outdated or the "
            "device state is damaged; nothing was sent"
        ) from None
    waiting = _envelope(member, epoch, content, read, seal, enrolls=fresh)
    now = replace(
        member,
        epoch=epoch,
        horizon=horizon,
        state=device.state(),
        waiting=(*member.waiting, waiting)[-MOST_WAITING:],
        history=None if history is None else history.to_json(),
    )
    return Document(account, document.members).with_member(job, now)


def _enrolled(
    document: Document, job: str, epoch: int, limit: Limit, read: ReadBytes, seal: Seal | None
) -> Document:
    """Draw the state for an epoch's horizon, and queue an enrollment as of that epoch.

    Until an enrollment in the horizon is acknowledged, another one precedes each report:
    enrollments have no messages, so repeating one reveals nothing.
    """
    member = present_member(document, job)
    clock = member.statement.clock
    horizon = clock.horizon(epoch)
    if member.enrolled is not None and clock.horizon(member.enrolled) == horizon:
        return document
    if any(each.enrolls and each.epoch == epoch for each in member.waiting):
        return document
    account, fresh = _charged(document, member, epoch, limit)
    content = member.statement.content_format.empty
    waiting = _envelope(member, epoch, content, read, seal, enrolls=True, has_report=False)
    now = replace(
        member,
        horizon=horizon,
        state=_randomizer(member, fresh, read).state() if fresh else member.state,
        waiting=(*member.waiting, waiting)[-MOST_WAITING:],
    )
    return Document(account, document.members).with_member(job, now)


def _charged(
    document: Document, member: Membership, epoch: int, limit: Limit
) -> tuple[Account, bool]:
    """Return the charged account, and whether the epoch's horizon has no state yet."""
    statement = member.statement
    account = document.account.charged(statement, statement.charge_index(epoch), limit)
    fresh = statement.clock.horizon(epoch) != member.horizon
    if statement.unit == "stream" and fresh == (account is document.account):
        raise DeviceError(
            f"the account of job {statement.job} does not match the saved draws: the device does "
            "not report"
        )
    return account, fresh


def _envelope(
    member: Membership,
    epoch: int,
    content: bytes,
    read: ReadBytes,
    seal: Seal | None,
    *,
    enrolls: bool,
    has_report: bool = True,
) -> Waiting:
    statement = member.statement
    report, key = read(IDENTITY_BYTES), None
    public_key = statement.key_at(epoch)
    if statement.sealed:
        if public_key is None or seal is None:
            raise DeviceError(f"job {statement.job} has no sealing key for epoch {epoch}")
        content, key = seal(content, public_key, sealing_info(statement, epoch, report))
    envelope = encode_envelope(member.device, report, enrolls, content, has_report=has_report)
    body = encode_body(statement.deployment, statement.fingerprint, epoch, key, [envelope])
    return Waiting(epoch, report, body)


def sealing_info(statement: Statement, epoch: int, report: bytes) -> bytes:
    """Return a sealed report's context, the same as `dpstream.topics.sealing.device_context`."""
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
    """Outcome of sending a report.

    Attributes:
        kind: "acknowledged"; "rejected" (final); "gone" (the deployment has ended); "early" (the
            epoch has not started); or "again" (retry later).
        others: True if other reports can be sent immediately.
        begins: Start of an "early" report's epoch, as sent by the server, milliseconds since 1970.
    """

    kind: str
    others: bool
    begins: int | None = None


def outcome_of(status: int, problem: Mapping[str, object]) -> ReportOutcome:
    """Interpret a response to a report.

    Only a collector's response is final. A response without a collector's problem type can come
    from any intermediary, so the report is sent again until it is late.
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
    # An error of this report does not imply one of the next.
    return ReportOutcome("again", others=status in (400, 403, 409, 413, 415))


def settled(document: Document, job: str, waiting: Waiting, kind: str) -> Document:
    """Remove a waiting report, given its `ReportOutcome.kind`; "again" and "early" keep it."""
    member = document.member(job)
    if member is None or waiting not in member.waiting or kind in ("again", "early"):
        return document
    rest = tuple(each for each in member.waiting if each != waiting)
    enrolled = member.enrolled
    if kind == "acknowledged" and waiting.enrolls:
        clock = member.statement.clock
        enrolled = waiting.epoch
        rest = tuple(
            each
            for each in rest
            if not (each.enrolls and clock.horizon(each.epoch) == clock.horizon(enrolled))
        )
    return document.with_member(
        job,
        replace(
            member,
            waiting=() if kind == "gone" else rest,
            gone=member.gone or kind == "gone",
            enrolled=enrolled,
        ),
    )


def seconds_to_wait(failures: int, retry_after: float | None, jitter: float) -> float:
    """Return the pause before the next request, in seconds.

    Args:
        failures: Number of consecutive failures, at least 1.
        retry_after: Seconds requested by the server.
        jitter: Independent uniform random number from 0 to 1, to spread the requests of devices.
    """
    longest = min(_FIRST_WAIT * float(1 << min(failures - 1, 30)), _LAST_WAIT)
    own = longest * (0.5 + 0.5 * jitter)
    requested = min(max(retry_after or 0.0, 0.0), LONGEST_WAIT)
    return max(own, requested * (1 + 0.1 * jitter))


def seconds_to_start(begins: int, now: int, jitter: float) -> float:
    """Return the wait in seconds from `now` to `begins` (milliseconds); about a day at most."""
    missing = min(max((begins - now) / 1000, _FIRST_WAIT), LONGEST_WAIT)
    return missing * (1 + 0.1 * jitter)


def _randomizer(member: Membership, fresh: bool, read: ReadBytes) -> OneDevice:
    statement, group = member.statement, None
    if not fresh:
        return OneDevice.restore(statement.protocol, statement.law, member.state or {})
    if statement.events is not None and statement.events.public:
        group = statement.events.group(member.public)
    if member.state is not None:
        return OneDevice.renewed(statement.protocol, statement.law, member.state, read, group)
    device = OneDevice(statement.protocol, statement.law)
    device.enroll(read, group)
    return device
