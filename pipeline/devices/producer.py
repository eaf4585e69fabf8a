"""The producer: stands for many devices, as a gateway does; one device is a population of one.

>>> producer = Producer(job, None, name="kitchen", transport=transport)   # doctest: +SKIP
>>> producer.enrol(["thermostat"])                                        # doctest: +SKIP
>>> producer.report(1, {"thermostat": 1})                                 # doctest: +SKIP
>>> producer.close(1)                                                     # doctest: +SKIP
"""

from __future__ import annotations

import operator
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import Append, Ends, Flush, Result, Steps
from dpstream.pipeline.devices.epoch_records import drawn_epochs
from dpstream.pipeline.devices.producer_store import ProducerStore
from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import times_of
from dpstream.pipeline.protocols.protocol import LearningDevices
from dpstream.pipeline.state import FolderLock
from dpstream.randomizers.counted_words import CountedWords
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.randomness import cryptographic_generator
from dpstream.topics.batches import (
    DRAWING_BYTES,
)
from dpstream.topics.frames import CodecError
from dpstream.topics.names import Role
from dpstream.topics.records import Farewell, Registration

if TYPE_CHECKING:
    from dpstream.pipeline.jobs.model_log import ModelLog

# Makes the generator of a draw from what is drawn: "enrol" and the number of devices there were,
# "horizon" and its number from 1 on, or "report" and the epoch.
Generators: TypeAlias = Callable[[str, int], np.random.Generator]

STATE_FILE = "producer.sqlite3"
"""Of a state directory: what devices have drawn, and all else that is kept."""

Value: TypeAlias = int | str
"""One value of a user: as the job's domain numbers it, or as text."""


class ProducerError(DpstreamError):
    """A producer was asked for something it must not or cannot do."""


class ProducerTransport(Protocol):
    """Carries out what a producer asks for."""

    def run(self, steps: Steps[Result], /) -> Result:
        """Carry out all steps, or raise; of jobs that learn, reads of their models, too."""
        ...


class ModelMissingError(ProducerError):
    """The model that an epoch's reports are about is not published yet: try again later."""


class Producer:
    """Randomizes the values of its devices, epoch by epoch, and sends the reports.

    Enrolled devices keep what they have drawn in `state_directory`, which belongs to one producer
    of one deployment and is locked while it is open.

    Devices may be enrolled at any time: before, they count as 0. One that leaves is withdrawn: the
    value 0 is reported for it until its horizon ends, and the next one does not know it. One that
    merely falls silent stays counted, with the value it had and as if it changed as those do who
    report; a single 0 sent before is not enough, since longer intervals miss it.

    Who is enrolled, from when on and until when, and who is present, is public: it is for the
    caller to see that no call of `enrol` or `withdraw`, and nobody whom `report` names or leaves
    out, depends on a value. Where no value came, or none that can be used, report the last one.

    The first epoch closed of a horizon of a job that renews draws anew for every device, from value
    0: one whose value is 1 then spends a change of its budget.

    Args:
        job: the deployed job.
        state_directory: where the state lives (folder mode 0700); None forgets it at the end.
        name: of the producer, unique in the deployment.
        transport: writes to the job's topics.
        first_epoch: the first epoch it reports; counts when the producer is first opened.
        group: of a job that learns, the group that all devices of this producer are in, from 0 on;
            None: they are spread over all groups. Counts when the producer is first opened.
        generators: randomness; cryptographic, from the operating system, by default.
        identifiers: makes 16-byte ids.
        clock: milliseconds since 1970, by the broker's clock where that is known. An epoch that the
            job's calendar has not begun by it is refused before anything is drawn. None: refuse
            none.

    Raises:
        ProducerError: the directory belongs to another deployment or producer, or its state cannot
            be read or written: its disk may be full.
        FolderInUse: another process has it open.
    """

    _horizon: int
    _initial: int
    _leaving: NDArray[np.bool_]
    _positions: dict[str, int]
    _present: NDArray[np.bool_]
    _randomizer: Devices[Any]
    _values: NDArray[np.integer]

    def __init__(
        self,
        job: DeployedJob,
        state_directory: Path | None,
        *,
        name: str,
        transport: ProducerTransport,
        first_epoch: int = 1,
        group: int | None = None,
        generators: Generators | None = None,
        identifiers: Callable[[], bytes] = lambda: secrets.token_bytes(16),
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.job = job
        self.name = name
        self._clock = clock
        self._times = times_of(job)
        self._transport = transport
        self._generators = generators or cryptographic_generators()
        self._identifiers = identifiers
        self._models: ModelLog | None = None
        if job.protocol_entry.learning is not None:
            from dpstream.pipeline.jobs.model_log import ModelLog

            self._models = ModelLog(job, keep=True)
        self._lock: FolderLock | None = None
        with ExitStack() as undo:
            with self._opening(state_directory, OSError, sqlite3.Error):
                if state_directory is not None:
                    self._lock = FolderLock(state_directory, f"producer {name} of {job.name}")
                    undo.callback(self._lock.release)
                self._store = ProducerStore(
                    None if state_directory is None else state_directory / STATE_FILE
                )
                undo.callback(self._store.close)
                self._claim_directory(first_epoch, group, state_directory)
                self._restore()
            with self._opening(state_directory, sqlite3.Error):
                transport.run(self.resume())
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shut()

    @property
    def store(self) -> ProducerStore:
        """What it keeps."""
        return self._store

    @property
    def closed_epoch(self) -> int:
        """The last epoch drawn; `first_epoch` - 1 before the first."""
        closed = self._store.fact("closed_epoch")
        return closed if isinstance(closed, int) else self.first_epoch - 1

    @property
    def first_epoch(self) -> int:
        """The first epoch this producer reports."""
        epoch = self._store.fact("first_epoch")
        assert isinstance(epoch, int)
        return epoch

    @property
    def users(self) -> Sequence[str]:
        """The enrolled users, in the order of enrolment."""
        return tuple(self._positions)

    @property
    def frozen(self) -> int:
        """Devices that had to leave out a change in this horizon: their budget was used up."""
        return self._randomizer.frozen

    def enrol(self, users: Sequence[str]) -> None:
        """Enrol devices: each draws, once in a horizon, what its privacy rests on.

        At any time; the next epoch closed counts them in its population, so the moment is public
        and must not depend on a value, such as a first row of somebody who has one.
        Users that are enrolled already are passed over, also those who leave with the horizon.
        """
        new = [user for user in dict.fromkeys(users) if user not in self._positions]
        if not new:
            return
        count = len(self._positions)
        self._randomizer.enrol(len(new), self._generators("enrol", count))
        with self._storing(), self._store.transaction():
            self._store.add_users(count, new)
            self._store.save_arrays(self._randomizer.state_arrays())
        self._positions.update(zip(new, range(count, count + len(new)), strict=True))
        self._grow()

    def withdraw(self, users: Iterable[str]) -> None:
        """Have devices leave: they have value 0 from the next epoch closed on.

        It is reported for them until their horizon ends, whatever else is said of them: falling
        silent they would stay counted. After that they are not enrolled any more. At each epoch as
        large a share of them is present, drawn at random, as of those who stay, so that silence
        does not depend on the value; that is right for silence that is independent over epochs.

        For a device whose value is not 0 this is a change. A guarantee for values that never
        change, such as that of memoized_response, does not hold for it any more; the loss of its
        whole stream does. The horizon that is their last one is public, and must not depend on it.

        Raises:
            ProducerError: a user is not enrolled.
        """
        positions = self._positions_of(users)
        with self._storing(), self._store.transaction():
            self._store.add_leaving(positions)
        self._leaving[positions] = True

    def report(self, epoch: int, values: Mapping[str, Value | Sequence[Value]]) -> None:
        """Take in values of the epoch that will be closed next; who is named is present.

        Args:
            epoch: not closed yet.
            values: by user: text as it stands in a change log ("1", a label, a number); or the
                integers that the job's domain makes of it, which is quicker for many. Where users
                hold sets of items: one of these, or a list of them.

        Raises:
            ProducerError: a user is not enrolled, the epoch is closed or has not begun, a text is
                no value, or somebody holds more items than the job allows.
        """
        self._check_open(epoch)
        positions = self._positions_of(values)
        if not positions:
            return
        numbers = self._numbers_of(values)
        self._values = self._values.astype(np.int64, copy=False)
        self._values[positions] = numbers
        self._present[positions] = True

    def report_all(self, epoch: int, values: NDArray[np.integer]) -> None:
        """Take in the value of every enrolled device, shape (devices,), in enrolment order.

        One-byte integers are the fastest. Where users hold sets of items: shape (devices, slots),
        0 where there is none.
        """
        self._check_open(epoch)
        if values.shape != self._values.shape:
            raise ProducerError(
                f"values of shape {values.shape} for {len(self._values)} devices, must be "
                f"{self._values.shape}"
            )
        self._values = values.copy()
        self._present[:] = True

    def close(self, epoch: int) -> None:
        """Draw the epoch's reports, once and for all, and send them.

        Args:
            epoch: later than every closed one; epochs may be left out, their reports are missing.

        Raises:
            ModelMissingError: the job learns, and the epoch before is not published; see `ready`.
            ProducerError: the epoch is closed, or has not begun by the job's calendar.
        """
        self._transport.run(self.close_steps(epoch))

    def close_together(self, epoch: int, beside: Callable[[], None]) -> None:
        """`close`, and in the transaction of the draw what `beside` writes into the `store`."""
        self._transport.run(self.close_steps(epoch, beside))

    def ready(self, epoch: int) -> bool:
        """Whether an epoch can be closed: of a job that learns, once its model is published."""
        return self._models is None or self._transport.run(self._models.find(epoch)) is not None

    def leave(self, last_epoch: int) -> None:
        """Say that no epoch after `last_epoch` is to be waited for.

        The devices are silent from then on; later horizons do not know them. Those that are to
        count as 0 in this one are withdrawn before, and reported until it ends.
        """
        record = Farewell(self.job.deployment, self.enrolment, last_epoch)

        def steps() -> Steps[None]:
            yield Append(Role.PRODUCERS, 0, record.to_bytes())
            yield Flush()

        self._transport.run(steps())

    def shut(self) -> None:
        """Close the state and unlock its directory."""
        self._store.close()
        if self._lock is not None:
            self._lock.release()

    def resume(self) -> Steps[None]:
        """Register, and send what an earlier run had drawn and could not send."""
        if self._store.fact("registered") is None:
            registration = Registration(
                self.job.deployment, self.name, self.enrolment, self.first_epoch
            )
            yield Append(Role.PRODUCERS, 0, registration.to_bytes())
            yield Flush()
            self._store.set_fact("registered", 1)
        yield from self._send()

    def close_steps(self, epoch: int, beside: Callable[[], None] | None = None) -> Steps[None]:
        """The actions of `close`; the draw is durable before anything is sent."""
        self._check_open(epoch)
        model = None if self._models is None else (yield from self._find_model(epoch))
        with self._storing(), self._store.transaction():
            self._renew(epoch)
            generator = self._generators("report", epoch)
            if self._leaving.any():
                self._speak_for_leaving(generator)
            if model is not None:
                self._present &= self._at_turn(epoch)
                assert isinstance(self._randomizer, LearningDevices)
                self._randomizer.take_model(model)
            most = self._most(epoch)
            reports = self._randomizer.report(
                self.job.epochs.local(epoch),
                self._values,
                None if self._present.all() else self._present,
                generator,
            )
            self._put(epoch, reports, most, generator)
            self._store.save_arrays(self._randomizer.state_arrays())
            self._store.set_fact("closed_epoch", epoch)
            self._store.set_fact("closed_users", len(self._positions))
            if beside is not None:
                beside()
        self._present[:] = False
        yield from self._send()

    def _put(
        self,
        epoch: int,
        reports: NDArray[np.unsignedinteger] | CountedWords,
        most: int | None,
        generator: np.random.Generator,
    ) -> None:
        """Put an epoch's records into the outbox, a part of the reports for every instance.

        What the instance that decides windows gets is last: see `_send`.
        """
        drawn = drawn_epochs(self.job)(
            job=self.job,
            epoch=epoch,
            enrolment=self.enrolment,
            drawing=self._identifiers()[:DRAWING_BYTES],
            contributors=int(np.count_nonzero(self._present)),
            population=len(self._positions),
            most=most,
        )
        try:
            for role, records in drawn.records(reports, generator):
                self._store.put(role, self.job.topics.partition_of(epoch), records)
        except CodecError as error:
            raise ProducerError(f"producer {self.name}: {error}") from None

    def _find_model(self, epoch: int) -> Steps[NDArray[np.float64]]:
        """The model that an epoch's reports are about: nothing is drawn before it is known."""
        assert self._models is not None
        model = yield from self._models.find(epoch)
        if model is None:
            raise ModelMissingError(
                f"the model that epoch {epoch} of job {self.job.name} is about is not published "
                "yet: nothing was drawn, wait for the estimate of the epoch before"
            )
        return model

    def _at_turn(self, epoch: int) -> NDArray[np.bool_]:
        """Which devices take part in an epoch of a job that learns, shape (devices,).

        Group g does when the epoch, divided by the number of groups, leaves g. Devices are in a
        group by the order of enrolment; which one begins follows from the producer's id, which is
        random: so groups are as large where every device is a producer of its own.
        """
        learning = self.job.protocol_entry.learning
        assert learning is not None
        groups = learning.groups(self.job.law)
        turn, group = self.job.epochs.local(epoch) % groups, self._store.fact("group")
        if group is not None:
            return np.full(len(self._positions), turn == group)
        begins = int.from_bytes(self.enrolment) % groups
        at_turn: NDArray[np.bool_] = (np.arange(len(self._positions)) + begins) % groups == turn
        return at_turn

    @property
    def enrolment(self) -> bytes:
        """The 16 random bytes under which this producer registered."""
        enrolment = self._store.fact("enrolment")
        assert isinstance(enrolment, bytes)
        return enrolment

    def _renew(self, epoch: int) -> None:
        """At the first epoch closed of a horizon, have everybody who stays draw anew.

        Who was enrolled when the horizon began was silent at its epochs that were left out; who
        came later had the value 0.
        """
        horizon, local_epoch = self.job.epochs.horizon_of(epoch), self.job.epochs.local(epoch)
        if horizon == self._horizon:
            return
        closed_users = self._store.fact("closed_users") or 0
        assert isinstance(closed_users, int)
        staying = ~self._leaving
        earlier = int(np.count_nonzero(staying[:closed_users]))
        generator = self._generators("horizon", horizon)
        self._randomizer = self.job.randomizer()
        self._randomizer.enrol(earlier, generator)
        if local_epoch > 1:
            silent = np.zeros(earlier, np.bool_)
            unheard = np.full((earlier, *self._values.shape[1:]), self._initial)
            self._randomizer.report(1, unheard, silent, generator)
        self._randomizer.enrol(int(np.count_nonzero(staying)) - earlier, generator)
        self._horizon = horizon
        if not staying.all():
            users = [user for user, stays in zip(self._positions, staying, strict=True) if stays]
            self._store.replace_users(users)
            self._positions = {user: position for position, user in enumerate(users)}
            self._values, self._present = self._values[staying], self._present[staying]
            self._leaving = self._leaving[staying]

    def _speak_for_leaving(self, generator: np.random.Generator) -> None:
        """Who leaves has the initial value, and is as likely to be silent as those who stay."""
        staying = ~self._leaving
        stayers = int(np.count_nonzero(staying))
        present = np.count_nonzero(self._present & staying)
        draws = generator.integers(0, max(stayers, 1), len(staying) - stayers)
        self._present[self._leaving] = draws < (present if stayers else 1)
        # Values are taken in as they come, and one byte need not hold the initial one.
        self._values = self._values.astype(np.int64, copy=False)
        self._values[self._leaving] = self._initial

    def _positions_of(self, users: Iterable[str]) -> list[int]:
        if isinstance(users, str):
            raise ProducerError(f"{users!r} is one text: give a list of users")
        try:
            return [self._positions[user] for user in users]
        except KeyError as error:
            raise ProducerError(
                f"user {error.args[0]!r} is not enrolled with producer {self.name}: enrol it first"
            ) from None

    def _numbers_of(self, values: Mapping[str, Value | Sequence[Value]]) -> list[Any]:
        """The values as integers; where they are sets, as lists of equal length."""
        slots, columns = self.job.domain.slots, self.job.domain.columns
        if columns is not None:
            return [self._row(user, value, columns) for user, value in values.items()]
        if slots is None:
            return self._parsed(list(values.items()))
        held = [
            (user, item)
            for user, items in values.items()
            for item in ([items] if isinstance(items, int | str) else items)
        ]
        sets: dict[str, dict[int, None]] = {user: {} for user in values}
        for (user, _), numbers in zip(held, self._parsed(held), strict=True):
            for number in numbers if isinstance(numbers, list) else [numbers]:
                if number:
                    sets[user][number] = None
        for user, items in sets.items():
            if len(items) > slots:
                raise ProducerError(
                    f"user {user!r} holds {len(items)} items, job {self.job.name} allows {slots}"
                )
        return [[*items, *[0] * (slots - len(items))] for items in sets.values()]

    def _row(self, user: str, value: Value | Sequence[Value], columns: int) -> list[int]:
        if isinstance(value, str):
            numbers, problems = self.job.domain.parse([value])
            for problem in problems.values():
                raise ProducerError(f"user {user!r}: {problem}")
            row: list[int] = numbers[0].tolist()
            return row
        row = [self._integer(user, each) for each in ([value] if isinstance(value, int) else value)]
        if len(row) != columns:
            raise ProducerError(f"user {user!r}: {len(row)} numbers, must be {columns}")
        return row

    def _parsed(self, values: Sequence[tuple[str, object]]) -> list[int | list[int]]:
        """Numbers of values, each of a user; lists where a value may stand for several items."""
        texts = [(user, value) for user, value in values if isinstance(value, str)]
        numbers, problems = self.job.domain.parse([text for _, text in texts])
        for index, problem in problems.items():
            raise ProducerError(f"user {texts[index][0]!r}: {problem}")
        parsed = iter(numbers.tolist())
        return [
            next(parsed) if isinstance(value, str) else self._integer(user, value)
            for user, value in values
        ]

    def _integer(self, user: str, value: object) -> int:
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise ProducerError(
                f"user {user!r}: {value!r} is neither text nor a whole number"
            ) from None

    def _claim_directory(self, first_epoch: int, group: int | None, directory: Path | None) -> None:
        """Make the directory this producer's, or see that it already is."""
        learning = self.job.protocol_entry.learning
        groups = 0 if learning is None else learning.groups(self.job.law)
        if group is not None and not 0 <= group < groups:
            raise ProducerError(
                f"group is {group}, and job {self.job.name} has {groups}: give one from 0 to "
                f"{groups - 1}"
                if groups
                else f"group is for jobs that learn, and {self.job.name} is none: leave it out"
            )
        owner = self._store.fact("deployment"), self._store.fact("producer")
        if owner == (None, None):
            enrolment = self._identifiers()
            try:
                # What cannot be registered must not be kept either.
                Registration(self.job.deployment, self.name, enrolment, first_epoch)
            except CodecError as error:
                raise ProducerError(str(error)) from None
            with self._store.transaction():
                self._store.set_fact("deployment", self.job.deployment)
                self._store.set_fact("producer", self.name)
                self._store.set_fact("enrolment", enrolment)
                self._store.set_fact("first_epoch", first_epoch)
                if group is not None:
                    self._store.set_fact("group", group)
        elif owner != (self.job.deployment, self.name):
            raise ProducerError(
                f"{directory} belongs to another producer or deployment: "
                "give every producer of every deployment a directory of its own"
            )
        elif group is not None and group != self._store.fact("group"):
            raise ProducerError(
                f"producer {self.name} of job {self.job.name} has begun in another group than "
                f"{group}, and stays in it: leave the group out"
            )

    def _restore(self) -> None:
        arrays = self._store.arrays()
        # Of the last epoch closed, or of the one to come where devices are only enrolled so far.
        self._horizon = self.job.epochs.horizon_of(max(self.closed_epoch, self.first_epoch))
        self._randomizer = self.job.randomizer()
        if arrays:
            begin = self._horizon * self.job.epochs.count
            known = max(0, self.closed_epoch - begin)
            self._randomizer = self._randomizer.restored(arrays, known)
        self._initial = self.job.domain.initial
        self._positions = {user: position for position, user in enumerate(self._store.users())}
        self._values = np.zeros((0, *self.job.domain.shape), np.int64)
        self._present = np.zeros(0, np.bool_)
        self._leaving = np.zeros(0, np.bool_)
        self._grow()
        self._leaving[self._store.leaving()] = True

    def _grow(self) -> None:
        more = len(self._positions) - len(self._values)
        fresh = np.zeros((more, *self._values.shape[1:]), np.int64)
        self._values = np.concatenate([self._values, fresh])
        self._present = np.concatenate([self._present, np.zeros(more, np.bool_)])
        self._leaving = np.concatenate([self._leaving, np.zeros(more, np.bool_)])

    @contextmanager
    def _opening(
        self, directory: Path | None, *problems: type[OSError] | type[sqlite3.Error]
    ) -> Iterator[None]:
        try:
            yield
        except problems as error:
            what = getattr(error, "strerror", None) or error
            raise ProducerError(
                f"cannot use the state of producer {self.name} in {directory}: {what}; nothing was "
                "drawn, see that the disk has room and that the folder is whole and yours, and try "
                "again"
            ) from error

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """A draw that could not be stored did not happen: go back to the stored state.

        The values taken in for the open epoch, which are not stored, stay.
        """
        closed, positions = self.closed_epoch, self._positions
        values, present = self._values, self._present
        try:
            yield
        except BaseException as error:
            self._restore()
            if (self.closed_epoch, self._positions) == (closed, positions):
                self._values, self._present = values, present
            if not isinstance(error, sqlite3.Error):
                raise
            raise ProducerError(
                f"cannot write the state of producer {self.name}: {error}; "
                "nothing was sent, free some space and try again"
            ) from error

    def _check_open(self, epoch: int) -> None:
        if epoch <= self.closed_epoch:
            raise ProducerError(
                f"epoch {epoch} is closed: its reports are drawn and are never drawn again"
            )
        if self.job.last_epoch is not None and epoch > self.job.last_epoch:
            raise ProducerError(
                f"epoch {epoch} lies after the last epoch of job {self.job.name}, "
                f"{self.job.last_epoch}: deploy a new job to go on"
            )
        if self._times is not None and self._clock is not None:
            refusal = self._times.refusal(epoch, self._clock())
            if refusal is not None:
                raise ProducerError(f"{refusal}: nothing was drawn, report it then")

    def _most(self, epoch: int) -> int | None:
        """The most reports of the epoch, where their number is a secret; None elsewhere."""
        shuffling = self.job.protocol_entry.shuffling
        if shuffling is None:
            return None
        present = int(np.count_nonzero(self._present))
        return shuffling.capacity(self.job.law, self.job.epochs.local(epoch), present)

    def _send(self) -> Steps[None]:
        """Send the outbox; what was acknowledged goes.

        The shuffle instance that decides windows is sent its part when the others have theirs: so
        everybody whom it finds complete is complete with all of them.
        """
        last: int | None = None
        unflushed = False
        for position, role, partition, value in self._store.outbox():
            if role is Role.REPORTS and unflushed:
                yield Flush()
            unflushed = role is not Role.REPORTS
            last = position
            yield Append(role, partition, value)
        if last is not None:
            ends: Ends | None = yield Flush()
            # On a full disk it stays, is sent once more, and dropped where it arrives. The next
            # epoch, which cannot be stored either, says so.
            with suppress(sqlite3.Error):
                self._store.delete_sent(last, ends or {})


def cryptographic_generators() -> Generators:
    """One generator for all draws, keyed by the operating system."""
    generator = cryptographic_generator()
    return lambda purpose, number: generator
