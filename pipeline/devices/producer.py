"""A producer: it reports for many devices, as a gateway does, or for a single device.

>>> producer = Producer(job, None, name="kitchen", transport=transport)   # doctest: +SKIP
>>> producer.enroll(["thermostat"])                                        # doctest: +SKIP
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
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.actions import Append, Ends, Flush, Result, Steps
from dpstream.pipeline.devices.epoch_records import drawn_epochs
from dpstream.pipeline.devices.producer_store import ProducerStore
from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import times_of
from dpstream.pipeline.state import FolderLock
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.randomness import cryptographic_generator
from dpstream.topics.batches import (
    DRAWING_BYTES,
)
from dpstream.topics.frames import CodecError
from dpstream.topics.names import Role
from dpstream.topics.records import Deregistration, Registration

# Returns the generator for a draw, given its purpose and a number: "enroll" and the previous number
# of devices, "horizon" and its number, at least 1, or "report" and the epoch.
Generators: TypeAlias = Callable[[str, int], np.random.Generator]

STATE_FILE = "producer.sqlite3"
"""File in the state directory with the devices' random draws and all other saved state."""

Value: TypeAlias = int | str
"""One value of a user: its integer in the job's domain, or its text."""


class ProducerError(DpstreamError):
    """Invalid or impossible request to a producer."""


class ProducerTransport(Protocol):
    """Executor of a producer's actions."""

    def run(self, steps: Steps[Result], /) -> Result:
        """Execute all steps and return their result, or raise an error."""


class Producer:
    """Randomize the values of devices, epoch by epoch, and send the reports.

    The draws of enrolled devices are saved in `state_directory`. This folder belongs to one
    producer of one deployment, and is locked while the producer is open.

    Devices can be enrolled at any time, and count as having value 0 before that. A device that
    leaves must be withdrawn: the value 0 is reported for it until its horizon ends, and the next
    horizon does not include it. A device that merely stops reporting stays in the estimates, as if
    its last value then changed like the values of reporting devices. Reporting a single 0 before
    stopping is not enough, because reports that cover longer intervals miss it.

    The enrolled users, their first and last epochs, and the users present at an epoch are public.
    The caller must ensure that no call of `enroll` or `withdraw` depends on a value. Whether
    `report` is called with a value for a user must not depend on a value either. If no usable value
    arrived, report the last value.

    In a recurring job, closing the first epoch of a horizon draws new randomness for every device,
    which starts again at value 0. A device with value 1 then spends a change of its budget. Draws
    that the protocol keeps forever, such as phases, are kept if a user leaves and enrolls again.

    Args:
        state_directory: Folder for the state (mode 0700); None discards the state at the end.
        name: Name of the producer, unique in the deployment.
        transport: Writes to the job's topics.
        first_epoch: First epoch to report; fixed when the producer is first opened.
        generators: Sources of randomness; by default cryptographic, from the operating system.
        identifiers: Generates 16-byte IDs.
        clock: Returns milliseconds since 1970, by the broker's clock if known. An epoch that has
            not started by this clock is rejected before anything is drawn. Without a clock, no
            epoch is rejected.

    Raises:
        ProducerError: If the directory belongs to another deployment or producer, or if its state
            cannot be read or written, for example because the disk is full.
        FolderInUse: If another process has the directory open.
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
                self._claim_directory(first_epoch, state_directory)
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
        """State stored in the state directory."""
        return self._store

    @property
    def closed_epoch(self) -> int:
        """Last epoch drawn; `first_epoch` - 1 before any draw."""
        closed = self._store.fact("closed_epoch")
        return closed if isinstance(closed, int) else self.first_epoch - 1

    @property
    def first_epoch(self) -> int:
        """First epoch that this producer reports."""
        epoch = self._store.fact("first_epoch")
        assert isinstance(epoch, int)
        return epoch

    @property
    def users(self) -> Sequence[str]:
        """Enrolled users, in the order of enrollment."""
        return tuple(self._positions)

    @property
    def exhausted(self) -> int:
        """Number of devices that exhausted their budget in this horizon and dropped a change."""
        return self._randomizer.exhausted

    def enroll(
        self, users: Sequence[str], groups: Sequence[Mapping[str, str] | int] | None = None
    ) -> None:
        """Enroll devices: each draws, once per horizon, the randomness on which its privacy relies.

        The next closed epoch counts these devices in its population, so the time of the call is
        public and must not depend on a value. For example, the time when a user's first row with a
        value arrives depends on a value. Users who are enrolled already are skipped, including
        users who leave when the horizon ends.

        Args:
            users: Names of users.
            groups: In a job with public attributes: those of each user, by name, or the number of
                the user's group, from 0. They are public and fixed, so they must not depend on a
                value. None keeps the groups of users who enroll again. An attribute that is the
                period of enrollment can be left out: it is that of the next epoch to be closed.

        Raises:
            ProducerError: If the groups do not fit the job, or a user has none.
        """
        new = [user for user in dict.fromkeys(users) if user not in self._positions]
        if not new:
            return
        count = len(self._positions)
        lasting = {name: self._store.departed(name, new) for name in self._randomizer.lasting}
        if groups is not None or self.job.domain.attributes:
            lasting |= {"group": self._groups_of(users, new, groups, lasting.get("group", {}))}
        generator = self._generators("enroll", count)
        # Users who return have all of the lasting arrays; new users have at most a group.
        first = next(iter(lasting.values()), {})
        returning = [user for user in first if all(user in each for each in lasting.values())]
        known = set(returning)
        others = [user for user in new if user not in known]
        for each in filter(None, (returning, others)):
            kept = {
                name: np.array([values[user] for user in each])
                for name, values in lasting.items()
                if each[0] in values
            }
            self._randomizer.enroll(len(each), generator, kept)
        new = [*returning, *others]
        with self._storing(), self._store.transaction():
            self._store.add_users(count, new)
            self._store.save_arrays(self._randomizer.state_arrays())
        self._positions.update(zip(new, range(count, count + len(new)), strict=True))
        self._grow()

    def withdraw(self, users: Iterable[str]) -> None:
        """Withdraw enrolled devices: they have value 0 from the next closed epoch on.

        The value 0 is reported for these devices until their horizon ends, whatever values the
        caller sets, because absent devices would stay in the estimates. After the horizon, they are
        no longer enrolled. At each epoch, a random fraction of them is present. This fraction
        equals the fraction present among the devices that stay, so absence does not depend on the
        value. This method assumes that absence is independent across epochs.

        For a device whose value is not 0, the withdrawal is a change. A guarantee for values that
        never change then no longer holds for the device. The guarantee for its whole stream still
        holds. The last horizon of a device is public, and must not depend on its value. Raises
        `ProducerError` if a user is not enrolled.
        """
        positions = self._positions_of(users)
        with self._storing(), self._store.transaction():
            self._store.add_leaving(positions)
        self._leaving[positions] = True

    def report(self, epoch: int, values: Mapping[str, Value | Sequence[Value]]) -> None:
        """Set values for the next epoch to be closed; only the users in `values` are present.

        Args:
            epoch: An epoch that is not closed yet.
            values: Value by user: text as in a change log ("1", a label, a number), or integer in
                the job's domain, which is faster. For sets of items: one value, or a list.

        Raises:
            ProducerError: If a user is not enrolled or has more items than the job allows. Also if
                a text is not a value, or if the epoch is closed or has not started.
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
        """Set the values of all enrolled devices, shape (devices,), in enrollment order.

        One-byte integers are the fastest. For sets of items: shape (devices, slots), padded with 0.
        """
        self._check_open(epoch)
        if values.shape != self._values.shape:
            raise ProducerError(
                f"values: got shape {values.shape} for {len(self._values)} devices; expected "
                f"{self._values.shape}"
            )
        self._values = values.copy()
        self._present[:] = True

    def close(self, epoch: int) -> None:
        """Draw the reports for an epoch, once, and send the reports.

        The epoch must be later than every closed epoch. Skipped epochs have no reports. Raises
        `ProducerError` if the epoch is closed, or has not started by the job's calendar.
        """
        self._transport.run(self.close_steps(epoch))

    def close_together(self, epoch: int, beside: Callable[[], None]) -> None:
        """Close an epoch, with a callback that writes to `store` in the transaction of the draw."""
        self._transport.run(self.close_steps(epoch, beside))

    def leave(self, last_epoch: int) -> None:
        """Deregister after `last_epoch`, so that no later epoch waits for this producer.

        The devices are then absent, and later horizons do not include them. If devices must count
        as having value 0 in this horizon, withdraw them first, and report until it ends.
        """
        record = Deregistration(self.job.deployment, self.enrollment, last_epoch)

        def steps() -> Steps[None]:
            yield Append(Role.PRODUCERS, 0, record.to_bytes())
            yield Flush()

        self._transport.run(steps())

    def shut(self) -> None:
        """Close the state, and unlock the state directory."""
        self._store.close()
        if self._lock is not None:
            self._lock.release()

    def resume(self) -> Steps[None]:
        """Register the producer, and send records that an earlier run drew but did not send."""
        if self._store.fact("registered") is None:
            registration = Registration(
                self.job.deployment, self.name, self.enrollment, self.first_epoch
            )
            yield Append(Role.PRODUCERS, 0, registration.to_bytes())
            yield Flush()
            self._store.set_fact("registered", 1)
        yield from self._send()

    def close_steps(self, epoch: int, beside: Callable[[], None] | None = None) -> Steps[None]:
        """Yield the actions of `close`; the draw is stored durably before anything is sent."""
        self._check_open(epoch)
        with self._storing(), self._store.transaction():
            self._renew(epoch)
            generator = self._generators("report", epoch)
            if self._leaving.any():
                self._speak_for_leaving(generator)
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
        reports: NDArray[np.unsignedinteger] | CountedMessages,
        most: int | None,
        generator: np.random.Generator,
    ) -> None:
        present = self._present
        if self.job.protocol_entry.sampled is not None:
            present = present[self._randomizer.due(self.job.epochs.local(epoch))]
        drawn = drawn_epochs(self.job)(
            job=self.job,
            epoch=epoch,
            enrollment=self.enrollment,
            drawing=self._identifiers()[:DRAWING_BYTES],
            contributors=int(np.count_nonzero(present)),
            population=len(self._positions),
            most=most,
        )
        try:
            for role, records in drawn.records(reports, generator):
                self._store.put(role, self.job.topics.partition_of(epoch), records)
        except CodecError as error:
            raise ProducerError(f"producer {self.name}: {error}") from None

    @property
    def enrollment(self) -> bytes:
        """Random enrollment ID of this producer, 16 bytes."""
        enrollment = self._store.fact("enrollment")
        assert isinstance(enrollment, bytes)
        return enrollment

    def _renew(self, epoch: int) -> None:
        """At the first closed epoch of a horizon, draw new randomness for devices that stay.

        Randomness that is drawn once per device is kept, even for leaving devices. If their users
        enroll again, a new draw would cost more than the guarantee states. At skipped epochs of the
        horizon, devices enrolled before its start count as absent, and newer devices count as
        having value 0.
        """
        horizon, local_epoch = self.job.epochs.horizon_of(epoch), self.job.epochs.local(epoch)
        if horizon == self._horizon:
            return
        closed_users = self._store.fact("closed_users") or 0
        assert isinstance(closed_users, int)
        staying = ~self._leaving
        earlier = int(np.count_nonzero(staying[:closed_users]))
        generator = self._generators("horizon", horizon)
        arrays = self._randomizer.state_arrays()
        lasting = {name: arrays[name] for name in self._randomizer.lasting}
        for name, values in lasting.items():
            leavers = zip(self._positions, values.tolist(), self._leaving, strict=True)
            self._store.add_departed(name, {user: value for user, value, left in leavers if left})
        kept = {name: values[staying] for name, values in lasting.items()}
        self._randomizer = self.job.randomizer()
        self._randomizer.enroll(
            earlier, generator, {name: values[:earlier] for name, values in kept.items()}
        )
        if local_epoch > 1:
            absent = np.zeros(earlier, np.bool_)
            unheard = np.full((earlier, *self._values.shape[1:]), self._initial)
            self._randomizer.report(1, unheard, absent, generator)
        self._randomizer.enroll(
            int(np.count_nonzero(staying)) - earlier,
            generator,
            {name: values[earlier:] for name, values in kept.items()},
        )
        self._horizon = horizon
        if not staying.all():
            users = [user for user, stays in zip(self._positions, staying, strict=True) if stays]
            self._store.replace_users(users)
            self._positions = {user: position for position, user in enumerate(users)}
            self._values, self._present = self._values[staying], self._present[staying]
            self._leaving = self._leaving[staying]

    def _speak_for_leaving(self, generator: np.random.Generator) -> None:
        """Set leaving devices to the initial value, present as often as devices that stay."""
        staying = ~self._leaving
        stayers = int(np.count_nonzero(staying))
        present = np.count_nonzero(self._present & staying)
        draws = generator.integers(0, max(stayers, 1), len(staying) - stayers)
        self._present[self._leaving] = draws < (present if stayers else 1)
        # Reported values can be one byte wide, too narrow for the initial value.
        self._values = self._values.astype(np.int64, copy=False)
        self._values[self._leaving] = self._initial

    def _groups_of(
        self,
        users: Sequence[str],
        new: Sequence[str],
        groups: Sequence[Mapping[str, str] | int] | None,
        earlier: Mapping[str, int],
    ) -> dict[str, int]:
        """Return the group of each new user; `earlier` has those of users who enroll again."""
        domain = self.job.domain
        if not domain.attributes:
            raise ProducerError(f"groups: job {self.job.name} has no public attributes")
        enrolled = self.job.enrolled_in(self.closed_epoch + 1)
        if groups is None:
            groups, users = list(earlier.values()), list(earlier)
            if enrolled.keys() >= set(domain.attributes):
                users = [*users, *(user for user in new if user not in earlier)]
                groups = [*groups, *([enrolled] * (len(users) - len(earlier)))]
        if len(groups) != len(users):
            raise ProducerError(f"groups: got {len(groups)} for {len(users)} users")
        numbers: dict[str, int] = {}
        for user, group in zip(users, groups, strict=True):
            try:
                numbers[user] = (
                    domain.group_of(enrolled | dict(group)) if isinstance(group, Mapping) else group
                )
            except ValueError as error:
                raise ProducerError(f"user {user!r}: {error}") from None
            if not 0 <= numbers[user] < domain.groups:
                raise ProducerError(
                    f"user {user!r}: got group {numbers[user]}; expected 0 to {domain.groups - 1}"
                )
        missing = [user for user in new if user not in numbers]
        if missing:
            raise ProducerError(
                f"user {missing[0]!r} has no group: job {self.job.name} has the public attributes "
                f"{', '.join(domain.attributes)}, which must be given when users are enrolled"
            )
        return {user: numbers[user] for user in new}

    def _positions_of(self, users: Iterable[str]) -> list[int]:
        if isinstance(users, str):
            raise ProducerError(f"users: got the single text {users!r}; expected a list of users")
        try:
            return [self._positions[user] for user in users]
        except KeyError as error:
            raise ProducerError(
                f"user {error.args[0]!r} is not enrolled with producer {self.name}: enroll it first"
            ) from None

    def _numbers_of(self, values: Mapping[str, Value | Sequence[Value]]) -> list[Any]:
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
                    f"user {user!r}: got {len(items)} items; job {self.job.name} allows {slots}"
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
            raise ProducerError(f"user {user!r}: got {len(row)} numbers; expected {columns}")
        return row

    def _parsed(self, values: Sequence[tuple[str, object]]) -> list[int | list[int]]:
        """Return users' values as integers, or as lists if a value can represent several items."""
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
                f"user {user!r}: got {value!r}; expected text or an integer"
            ) from None

    def _claim_directory(self, first_epoch: int, directory: Path | None) -> None:
        owner = self._store.fact("deployment"), self._store.fact("producer")
        if owner == (None, None):
            enrollment = self._identifiers()
            try:
                # A registration that cannot be sent must not be stored.
                Registration(self.job.deployment, self.name, enrollment, first_epoch)
            except CodecError as error:
                raise ProducerError(str(error)) from None
            with self._store.transaction():
                self._store.set_fact("deployment", self.job.deployment)
                self._store.set_fact("producer", self.name)
                self._store.set_fact("enrollment", enrollment)
                self._store.set_fact("first_epoch", first_epoch)
        elif owner != (self.job.deployment, self.name):
            raise ProducerError(
                f"{directory} belongs to another producer or deployment: use a separate directory "
                "for each producer and deployment"
            )

    def _restore(self) -> None:
        arrays = self._store.arrays()
        # Horizon of the last closed epoch, or of the next one if no epoch is closed yet.
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
                f"cannot use the state of producer {self.name} in {directory}: {what}. No "
                "reports were drawn. Check free disk space and that the folder is intact and "
                "yours, then try again"
            ) from error

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """Context that rolls back to the stored state if a draw cannot be stored.

        Values set for the open epoch, which are only in memory, are kept.
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
                f"cannot write the state of producer {self.name}: {error}. Nothing was sent. "
                "Free some space and try again"
            ) from error

    def _check_open(self, epoch: int) -> None:
        if epoch <= self.closed_epoch:
            raise ProducerError(
                f"epoch {epoch} is closed: its reports were drawn and cannot be drawn again"
            )
        if self.job.last_epoch is not None and epoch > self.job.last_epoch:
            raise ProducerError(
                f"epoch {epoch} is out of range: the last epoch of job {self.job.name} is "
                f"{self.job.last_epoch}. Deploy a new job to continue"
            )
        if self._times is not None and self._clock is not None:
            rejection = self._times.rejection(epoch, self._clock())
            if rejection is not None:
                raise ProducerError(
                    f"{rejection}: no reports were drawn. Report the epoch after its start"
                )

    def _most(self, epoch: int) -> int | None:
        shuffling = self.job.protocol_entry.shuffling
        if shuffling is None:
            return None
        present = int(np.count_nonzero(self._present))
        return shuffling.capacity(self.job.law, self.job.epochs.local(epoch), present)

    def _send(self) -> Steps[None]:
        """Send the outbox, and delete acknowledged records.

        The shuffler that finalizes windows gets its records only after the other shufflers have
        theirs. If a producer's records are complete there, they are complete at all shufflers.
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
            # On a full disk, the records stay, are sent again, and are dropped as duplicates. The
            # error is reported at the next epoch, which cannot be stored either.
            with suppress(sqlite3.Error):
                self._store.delete_sent(last, ends or {})


def cryptographic_generators() -> Generators:
    """Return one generator for all purposes, keyed by the operating system."""
    generator = cryptographic_generator()
    return lambda purpose, number: generator
