"""A device as an app has it: what `steps` says is stored, then sent; see the package."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from secrets import SystemRandom
from typing import Any, Final

from dpstream.randomizers.byte_generator import ReadBytes
from dpstream.randomizers.client import steps
from dpstream.randomizers.client.account import Account, AccountEntry, Limit
from dpstream.randomizers.client.device_errors import DeviceError, StatementError, UnreachableError
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
    """How far sending has come.

    Attributes:
        waiting: reports that are not known to have arrived.
        after: seconds from now until it makes sense to try again; 0 if nothing waits.
        gone: the deployment is said to have ended: call `Device.join` for another.
    """

    waiting: int
    after: float
    gone: bool


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a value.

    Attributes:
        epoch: that ran.
        drawn: False if the epoch's report had been drawn before: its first value counts.
        sending: of it and of earlier ones.
    """

    epoch: int
    drawn: bool
    sending: Sending


@dataclass(frozen=True, slots=True)
class SpentBudget:
    """A device's account of a population; as text it is for people to read.

    Attributes:
        population: whose budget it is.
        spent: so far.
        limit: of the app.
        entries: by deployment.
    """

    population: str
    spent: Limit
    limit: Limit
    entries: tuple[AccountEntry, ...] = field(default=())

    def __str__(self) -> str:
        lines = [f"population {self.population}: {self.spent} spent, {self.limit} allowed"]
        return "\n  ".join(lines + list(map(str, self.entries)))


class Device:
    """One user's device in one job. Nothing is read or asked for before a method is called.

    Args:
        url: of the collector, or of the proxy before several.
        job: name.
        signers: the operator's public keys in hexadecimal, built into the app: `dpstream` prints
            them. Several while keys change.
        limit: the most that the population's jobs may cost this device, ever.
        path: of the file that is kept; jobs of an app share it, and with it the account.
        population: the people whose budget it is; the job's name, unless the job file says.
        since: milliseconds since 1970; deployments from before are not joined. An app that is
            built when the job runs sets it to then, so that no older statement is brought back.
        token: returns the bearer token for the next request, where the operator asks for one. If
            it raises or returns none, the report is sent later.
        store: in place of a file.
        transport: in place of HTTP to `url`.
        read: cryptographic randomness; anything else in tests only.
        now: milliseconds since 1970.
        monotonic: seconds that never go back.
        jitter: a number from 0 to 1, drawn anew each time.
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
            raise ValueError(f"{job!r} is no name of a job")
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
        """What joining would mean: the server's statement, checked, in numbers and in words.

        Nothing is charged or stored. Show it to the user, and `join` it.

        Raises:
            UnreachableError: the server does not say.
            StatementError: what it says cannot be believed, is older than what the device has
                joined, or is about another population.
            DeviceError: the app is too old for the job, or cannot seal.
        """
        told = self._told(self._signed())
        document = self._document()
        steps.check_newer(document, told)
        return terms_of(told, document.account, self.limit)

    def join(self, terms: Terms | bytes | None = None, *, again: bool = False) -> Statement:
        """Be in the job's running deployment; where the device is in it already, nothing is asked.

        What it costs is charged before this returns: ask the user before. It may be called
        whenever the app starts.

        Args:
            terms: what the user has agreed to: this is joined, and nothing else. Or a statement
                that the app has from a safe place, built in for one, and that is not checked. None:
                the server is asked, and its answer must be signed.
            again: the user, who had left the job, wants to be in it once more.

        Raises:
            UnreachableError: the server does not say.
            StatementError: as of `terms`, or the device has left this deployment.
            LimitError: the account has no room.
            ClosedError: the job is over.
            NotJoinedError: the user had left it.
            DeviceError: the app is too old for the job, or cannot seal. Nothing is charged.
        """
        member = self._document().member(self.job)
        if terms is None and member is not None and not member.gone:
            clock = member.statement.clock
            if clock.last is None or clock.epoch_at(self._now()) <= clock.last:
                return member.statement
        text = terms.statement if isinstance(terms, Terms) else terms
        told = self._told(self._signed() if text is None else text)
        device = self._read(IDENTITY_BYTES)
        server = self._server_time()
        now = steps.corrected(self._now(), server, told.deployed)
        self._change(
            lambda document: steps.joined(document, told, device, self.limit, now, again=again)
        )
        return told

    def report(self, value: Value) -> Report:
        """The value of the epoch that runs: drawn once, stored, and sent if there is a network.

        Args:
            value: True or False, a label, a number, or several: as `DeviceValues.number` says.

        Raises:
            ValueRefusedError: it is none of the job's.
            NotJoinedError: the device is in no running deployment.
            ClosedError: the job has not begun, or is over.
            LimitError: the account has no room: the device stays silent.
        """
        member = steps.present_member(self._document(), self.job)
        number = member.statement.values.number(value)
        now = steps.corrected(self._now(), self._server_time(), member.statement.deployed)
        epoch = steps.epoch_at(member.statement, now)
        seal = _sealing() if member.statement.sealed else None
        changed = self._change(
            lambda document: steps.drawn(
                document, self.job, epoch, number, self.limit, self._read, seal
            )
        )
        return Report(epoch, changed, self.send())

    def send(self) -> Sending:
        """Send what waits, unchanged, if the server is not to be left alone for now.

        Whatever goes wrong on the way is no error: it is tried again at the next call.
        """
        failed = False
        for waiting in () if self._monotonic() < self._quiet_until else self._waiting():
            if self._monotonic() < self._early.get(waiting.report, -1.0):
                continue
            outcome, retry_after = self._send_one(waiting)
            if outcome.begins is not None:
                # Whoever lies about it, the wait is a day at most.
                now = steps.corrected(self._now(), self._server_time(), outcome.begins)
                wait = steps.seconds_to_begin(outcome.begins, now, self._jitter())
                self._early[waiting.report] = self._monotonic() + wait
            if outcome.kind == "again" and not failed:
                failed = True
                self._failures += 1
                wait = steps.seconds_to_wait(self._failures, retry_after, self._jitter())
                self._quiet_until = self._monotonic() + wait
            self._settle(waiting, outcome.kind)
            if not outcome.others:
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
        """Send, wait and send again until nothing waits or the time is over."""
        end = self._monotonic() + seconds
        sending = self.send()
        while sending.waiting and self._monotonic() + sending.after < end:
            time.sleep(sending.after)
            sending = self.send()
        return sending

    def leave(self) -> None:
        """The user's account was deleted, or the user does not want to be in the job any more.

        State, id and what waits are forgotten; what was spent is not, since it cannot be undone.
        """
        self._change(lambda document: steps.left(document, self.job))

    def account(self) -> SpentBudget:
        """What the device has spent, of what it is allowed."""
        account: Account = self._document().account
        entries = tuple(each for each in account.entries if each.population == self.population)
        return SpentBudget(self.population, account.spent(self.population), self.limit, entries)

    def _signed(self) -> bytes:
        return signed_statement(self._ask(f"/v1/jobs/{self.job}").body, self._signers)

    def _told(self, text: bytes) -> Statement:
        """A statement, if it is about what the app means and the app can do what it says."""
        told = read_statement(text)
        if told.job != self.job or told.population != self.population:
            raise StatementError(
                f"the statement is about job {told.job} and population {told.population}, the app "
                f"means job {self.job} and population {self.population}"
            )
        if told.deployed < self._since:
            raise StatementError(
                f"the deployment of job {told.job} that the server tells of is older than the app "
                "allows: it is not joined"
            )
        steps.check_randomizer(told)
        if told.sealed:
            _sealing()
        return told

    def _settle(self, waiting: Waiting, kind: str) -> None:
        self._change(lambda document: steps.settled(document, self.job, waiting, kind))

    def _send_one(self, waiting: Waiting) -> tuple[steps.ReportOutcome, float | None]:
        headers = {"Content-Type": CONTENT_TYPE}
        later = steps.ReportOutcome("again", others=False), None
        if self._token is not None:
            try:
                token = self._token()
            except Exception:
                # The app's backend cannot be reached, whatever its client calls that.
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
            told = _json(self._ask(f"/v1/jobs/{self.job}/time")).get("time")
        except UnreachableError:
            return None
        return told if type(told) is int else None

    def _ask(self, path: str) -> ServerResponse:
        answer = self._transport.request("GET", path, None, {})
        if answer.status != 200:
            raise UnreachableError(f"the server answers {answer.status} to a question about a job")
        return answer

    def _document(self) -> Document:
        return Document.from_text(self._store.read()[1])

    def _waiting(self) -> tuple[Waiting, ...]:
        member: Membership | None = self._document().member(self.job)
        return () if member is None else member.waiting

    def _change(self, step: Callable[[Document], Document]) -> bool:
        """Take a step and store it; anew, if another process has stored one in the meantime."""
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
            "reports of this job are sealed, for which cryptography is needed: "
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
    """Of Retry-After; a date, which collectors do not write, is not read."""
    text = answer.headers.get("retry-after", "")
    return float(text) if re.fullmatch(r"\d{1,9}", text, re.ASCII) else None
