"""Jobs: the content of a job file, with every value checked and every default filled in.

A job file is YAML. Four keys are required::

    name: weekly-students
    protocol: future_rand
    parameters: {epsilon: 4, max_changes: 4}
    epochs: {count: 170}

The valid values of the other keys are in field descriptions, here and in the modules of the
sections (`epochs`, `job_sections`, `shuffle`, `sealed` and others). Messages about wrong values
quote these descriptions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cache, cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from dpstream.pipeline.jobs.central import Central, Hiding, hiding, with_local_epsilon
from dpstream.pipeline.jobs.device_reports import DeviceReports
from dpstream.pipeline.jobs.epochs import Epochs, horizons_between
from dpstream.pipeline.jobs.input_formats import AS_IT_IS, InputFormat
from dpstream.pipeline.jobs.job_problems import (
    JobError,
    Problem,
    explain,
    make_from_yaml,
    read_settings,
    shown,
)
from dpstream.pipeline.jobs.job_sections import Budget, Topics
from dpstream.pipeline.jobs.measure_keys import KEYS as MEASURED
from dpstream.pipeline.jobs.measure_keys import Measured, with_measures_in_order
from dpstream.pipeline.jobs.routes import Route, stage_party
from dpstream.pipeline.jobs.sealed import REPLACING, REPLACING_STREAMS, Sealed, added_devices
from dpstream.pipeline.jobs.shuffle import Shuffle, SizedShuffle
from dpstream.pipeline.jobs.wording import KEYS as WORDS
from dpstream.pipeline.protocols.other_packages import ProtocolError
from dpstream.pipeline.protocols.protocol import Law, Protocol
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.replacements import removed_from_job
from dpstream.pipeline.values.value_domains import ValueDomain
from dpstream.randomizers.guarantee import Guarantee
from dpstream.topics.names import (
    FURTHER_REPORTS,
    HOPS,
    JOB_NAME_MAX,
    Role,
    TopicSettings,
    job_topics,
    topic_name,
    validate_job_name,
)

if TYPE_CHECKING:
    from dpstream.topics.shares import ShareFormat


def _job_name(name: str) -> str:
    validate_job_name(name)
    return name


MOST_ROLL_UPS: Final = 8


class Job(Measured):
    """A job with all defaults resolved; `shuffle.grace` and `topics.retention` are in seconds."""

    name: Annotated[str, AfterValidator(_job_name)] = Field(
        description=(
            f"1 to {JOB_NAME_MAX} lower-case letters, digits, - and _, starting with a letter or "
            "digit; in quotes if all are digits"
        )
    )
    protocol: str
    parameters: Any
    epochs: Epochs
    shuffle: Shuffle = Shuffle()
    topics: Topics = Topics()
    population: str | None = Field(
        None,
        pattern=r"^[^\s/]{1,100}$",
        description=(
            "a name for the users this job is about, at most 100 characters, without spaces"
        ),
    )
    budget: Budget | None = None
    central: Central | None = None
    sealed: Sealed | None = None
    devices: DeviceReports | None = None
    input: InputFormat | None = None
    roll_up: tuple[Annotated[int, Field(ge=2)], ...] | None = Field(
        default=None,
        min_length=1,
        max_length=MOST_ROLL_UPS,
        description=(
            f"a list of up to {MOST_ROLL_UPS} window lengths in epochs, each at least 2, such as "
            "[24, 168]"
        ),
    )

    @model_validator(mode="after")
    def _windows_can_be(self) -> Self:
        windows = self.roll_up or ()
        if any(later <= earlier for earlier, later in pairwise(windows)):
            raise ValueError(
                f"roll_up is {shown(list(windows))}; expected distinct numbers in ascending order"
            )
        return self

    @model_validator(mode="after")
    def _sealed_reports_can_be(self) -> Self:
        if self.sealed is not None and self.crowds is not None:
            raise ValueError(
                "attributes has hide_sizes, which cannot be combined with 'sealed': the shuffler "
                "cannot see the group of a sealed report. Remove hide_sizes or 'sealed'"
            )
        if self.sealed is not None and self.shuffle.order == "random":
            raise ValueError(
                "shuffle.order is random, which is redundant: the order of sealed reports depends "
                "on values that no party can choose. Remove shuffle.order"
            )
        return self

    @model_validator(mode="after")
    def _instances_can_be(self) -> Self:
        if self.shuffle.instances > 1 and self.crowds is not None:
            raise ValueError(
                "attributes has hide_sizes, which cannot be combined with shuffle.instances: "
                "deletion requires one shuffler that sees all messages of a group. Remove "
                "hide_sizes or shuffle.instances"
            )
        if self.sealed is not None:
            self.sealed.check_instances(self.shuffle.instances)
        return self

    @model_validator(mode="after")
    def _devices_can_be(self) -> Self:
        if self.devices is None:
            return self
        others = ("hide_sizes", self.crowds), ("sealed", self.sealed)
        excluded = [name for name, section in others if section is not None]
        excluded += ["shuffle.instances"] if self.shuffle.instances > 1 else []
        if excluded:
            raise ValueError(
                f"devices cannot be combined with {' and '.join(excluded)}: a device sends one "
                f"envelope to one shuffler. Remove {' and '.join(excluded)}, or devices. To hide "
                "reports from collectors, use devices.seal"
            )
        from dpstream.randomizers.client.events import PANELS
        from dpstream.randomizers.one_device import PROTOCOLS as DEVICE_PROTOCOLS

        if self.protocol in PROTOCOLS and self.protocol not in DEVICE_PROTOCOLS:
            raise ValueError(
                f"devices cannot be combined with protocol {self.protocol}. Use one of: "
                f"{', '.join(DEVICE_PROTOCOLS)}; or remove 'devices' and report through producers"
            )
        if self.protocol in PANELS and self.measures is None:
            raise ValueError(
                f"devices cannot be combined with protocol {self.protocol} if an app passes the "
                "values. State the questions as 'measures', which devices answer from their own "
                "events"
            )
        if self.epochs.start is None:
            raise ValueError(
                "devices requires a calendar of epochs, because devices report independently. Set "
                "epochs.start and epochs.length"
            )
        if self.epochs.timezone is not None:
            raise ValueError("devices requires epochs in UTC. Remove epochs.timezone or 'devices'")
        if self.measures is not None:
            self._check_schedule()
        if self.devices.late is not None and self.devices.late > self.shuffle.grace:
            raise ValueError(
                "devices.late is longer than shuffle.grace; expected at most shuffle.grace, after "
                "which windows close"
            )
        return self

    def _check_schedule(self) -> None:
        """Raise `ValueError` unless devices report late and independently of use."""
        calendar = self.epochs.calendar
        assert calendar is not None
        if not self.background:
            raise ValueError(
                "devices cannot be combined with measures if the app reports when it is opened: "
                "that a report is missing then tells that the app was not opened, whatever is "
                "measured. Set 'background: true' if reports leave at random times that do not "
                "depend on use; or remove 'devices' and let a gateway report from server events"
            )
        for name in self.public_attributes:
            if (self.attributes or {})[name].enrolled is not None:
                raise ValueError(
                    f"devices cannot be combined with attributes.{name}, because they enroll "
                    "themselves. Use 'values', one of which the app states, or remove 'devices'"
                )
        crossed = {name for question in self.questions for name, _ in question.attributes}
        columns = [
            self.column_of(name) for name in crossed if not (self.attributes or {})[name].first_seen
        ]
        if len(set(columns)) < len(columns):
            raise ValueError(
                "devices with measures require a column of its own for each private attribute. "
                "Change attributes.column"
            )
        # Devices report an epoch during the next one.
        longest = max(
            (calendar.start_of(epoch + 1) - calendar.start_of(epoch)).total_seconds()
            for epoch in range(1, min(self.epochs.count, 12) + 1)
        )
        if self.late < longest or self.shuffle.grace < 2 * longest:
            raise ValueError(
                "devices with measures report an epoch during the next epoch. Set devices.late to "
                f"at least one epoch ({timedelta(seconds=longest)}) and shuffle.grace to at least "
                "two"
            )

    @model_validator(mode="after")
    def _crowds_can_be(self) -> Self:
        crowds, entry = self.crowds, PROTOCOLS.get(self.protocol)
        if crowds is None or entry is None:
            return self
        from dpstream.randomizers.item_domains import MOST_PUBLISHED

        if not entry.one_message:
            able = [name for name, each in PROTOCOLS.items() if each.one_message]
            raise ValueError(
                "attributes has hide_sizes, which requires a protocol with exactly one message per "
                "device and epoch, because deleting a message must remove a whole device. Use one "
                "of: "
                f"{', '.join(able)}"
            )
        items, groups = entry.values(self.parameters).size, len(crowds[1].values)
        if groups * items > MOST_PUBLISHED:
            raise ValueError(
                f"attributes requires {groups * items:,} estimates ({items:,} for each of "
                f"{groups:,} groups); expected at most {MOST_PUBLISHED:,}. Use fewer groups or "
                "items"
            )
        return self

    @model_validator(mode="after")
    def _central_can_be(self) -> Self:
        entry = PROTOCOLS.get(self.protocol)
        if self.central is not None and entry is not None and self.hidden is None:
            raise ValueError(
                f"central is not supported by protocol {self.protocol}. Remove the key"
            )
        return self

    @model_validator(mode="after")
    def _labels_can_be(self) -> Self:
        if self.labels is None or self.protocol not in PROTOCOLS:
            return self
        items = self.domain.nameable
        if items is None:
            return self
        if not items:
            raise ValueError("labels requires a job with a list of items or values. Remove the key")
        strange = [name for name in self.labels if name not in items]
        if strange:
            raise ValueError(
                f"labels has the unknown value {shown(strange[0])}; expected one of: "
                f"{', '.join(map(shown, items[:5]))}{' ...' if len(items) > 5 else ''}"
            )
        return self

    @model_validator(mode="after")
    def _input_can_be(self) -> Self:
        if self.input is not None and self.protocol in PROTOCOLS:
            rejection = self.input.rejection(self.row_domain)
            if rejection is not None:
                raise ValueError(f"input {rejection}")
        return self

    @property
    def input_format(self) -> InputFormat:
        return AS_IT_IS if self.input is None else self.input

    @cached_property
    def protocol_entry(self) -> Protocol:
        """Registry entry of the job's protocol, adapted to groups whose sizes are hidden."""
        entry = PROTOCOLS[self.protocol]
        if self.crowds is None:
            return entry
        from dpstream.pipeline.protocols.crowd_variants import in_crowds

        name, keys = self.crowds
        hidden = keys.hide_sizes
        assert hidden is not None
        column = self.column_of(name).strip()
        return in_crowds(entry, column, keys.values, hidden.epsilon, hidden.delta)

    @property
    def domain(self) -> ValueDomain:
        return self.protocol_entry.values(self.parameters)

    @property
    def row_domain(self) -> ValueDomain:
        return self.domain if self.measures is None else self.event_domain

    @property
    def hidden(self) -> Hiding | None:
        """Reports among which a user's stream is hidden after shuffling; None without any."""
        return hiding(PROTOCOLS[self.protocol], self.parameters)

    @property
    def population_name(self) -> str:
        return self.population if self.population is not None else self.name

    @property
    def last_epoch(self) -> int | None:
        return None if self.epochs.renew else self.epochs.count

    @property
    def first_epoch(self) -> int:
        return 1

    def position_of(
        self, epoch: int, last_epoch: int | None = None, counted_from: int | None = None
    ) -> str:
        """Describe an epoch's position among all epochs and, in a recurring job, its horizon.

        `last_epoch` and `counted_from` (the first epoch) default to those of the job.

        >>> weekly = {"epsilon": 1, "max_changes": 2}
        >>> make_job({"name": "a", "protocol": "future_rand", "parameters": weekly,
        ...           "epochs": {"count": 170, "renew": True}}).position_of(300)
        'epoch 300 (horizon 2)'
        """
        last_epoch = last_epoch or self.last_epoch
        last = "" if last_epoch is None else f" of {last_epoch:,}"
        first = counted_from or self.first_epoch
        number = horizons_between(first, epoch, self.epochs.count)
        horizon = [f"horizon {number:,}"] if self.epochs.renew else []
        return f"epoch {self.epochs.dated(epoch, last, horizon)}"

    def guarantee_of(self, law: Law) -> Guarantee:
        """Return a mechanism's guarantee for every user; in a recurring job, it is per horizon."""
        devices = self.protocol_entry.randomizer(law)
        guarantee = devices.guarantee
        if self.sealed is not None:
            trust, sealing = guarantee.trust, self.sealed.trust(self.shuffle.instances)
            if self.shared and self.added_by_each(law):
                trust = "the two aggregators, not to collude with each other"
            trusted = [trust, sealing, *self._replacing(law)]
            guarantee = replace(guarantee, trust="; ".join(trusted))
        if self.devices is not None and self.protocol_entry.shuffling is not None:
            trust = f"{guarantee.trust}; {self.devices.trust}"
            guarantee = replace(guarantee, trust=trust)
        if self.shuffle.instances > 1 and self.protocol_entry.shuffling is not None:
            # `calibrate` has reserved this part of delta for messages that are divided a second
            # time.
            delta = math.nextafter(guarantee.delta, 1) if guarantee.delta else 0.0
            guarantee = replace(guarantee, delta=delta)
        if self.shuffle.instances > 1:
            guarantee = replace(
                guarantee,
                trust=f"{guarantee.trust}; {self.shuffle.trust(sealed=self.sealed is not None)}",
            )
        if self.central is not None:
            hidden = self.hidden
            assert hidden is not None
            shuffled = self.central.promised(self.shuffle.minimum, hidden)
            guarantee = replace(guarantee, shuffled=shuffled)
        if self.epochs.renew:
            return replace(guarantee.over(1), rolling=devices.rolling)
        return guarantee

    def _replacing(self, law: Law) -> Iterator[str]:
        """Yield sentences on what a sealed job guarantees if a party replaces or drops reports."""
        if added := self.added_by_each(law):
            yield added_devices(added, shared=self.shared)
        elif self.protocol_entry.shuffling is not None:
            yield REPLACING
        elif self.central is not None:
            yield REPLACING_STREAMS

    def topic(self, role: Role) -> str:
        return topic_name(self.name, role)

    def topic_settings(self) -> dict[Role, TopicSettings]:
        topics = self.topics
        return job_topics(
            self.name,
            topics.partitions,
            topics.replication,
            topics.retention_ms,
            hops=self.route.hops,
            further_reports=self.route.reports[1:],
            shared=self.shared,
            devices=self.devices is not None,
        )

    @property
    def route(self) -> Route:
        reports = (Role.REPORTS, *FURTHER_REPORTS[: self.shuffle.instances - 1])
        hops: tuple[Role, ...] = ()
        if self.sealed is not None and self.shuffle.instances == 1:
            hops = HOPS[: max(0, len(self.sealed.stages) - 1)]
        return Route(reports, hops, self.shared)

    @property
    def shared(self) -> bool:
        """True if reports are counted in tables and two parties each aggregate a share."""
        return self.sealed is not None and bool(self.sealed.shares)

    @property
    def late(self) -> float:
        """Time in seconds after an epoch's end during which collectors accept its reports."""
        assert self.devices is not None
        return self.shuffle.grace / 2 if self.devices.late is None else self.devices.late

    @property
    def later_parties(self) -> tuple[str, ...]:
        """Parties in a sealed job that decrypt reports after the first stage."""
        if self.sealed is None:
            return ()
        first = [stage_party(index) for index in range(self.shuffle.instances)]
        return tuple(party for party in self.sealed.parties if party not in first)

    def added_by_each(self, law: Law, entry: Protocol | None = None) -> int:
        """Return the number of devices without a value that each later party adds to a window.

        This is the number of honest users that the guarantee needs. The guarantee therefore holds
        regardless of which reports another party replaces. The number is 0 if the job is not sealed
        or the guarantee needs no honest users.
        """
        entry = entry or self.protocol_entry
        if self.sealed is None or entry.shuffling is None:
            return 0
        return entry.contributors(law) or 0

    def added_by_all(self, law: Law, entry: Protocol | None = None) -> int:
        return self.added_by_each(law, entry) * len(self.later_parties)

    @property
    def seals_batches(self) -> bool:
        return self.sealed is not None and bool(self.sealed.stages)

    def calibrate(self) -> Law:
        """Return the mechanism (`Law`) with the best estimates under the declared guarantee.

        Raises `JobError` if no mechanism exists for the job's parameters and horizon.
        """
        try:
            law = self.protocol_entry.calibrate(
                self._calibrated, self.epochs.count, self.shuffle.minimum
            )
        except ValueError as error:
            raise JobError([Problem(("parameters",), str(error))]) from error
        if self.shuffle.instances > 1 and self.protocol_entry.stage_adds_noise(law):
            raise JobError(
                [
                    Problem(
                        ("shuffle", "instances"),
                        "the shuffler adds the dummy messages of this job, but the dummy messages "
                        "of one parallel shuffler do not hide what another one sees. Let devices "
                        "send dummy messages: set parameters.dummies to poisson",
                    )
                ]
            )
        if self.sealed is not None and self.protocol_entry.stage_adds_noise(law):
            raise JobError(
                [
                    Problem(
                        ("sealed",),
                        "the shuffler adds the dummy messages of this job, which sealed reports "
                        "do not support. Let devices send dummy messages: set parameters.dummies "
                        "to poisson",
                    )
                ]
            )
        if self.shared:
            self.share_format(law)
        for window in self.roll_up or ():
            if (problem := self.window_problem(law, window)) is not None:
                raise JobError([Problem(("roll_up",), f"{window}: {problem}")])
        return law

    def window_problem(self, law: Law, window: int) -> str | None:
        """Return why means over `window` epochs have no interval; None if they have one."""
        entry, domain = self.protocol_entry, self.domain
        if self.last_epoch is not None and window > self.last_epoch:
            return (
                f"the job has {self.last_epoch:,} epochs; expected a window of at most that length"
            )
        longest = entry.longest_window(law)
        if longest is not None and window > longest:
            return (
                f"in a window of more than {longest:,} epochs a device answers more than once, "
                "and its answers are correlated, so the mean has no known interval; expected at "
                f"most {longest:,} epochs"
            )
        if entry.sampled is not None and domain.kind == "found":
            return (
                "top items are searched in the answers of several epochs together; set "
                "parameters.window, or use 'dpstream query' with --epochs for any window"
            )
        # Ranges and quantiles of means are known if the epochs are samples of different users.
        kinds = ("value", "items", "numbers" if entry.sampled else "items")
        if domain.kind not in kinds or domain.column:
            return (
                "means over windows require a single count, a list of items, the same at every "
                "epoch, or numbers of sampled_response, and no crowds"
            )
        errors = entry.aggregation.window_errors(law, self.parameters)
        if entry.lasting_noise(law) or (errors is None and not entry.per_epoch):
            return (
                f"protocol {entry.name}: the published data do not show how the errors of its "
                "epochs are correlated, so the mean has no interval; use sampled_response, "
                "value_stream, shuffled_counts or a protocol with independent epochs"
            )
        return None

    @property
    def _calibrated(self) -> Any:
        entry, parameters = self.protocol_entry, self.parameters
        if self.epochs.renew:
            parameters = entry.recurring(parameters)
        if entry.shuffling is None:
            return parameters
        return self.shuffle.spared(parameters, self.epochs.count)

    def share_format(self, law: Law) -> ShareFormat:
        """Return the format of the tables with report counts, each of which is sent as two shares.

        Raises `JobError` if a table would have too many cells, or a count could exceed its cell.
        """
        from dpstream.topics.fixed_sizes import table_cells
        from dpstream.topics.shares import MOST_ALIKE, MOST_SHARED, ShareFormat

        cells = table_cells(self.protocol_entry.message_format(law))
        if cells is None or cells > MOST_SHARED:
            different = "too many" if cells is None else f"{cells:,}"
            raise JobError(
                [
                    Problem(
                        ("sealed", "shares"),
                        f"require a table with a count for every possible report; {self.protocol} "
                        f"with these parameters has {different} possible reports; expected at "
                        f"most {MOST_SHARED:,}. Seal every report instead with 'aggregate' and "
                        "'stages', or use another protocol or a smaller domain",
                    )
                ]
            )
        most = self.protocol_entry.most_alike(law, 1, self.shuffle.minimum)
        if most > MOST_ALIKE:
            raise JobError(
                [
                    Problem(
                        ("shuffle", "minimum"),
                        f"{self.shuffle.minimum:,} devices can send up to {most:,} identical "
                        f"reports, but a table sent in shares counts at most {MOST_ALIKE:,}. Use "
                        "a smaller minimum, or seal every report with 'aggregate' and 'stages'",
                    )
                ]
            )
        return ShareFormat(cells)

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json", include=set(Job.model_fields), exclude=self._absent)

    @property
    def _absent(self) -> set[str]:
        names = (*WORDS, *MEASURED, "central", "sealed", "devices", "input", "roll_up")
        return {name for name in names if getattr(self, name) is None}


def load_job(path: Path) -> Job:
    return parse_job(read_settings(path, "job file"), source=str(path), folder=path.parent)


def parse_job(text: str, source: str = "job", folder: Path = Path()) -> Job:
    """Parse a job file; `source` names it in messages, file names are relative to `folder`.

    >>> job = parse_job('''
    ... name: students
    ... protocol: future_rand
    ... parameters: {epsilon: 4, max_changes: 4}
    ... epochs: {count: 170, start: 2013-10-01, length: P1W}
    ... ''')
    >>> job.last_epoch, job.shuffle.minimum, str(job.epochs.length)
    (170, 100, 'P7D')

    Raises:
        JobError: One line per problem, with file, line, key and valid values.
    """
    return make_from_yaml(text, source, lambda values: make_job(values, folder))


def make_job(values: Mapping[str, Any], folder: Path = Path()) -> Job:
    """Construct a job from JSON values of a job file; file names are relative to `folder`.

    Raises `JobError` with one line per problem, with key and valid values.
    """
    with _of_protocol():
        PROTOCOLS.check(str(values.get("protocol")))
        PROTOCOLS.get(str(values.get("protocol")))
    return validate(Job, with_local_epsilon(_completed(values, folder)))


_COMPLETING: Final = {
    "attributes": ("domains", "with_attributes"),
    "measures": ("measured_jobs", "with_measures"),
    "domain": ("domains", "with_domain"),
    "sealed": ("sealed", "with_public_keys"),
    "devices": ("device_reports", "with_device_keys"),
}
"""Module and function that complete a section or parameter or read its files, by key, in order."""


def _completed(values: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    parameters = values.get("parameters")
    keys = {*values, *(parameters if isinstance(parameters, Mapping) else ())}
    for key, (module, function) in _COMPLETING.items():
        if key in keys:
            read = getattr(import_module(f"dpstream.pipeline.jobs.{module}"), function)
            values = read(values, folder)
    return values


JobType = TypeVar("JobType", bound=Job)


def validate(model: type[JobType], values: Mapping[str, Any]) -> JobType:
    with _of_protocol():
        protocol = PROTOCOLS.get(str(values.get("protocol")))
    exact = _for_no_protocol(model) if protocol is None else _for_protocol(model, protocol)
    try:
        # In strict mode for JSON, text is not a number, but a list is valid for a tuple.
        return exact.model_validate_json(json.dumps(with_measures_in_order(values)))
    except ValidationError as error:
        removed = removed_from_job(values)
        if protocol is not None:
            removed.pop(("protocol",), None)
        raise JobError(
            [
                replace(problem, message=removed[problem.path])
                if problem.path in removed
                else problem
                for problem in explain(error, exact)
            ]
        ) from None


@contextmanager
def _of_protocol() -> Iterator[None]:
    """Context in which errors in a protocol from another package count as errors in "protocol"."""
    try:
        yield
    except ProtocolError as error:
        raise JobError([Problem(("protocol",), str(error))]) from None


@cache
def _for_protocol(model: type[JobType], protocol: Protocol) -> type[JobType]:
    shuffle = (SizedShuffle, ...) if protocol.shuffling is not None else (Shuffle, Shuffle())
    fields: dict[str, Any] = {"parameters": (protocol.parameters, ...), "shuffle": shuffle}
    return create_model(model.__name__, __base__=model, **fields)


def _for_no_protocol(model: type[JobType]) -> type[JobType]:
    """Return a model that reports an unknown protocol together with the job's other problems."""
    registered = Field(description=f"one of {', '.join(PROTOCOLS)}")
    fields: dict[str, Any] = {"protocol": (Literal[tuple(PROTOCOLS)], registered)}
    return create_model(model.__name__, __base__=model, **fields)
