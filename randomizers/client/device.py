"""Device for apps: store the result of each step, then send; see the package docstring."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from secrets import SystemRandom
from types import EllipsisType
from typing import Any, Final

from dpstream.randomizers.byte_generator import ReadBytes
from dpstream.randomizers.client import steps
from dpstream.randomizers.client.account import Account, AccountEntry, Limit
from dpstream.randomizers.client.device_errors import (
    DeviceError,
    StatementError,
    UnreachableError,
    ValueRejectedError,
)
from dpstream.randomizers.client.document import Document, Membership, Waiting
from dpstream.randomizers.client.statements import Statement, read_statement, signed_statement
from dpstream.randomizers.client.store import FileStore, Store
from dpstream.randomizers.client.terms import Terms, terms_of
from dpstream.randomizers.client.transport import HttpTransport, ServerResponse, Transport
from dpstream.randomizers.client.values import Value
from dpstream.topics.envelopes import CONTENT_TYPE, IDENTITY_BYTES

_RANDOM = SystemRandom()
_JOB = re.compile(r"[a-z0-9][a-z0-9_-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sending:
    """Progress of sending.

    Attributes:
        waiting: Number of reports not known to have arrived.
        after: Seconds until the next useful attempt; 0 if no reports are waiting.
        gone: True if the server announced another deployment; call `Device.join` to join it.
    """

    waiting: int
    after: float
    gone: bool


@dataclass(frozen=True, slots=True)
class Report:
    """Outcome of reporting a value.

    Attributes:
        epoch: Reported epoch; in jobs with measures, the last one that has ended.
        drawn: False if the value was ignored, since this or a later epoch was already drawn.
        sending: Progress of sending this and earlier reports.
        after: In jobs with measures, seconds until the app should call `report` again, at a random
            moment after the end of the current epoch; None in other jobs.
    """

    epoch: int
    drawn: bool
    sending: Sending
    after: float | None = None


@dataclass(frozen=True, slots=True)
class SpentBudget:
    """A device's account for one population, with one entry per deployment."""

    population: str
    spent: Limit
    limit: Limit
    entries: tuple[AccountEntry, ...] = field(default=())

    def __str__(self) -> str:
        lines = [f"population {self.population}: {self.spent} spent, {self.limit} allowed"]
        return "\n  ".join(lines + list(map(str, self.entries)))


class Device:
    """One user's device in one job. There is no input or output before a method is called.

    Args:
        url: URL of the collector, or of the proxy in front of several collectors.
        signers: The operator's public keys in hexadecimal, as printed by `dpstream`, built into the
            app. There can be several during key rotation.
        limit: Maximum total cost, ever, of the population's jobs to this device.
        path: File that stores the document. All jobs of an app share it, and with it the account.
        population: Name of the population whose budget is charged. Default: the job's name.
        since: Milliseconds since 1970; earlier deployments are not joined. An app built while the
            job runs sets it to its build time, so that no older statement can be replayed.
        token: Function that returns the bearer token for the next request, if the operator requires
            one. If it raises or returns no token, the report is sent later.
        store, transport: Replacements for the file and for HTTP requests to `url`.
        read: Source of cryptographic randomness; replace it only in tests.
        now, monotonic: Clocks, in milliseconds since 1970 and in seconds.
        jitter: Function that returns a new random number from 0 to 1.
    """

    def __init__(
        self,
        url: str,
        job: str,
        *,
        signers: Iterable[str],
        limit: Limit,
        path: str | os.PathLike[str] = "dpstream-device.sqlite",
        population: str | None = None,
        since: int = 0,
        token: Callable[[], str | None] | None = None,
        store: Store | None = None,
        transport: Transport | None = None,
        read: ReadBytes = os.urandom,
        now: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = _RANDOM.random,
    ) -> None:
        if not _JOB.fullmatch(job):
            raise ValueError(
                f"{job!r} is not a job name; expected lower-case letters, digits, '-' and '_', "
                "starting with a letter or digit"
            )
        self.job: Final = job
        self.limit: Final = limit
        self.population: Final = job if population is None else population
        self._since = since
        self._signers = tuple(
            map(bytes.fromhex, [signers] if isinstance(signers, str) else signers)
        )
        self._store = FileStore(path) if store is None else store
        self._transport = HttpTransport(url) if transport is None else transport
        self._token, self._read, self._now = token, read, now
        self._monotonic, self._jitter = monotonic, jitter
        self._failures, self._quiet_until = 0, -1.0
        self._early: dict[bytes, float] = {}

    def terms(self) -> Terms:
        """Return the terms of joining: the server's verified statement, as numbers and sentences.

        Nothing is charged or stored. Show the terms to the user, then pass them to `join`.

        Raises:
            UnreachableError: If the server does not answer.
            StatementError: If the statement is not trustworthy, older than the joined one, or about
                another job or population.
            DeviceError: If the app is too old for the job, or cannot seal reports.
        """
        checked = self._checked_statement(self._signed())
        document = self._document()
        steps.check_newer(document, checked)
        return terms_of(checked, document.account, self.limit)

    def join(
        self,
        terms: Terms | bytes | None = None,
        *,
        again: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> Statement:
        """Join the job's running deployment; a device that already joined it sends no request.

        The cost is charged before this returns: ask the user first. Apps can call it at each start.

        Args:
            terms: Terms that the user agreed to, which the device joins unchanged; or a statement
                from a trusted source, such as the app itself, whose signature is not verified. By
                default the statement is requested from the server and must be signed.
            again: True if a user who left the job wants to join again.
            attributes: The user's public attributes, such as ``{"platform": "ios"}``, in jobs with
                measures by public attributes (`Terms.events`). They are visible to everyone. A
                later change counts from the next horizon on.

        Raises:
            ValueRejectedError: If a public attribute of the job is missing.
            UnreachableError: If the server does not answer.
            StatementError: As in `terms`, or if the device has left this deployment.
            LimitError: If the charge would exceed the limit.
            ClosedError: If the job has ended.
            NotJoinedError: If the user had left the job and `again` is False.
            DeviceError: If the app is too old for the job, or cannot seal reports.
        """
        member = self._document().member(self.job)
        if terms is None and member is not None and not member.gone:
            clock = member.statement.clock
            if clock.last is None or clock.epoch_at(self._now()) <= clock.last:
                if attributes is None:
                    return member.statement
                terms = member.text
        text = terms.statement if isinstance(terms, Terms) else terms
        checked = self._checked_statement(self._signed() if text is None else text)
        device = self._read(IDENTITY_BYTES)
        server = self._server_time()
        now = steps.corrected(self._now(), server, checked.deployed)
        seal = _sealing() if checked.sealed else None
        changed = self._change(
            lambda document: steps.joined(
                document,
                checked,
                device,
                self.limit,
                now,
                self._read,
                seal,
                again=again,
                attributes=attributes,
            )
        )
        if changed and checked.answers is not None:
            self.send()
        return checked

    def record(
        self,
        event: str = "",
        *,
        number: float | None = None,
        label: str | None = None,
        numbers: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
        at: int | None = None,
    ) -> None:
        """Record an event of the user on this device; no request is made, and nothing is charged.

        For jobs with measures. Reports of later epochs count the event if its epoch is in their
        window. An event of an epoch that was already reported changes no report that was drawn.

        Args:
            event: Name of the event. Measures without `event` count all events.
            number: Value of the only column with numbers.
            label: Value of the only column with labels.
            numbers: Values by column; columns that the job does not use are ignored.
            labels: Labels by column, likewise.
            at: Time of the event in milliseconds since 1970, not in the future. Default: now.

        Raises:
            NotJoinedError: If the user has not joined the job; nothing is stored.
            ValueRejectedError: If the job has no measures; for a number that is not finite, a time
                in the future, or `number` and `label` if the job has several such columns.
        """
        events = steps.events_of(self._document(), self.job)
        columns = events.columns(self.job, number, label, numbers or {}, labels or {})
        moment = self._moment(at)
        self._change(lambda document: steps.recorded(document, self.job, moment, event, *columns))

    def attributes(self, at: int | None = None, /, **labels: str) -> None:
        """Set private attributes of the user, such as ``plan="pro"``, from now on or `at` a time.

        For jobs with measures; see `record`. Labels that the job does not declare count as "other".
        Events can carry the same labels. Raises `ValueRejectedError` for unknown attributes.
        """
        moment = self._moment(at)
        self._change(lambda document: steps.labeled(document, self.job, moment, labels))

    def report(self, value: Value | EllipsisType = ..., *, ago: int = 0) -> Report:
        """Report the value for an epoch: randomize once, store, and send if possible.

        In jobs with measures there is no value to pass. The device reports all ended epochs that
        are still accepted, each once, with the answers that follow from recorded events. Call it on
        a schedule that does not depend on use of the app, such as after `Report.after` seconds.

        In other jobs, a value that is known only at the end of its epoch, such as whether something
        happened in a week, is reported afterwards, with `ago` 1. Report the earliest epoch first.

        Args:
            value: True or False, a label, a number, or a collection; see `DeviceValues.number`.
                Leave it out in jobs with measures.
            ago: Number of epochs before the current one; reports are accepted for `late` seconds
                after the end of their epoch.

        Raises:
            ValueError: If `ago` is not a number of epochs.
            ValueRejectedError: If the job does not have this value, or computes it from events.
            NotJoinedError: If the device has not joined the running deployment.
            ClosedError: If the job has not started or has ended, the device joined after the epoch,
                or reports for the epoch are no longer accepted.
            LimitError: If the charge would exceed the limit; nothing is sent.
        """
        if type(ago) is not int or ago < 0:
            raise ValueError(f"ago is {ago!r}; expected a number of epochs, 0 or more")
        member = steps.present_member(self._document(), self.job)
        if member.statement.events is not None:
            if value is not ... or ago:
                raise ValueRejectedError(
                    f"job {self.job} computes its answers from recorded events: call report "
                    "without a value, and record for events"
                )
            return self._report_events(member.statement)
        if value is ...:
            raise ValueRejectedError(f"job {self.job} has no measures: pass a value to report")
        number = member.statement.values.number(value)
        now = steps.corrected(self._now(), self._server_time(), member.statement.deployed)
        epoch = steps.epoch_at(member.statement, now, ago)
        seal = _sealing() if member.statement.sealed else None
        changed = self._change(
            lambda document: steps.drawn(
                document, self.job, epoch, number, self.limit, self._read, seal
            )
        )
        return Report(epoch, changed, self.send())

    def _report_events(self, statement: Statement) -> Report:
        now = steps.corrected(self._now(), self._server_time(), statement.deployed)
        seal = _sealing() if statement.sealed else None
        epochs = steps.ended_epochs(self._document(), self.job, now)
        drawn = False
        for epoch in epochs:

            def step(document: Document, epoch: int = epoch) -> Document:
                return steps.drawn(document, self.job, epoch, None, self.limit, self._read, seal)

            drawn |= self._change(step)
        after = steps.seconds_to_report(statement, now, self._jitter())
        return Report(epochs.stop - 1, drawn, self.send(), after)

    def send(self) -> Sending:
        """Send waiting reports unchanged, except during pauses; the next call retries failures."""
        failed = False
        for waiting in () if self._monotonic() < self._quiet_until else self._waiting():
            if self._monotonic() < self._early.get(waiting.report, -1.0):
                if waiting.enrolls:
                    break
                continue
            if waiting.enrolls and waiting not in self._waiting():
                # An enrollment of the same horizon was acknowledged.
                continue
            outcome, retry_after = self._send_one(waiting)
            if outcome.begins is not None:
                # The wait is at most a day, even if the server sends a false time.
                now = steps.corrected(self._now(), self._server_time(), outcome.begins)
                wait = steps.seconds_to_start(outcome.begins, now, self._jitter())
                self._early[waiting.report] = self._monotonic() + wait
            if outcome.kind == "again" and not failed:
                failed = True
                self._failures += 1
                wait = steps.seconds_to_wait(self._failures, retry_after, self._jitter())
                self._quiet_until = self._monotonic() + wait
            self._settle(waiting, outcome.kind)
            if not outcome.others or (waiting.enrolls and outcome.kind in ("again", "early")):
                break
        if not failed and self._monotonic() >= self._quiet_until:
            self._failures = 0
        member = self._document().member(self.job)
        left = () if member is None else member.waiting
        self._early = {each.report: self._early.get(each.report, -1.0) for each in left}
        until = max(self._quiet_until, min(self._early.values(), default=-1.0))
        after = max(0.0, until - self._monotonic()) if left else 0.0
        return Sending(len(left), after, member is not None and member.gone)

    def deliver(self, seconds: float) -> Sending:
        """Send repeatedly until no reports are waiting, or for at most `seconds`."""
        end = self._monotonic() + seconds
        sending = self.send()
        while sending.waiting and self._monotonic() + sending.after < end:
            time.sleep(sending.after)
            sending = self.send()
        return sending

    def leave(self) -> None:
        """Leave the job, for example because the user's account was deleted.

        State, id and waiting reports are deleted. The account remains, since spending is final.
        """
        self._change(lambda document: steps.left(document, self.job))

    def account(self) -> SpentBudget:
        """Return the device's spent amounts and its limit."""
        account: Account = self._document().account
        entries = tuple(each for each in account.entries if each.population == self.population)
        return SpentBudget(self.population, account.spent(self.population), self.limit, entries)

    def _signed(self) -> bytes:
        return signed_statement(self._ask(f"/v1/jobs/{self.job}").body, self._signers)

    def _checked_statement(self, text: bytes) -> Statement:
        """Parse a statement; raise `DeviceError` if it does not match the app or is unsupported."""
        checked = read_statement(text)
        if checked.job != self.job or checked.population != self.population:
            raise StatementError(
                f"the statement is about job {checked.job} and population {checked.population}; "
                f"the app expects job {self.job} and population {self.population}"
            )
        if checked.deployed < self._since:
            raise StatementError(
                f"the server offers a deployment of job {checked.job} that is older than the app "
                "allows: the device does not join"
            )
        steps.check_randomizer(checked)
        if checked.sealed:
            _sealing()
        return checked

    def _moment(self, at: int | None) -> int:
        now = min(max(self._now(), 0), steps.LAST_MOMENT)
        if at is None:
            return now
        if type(at) is not int or not 0 <= at <= now + steps.CLOCK_TOLERANCE:
            raise ValueRejectedError(
                "the time of an event is invalid; expected milliseconds since 1970, up to now"
            )
        return at

    def _settle(self, waiting: Waiting, kind: str) -> None:
        self._change(lambda document: steps.settled(document, self.job, waiting, kind))

    def _send_one(self, waiting: Waiting) -> tuple[steps.ReportOutcome, float | None]:
        headers = {"Content-Type": CONTENT_TYPE}
        later = steps.ReportOutcome("again", others=False), None
        if self._token is not None:
            try:
                token = self._token()
            except Exception:
                # The app's backend is unreachable, whichever exception its client raises.
                return later
            if not token:
                return later
            headers["Authorization"] = f"Bearer {token}"
        try:
            answer = self._transport.request(
                "POST", f"/v1/jobs/{self.job}/reports", waiting.body, headers
            )
        except UnreachableError:
            return later
        return steps.outcome_of(answer.status, _json(answer)), _seconds(answer)

    def _server_time(self) -> int | None:
        try:
            answer = _json(self._ask(f"/v1/jobs/{self.job}/time")).get("time")
        except UnreachableError:
            return None
        return answer if type(answer) is int else None

    def _ask(self, path: str) -> ServerResponse:
        answer = self._transport.request("GET", path, None, {})
        if answer.status != 200:
            raise UnreachableError(f"the server returned status {answer.status} for a job request")
        return answer

    def _document(self) -> Document:
        return Document.from_text(self._store.read()[1])

    def _waiting(self) -> tuple[Waiting, ...]:
        member: Membership | None = self._document().member(self.job)
        return () if member is None else member.waiting

    def _change(self, step: Callable[[Document], Document]) -> bool:
        """Apply a step and store the result; repeat if another process stored a document first."""
        while True:
            revision, text = self._store.read()
            document = Document.from_text(text)
            changed = step(document)
            if changed is document:
                return False
            if self._store.replace(revision, changed.to_text()):
                return True


def _sealing() -> steps.Seal:
    try:
        from dpstream.topics.sealing import Lock, key_id, seal
    except ImportError:
        raise DeviceError(
            "reports of this job are sealed, which requires the package cryptography. Install it: "
            "pip install 'cryptography>=50'"
        ) from None

    def sealed(content: bytes, public_key: bytes, info: bytes) -> tuple[bytes, bytes]:
        return seal(content, Lock(public_key, info)), key_id(public_key)

    return sealed


def _json(answer: ServerResponse) -> Mapping[str, Any]:
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def _seconds(answer: ServerResponse) -> float | None:
    """Return the Retry-After header in seconds; dates, which collectors never send, are ignored."""
    text = answer.headers.get("retry-after", "")
    return float(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else None
