"""Deployed jobs: a job, the constants devices and servers agree on, and where its topics begin.

`deploy_job` resolves everything once, and every device, stage and reader works from its record in
``dpstream.jobs``. A *deployment* is one life of a job, named by random bytes. The *fingerprint* is
a digest of what gives a report its meaning. Both are in every record of the job, and records of
another deployment or fingerprint are refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, PlainSerializer, PlainValidator, model_validator

from dpstream.pipeline.actions import LogCursor, LogRecord
from dpstream.pipeline.jobs.epochs import horizons_between
from dpstream.pipeline.jobs.job_files import Job, validate
from dpstream.pipeline.jobs.job_problems import JobError, Problem
from dpstream.pipeline.jobs.wording import Section
from dpstream.pipeline.protocols.change_limits import ChangeLimit
from dpstream.pipeline.protocols.protocol import Aggregator, Exposure, Law, StageDummies, StageSum
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.guarantee import Guarantee
from dpstream.topics.names import Role
from dpstream.topics.word_forms import WordForm

if TYPE_CHECKING:
    from dpstream.pipeline.jobs.locks import Locks
    from dpstream.randomizers.crowds import CrowdsLaw
    from dpstream.topics.envelopes import ContentForm
    from dpstream.topics.shares import ShareForm

IDENTIFIER_BYTES = 16
MANY_PRODUCERS = 100
"""A job that waits for so many has manifests that say what differs from an earlier one."""

# Parameters that change how reports are read and how many there are, not what one says.
_OUTSIDE_FINGERPRINT = {"estimator", "messages_per_user", "test_set"}


def _from_hexadecimal(length: int) -> PlainValidator:
    def read(text: object) -> bytes:
        if not isinstance(text, str) or len(text) != 2 * length:
            raise ValueError(f"not {length} bytes in hexadecimal")
        return bytes.fromhex(text)

    return PlainValidator(read)


_AS_HEXADECIMAL = PlainSerializer(lambda value: value.hex(), str)
Identifier = Annotated[bytes, _from_hexadecimal(IDENTIFIER_BYTES), _AS_HEXADECIMAL]
Digest = Annotated[bytes, _from_hexadecimal(32), _AS_HEXADECIMAL]
Offsets = tuple[Annotated[int, Field(ge=0)], ...]


class SignedDescription(Section):
    """What devices are told of a job, and the operator's word for it; see `descriptions`.

    Attributes:
        statement: canonical JSON.
        signature: of Ed25519, 64 bytes.
        signer: the public key to it, 32 bytes, which an app has built in.
    """

    statement: str
    signature: Annotated[bytes, _from_hexadecimal(64), _AS_HEXADECIMAL]
    signer: Digest

    def told(self) -> dict[str, str]:
        """What collectors answer, as JSON: all of it in base64, so that bytes stay as signed."""
        parts = {
            "statement": self.statement.encode(),
            "signature": self.signature,
            "signer": self.signer,
        }
        return {name: base64.b64encode(part).decode() for name, part in parts.items()}


class Origin(Section):
    """The deployment whose windows a replay aggregates again."""

    job: str = Field(description="the name of the job that ran")
    deployment: Identifier = Field(description="16 bytes in hexadecimal")
    first_epoch: int = Field(default=1, ge=1, description="a whole number from 1 on")


class DeployedJob(Job):
    """A job and what `deploy` added to it.

    Attributes:
        deployment: 16 random bytes.
        fingerprint: 16 bytes, see `fingerprint_of`.
        constants: the calibrated `Law`, as JSON.
        start_offsets: where the deployment begins in each partition of each topic.
        topic_ids: Kafka's ids of the topics it was deployed with; empty where a cluster has none.
        deployed_at: milliseconds since 1970.
        horizons: after how many a job that renews ends, since its budget has no room for more;
            None for one that goes on without end.
        noise_key: SHA-256 of the noise key that its shuffle workers share; None where they need
            none, and until one has been made.
        collector_key: SHA-256 of the key that its collectors share; None where it has none.
        signed_description: what devices are told, where they report for themselves.
        replay_of: of a replay, whose windows it aggregates again; it has no devices and no shuffle
            stage, and charges nobody.
    """

    version: Literal[1] = Field(default=1, description="1, a later version needs later software")
    deployment: Identifier = Field(description="16 bytes in hexadecimal")
    fingerprint: Identifier = Field(description="16 bytes in hexadecimal")
    constants: dict[str, Any]
    start_offsets: dict[Role, Offsets]
    topic_ids: dict[Role, str] = Field(default_factory=dict)
    deployed_at: int = Field(ge=0)
    horizons: int | None = Field(default=None, ge=1, description="a whole number from 1 on")
    noise_key: Digest | None = Field(default=None, description="32 bytes in hexadecimal")
    collector_key: Digest | None = Field(default=None, description="32 bytes in hexadecimal")
    signed_description: SignedDescription | None = None
    replay_of: Origin | None = None

    @model_validator(mode="after")
    def _every_partition_begins_somewhere(self) -> Self:
        wanted = self.topic_settings()
        for role in wanted.keys() | self.start_offsets.keys():
            if role not in wanted:
                raise ValueError(f"start_offsets of {role}, {self.protocol} has no such topic")
            offsets, settings = self.start_offsets.get(role, ()), wanted[role]
            if len(offsets) != settings.partitions:
                raise ValueError(
                    f"start_offsets of {role} are {len(offsets)}, it has {settings.partitions} "
                    "partitions"
                )
        return self

    @property
    def last_epoch(self) -> int | None:
        """Epochs are 1 to this one; None for a job that goes on without end."""
        if self.epochs.renew and self.horizons is not None:
            return (self.epochs.horizon_of(self.first_epoch) + self.horizons) * self.epochs.count
        return super().last_epoch

    def start_offset(self, role: Role, partition: int = 0) -> int:
        """The first offset of a partition that may belong to this deployment."""
        return self.start_offsets[role][partition]

    def cursor(
        self,
        role: Role,
        visit: Callable[[LogRecord], object],
        partition: int = 0,
        visit_all: Callable[[Sequence[LogRecord]], object] | None = None,
    ) -> LogCursor:
        """Shows `visit`, or `visit_all`, a partition from where this deployment begins."""
        start = self.start_offset(role, partition)
        return LogCursor(role, start, visit, partition, visit_all)

    @cached_property
    def law(self) -> Law:
        """The calibrated constants."""
        return self.protocol_entry.law(self.parameters).from_json(self.constants)

    @cached_property
    def change_limit(self) -> ChangeLimit | None:
        """The changes of one person that intervals assume at most; None if they assume nothing."""
        return self.protocol_entry.aggregation.change_limit(
            self.law, self.parameters, self.epochs.count
        )

    @property
    def assumes_changes(self) -> int | None:
        """The number of these changes; None if intervals assume nothing."""
        return None if self.change_limit is None else self.change_limit.changes

    @cached_property
    def stage_dummies(self) -> StageDummies | None:
        """What the shuffle stage adds to every window it releases; None: nothing."""
        return self.protocol_entry.stage_dummies(self.law)

    @cached_property
    def stage_sum(self) -> StageSum | None:
        """How the shuffle stage adds up the words of every window; None: it releases them."""
        return self.protocol_entry.stage_sum(self.law)

    @cached_property
    def crowds_law(self) -> CrowdsLaw | None:
        """By which the shuffle stage deletes messages of every window it releases; None: none."""
        return self.protocol_entry.crowds(self.law)

    @property
    def needs_noise_key(self) -> bool:
        """Whether shuffle workers share a noise key."""
        return self.protocol_entry.stage_adds_noise(self.law) or self.crowds_law is not None

    @property
    def counts_devices(self) -> bool:
        """Whether who watches raw reports is told of devices.

        Their number is no secret; that of messages may be, and pieces of tables are no reports.
        """
        return self.protocol_entry.shuffling is not None or self.shared

    @cached_property
    def word_form(self) -> WordForm:
        """What reports look like."""
        return self.protocol_entry.word_form(self.law)

    @cached_property
    def content_form(self) -> ContentForm:
        """What a device's report looks like, where devices report for themselves."""
        from dpstream.topics.envelopes import ContentForm

        form, shuffling = self.word_form, self.protocol_entry.shuffling
        slots = 1
        if shuffling is not None:
            # Most is due where the most intervals end: at powers of two.
            powers = {1 << order for order in range(self.epochs.count.bit_length())}
            epochs = powers | {self.epochs.count}
            slots = max(shuffling.capacity(self.law, epoch, 1) for epoch in epochs)
        return ContentForm(slots, form.width, form.dtype.itemsize)

    @property
    def first_epoch(self) -> int:
        """The earliest epoch that can be reported.

        For devices that report for themselves: the epoch in which the deployment begins. Producers
        may report the past; manifests hold the first epoch that theirs were registered for.
        """
        if self.replay_of is not None:
            return self.replay_of.first_epoch
        if self.devices is None:
            return 1
        assert self.epochs.calendar is not None
        moment = datetime.fromtimestamp(self.deployed_at / 1000, UTC)
        return max(1, self.epochs.calendar.epoch_of(moment))

    @cached_property
    def table_form(self) -> ShareForm:
        """How tables of counts are shared, of a job whose reports are."""
        return self.share_form(self.law)

    def form_of(self, role: Role) -> WordForm:
        """What reports look like in a topic: as they are, or sealed; or what the stage releases."""
        if self.stage_sum is not None and role is Role.SHUFFLED:
            return self.stage_sum.form
        if self.sealed is None:
            return self.word_form
        if self.shared:
            return self.table_form.row_form
        from dpstream.topics.sealed_words import sealed_form

        return sealed_form(self.word_form, len(self.locks.parties_after(role)))

    @property
    def locks(self) -> Locks:
        """What reports are sealed to, of a job that seals them."""
        from dpstream.pipeline.jobs.locks import Locks

        assert self.sealed is not None
        roles = self.report_roles, self.hops
        # What a replay reads was sealed for its original.
        return Locks(self.sealed, self.window_deployment, self.fingerprint, *roles)

    @property
    def window_deployment(self) -> bytes:
        """The deployment whose windows these are: of a replay that of its original."""
        return self.deployment if self.replay_of is None else self.replay_of.deployment

    @property
    def short_manifests(self) -> bool:
        """Whether manifests may say what differs from an earlier one: where many are waited for."""
        return self.shuffle.producers >= MANY_PRODUCERS and self.replay_of is None

    @property
    def window_parts(self) -> int:
        """How many shuffle instances each write a part of every window; a replay has none."""
        return self.shuffle.instances if self.replay_of is None else 1

    def randomizer(self) -> Devices[Any]:
        """An empty population of devices."""
        return self.protocol_entry.randomizer(self.law)

    def exposure(self) -> Exposure | None:
        """What epsilon is to whoever sees some of a device's reports; None if it has no several."""
        planning = self.protocol_entry.planning
        return None if planning is None else planning.exposure(self.law)

    @cached_property
    def guarantee(self) -> Guarantee:
        """What the job promises every device; for a job that renews, in each horizon."""
        return self.guarantee_of(self.law)

    def guarantee_at(self, epoch: int, first_epoch: int) -> Guarantee:
        """Compute the guarantee of a device that takes part from the first epoch to `epoch`.

        Args:
            epoch: The last epoch that it reports.
            first_epoch: Of the deployment, as its manifests hold it.
        """
        return self.guarantee_over(self.horizons_until(epoch, first_epoch))

    def horizons_until(self, epoch: int, first_epoch: int) -> int:
        """Return how many horizons such a device is charged for; arguments of `guarantee_at`."""
        counts_itself = self.replay_of is not None or self.devices is not None
        first = self.first_epoch if counts_itself else first_epoch
        return horizons_between(first, epoch, self.epochs.count)

    def guarantee_over(self, horizons: int) -> Guarantee:
        """Compute the guarantee of a device that is charged for a number of horizons."""
        return self.guarantee.over(horizons) if self.epochs.renew else self.guarantee

    def aggregator(self) -> Aggregator:
        """An empty state."""
        return self.protocol_entry.aggregation.make(self.law, self.parameters)

    def aggregator_from_bytes(self, data: bytes) -> Aggregator:
        """The state that `Aggregator.to_bytes` wrote; `ValueError` if it cannot have."""
        return self.protocol_entry.aggregation.read(self.law, self.parameters, data)

    def to_bytes(self) -> bytes:
        """The record: canonical JSON, so that equal jobs have equal bytes."""
        # Only in jobs that have them.
        optional = ("replay_of", "collector_key", "signed_description", "topic_ids")
        left_out = self._absent | {name for name in optional if not getattr(self, name)}
        return _canonical(self.model_dump(mode="json", exclude=left_out))

    @classmethod
    def from_bytes(cls, data: bytes) -> DeployedJob:
        """Read a record back.

        Raises:
            JobError: it is no deployed job of this version, its protocol is not known here, its
                fingerprint is not that of its values, or its constants spend more than it says.
        """
        try:
            values = json.loads(data)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise JobError([Problem((), "not the record of a deployed job: no JSON object")])
        job = validate(cls, values)
        try:
            altered = job.fingerprint != fingerprint_of(values)
        except ValueError:
            # Not-a-number has no fingerprint.
            altered = True
        if altered:
            raise JobError(
                [
                    Problem(
                        ("fingerprint",),
                        f"is not that of the values of job {job.name}: the record was altered, "
                        "deploy the job again",
                    )
                ]
            )
        job._check_constants()
        return job

    def _check_constants(self) -> None:
        """Raise `JobError` unless they are a law, and promise what the parameters say."""
        try:
            guarantee = self.guarantee
        except ValueError as error:
            raise JobError([Problem(("constants",), f"{error}: deploy the job again")]) from None
        for name in ("epsilon", "delta"):
            spent, said = getattr(guarantee, name), getattr(self.parameters, name, math.inf)
            where = f"parameters.{name} is"
            if self.crowds is not None:
                from dpstream.randomizers.crowds import sum_rounded_up

                said = sum_rounded_up(said, getattr(self.crowds, name))
                where = f"parameters.{name} and crowds.{name} are together"
            if spent > said:
                raise JobError(
                    [
                        Problem(
                            ("constants",),
                            f"spend {name} {spent}, {where} {said}: deploy the job again",
                        )
                    ]
                )


def deploy_job(
    job: Job,
    *,
    start_offsets: Mapping[Role, tuple[int, ...]] | None = None,
    deployed_at: int,
    deployment: bytes | None = None,
) -> DeployedJob:
    """Begin a deployment: calibrate the protocol, and give the job its identity.

    Args:
        job: what to deploy.
        start_offsets: end offsets of all topics of the job as they are now; None: new topics.
        deployed_at: now, in milliseconds since 1970.
        deployment: 16 bytes; random by default.

    Raises:
        JobError: no constants exist for the job's parameters and horizon.
    """
    if start_offsets is None:
        topics = job.topic_settings()
        start_offsets = {role: (0,) * topic.partitions for role, topic in topics.items()}
    values = {
        **job.to_json(),
        "constants": job.calibrate().to_json(),
        "start_offsets": {role.value: list(offsets) for role, offsets in start_offsets.items()},
        "deployed_at": deployed_at,
        "deployment": (deployment or secrets.token_bytes(IDENTIFIER_BYTES)).hex(),
    }
    return validate(DeployedJob, {**values, "fingerprint": fingerprint_of(values).hex()})


def fingerprint_of(values: Mapping[str, Any]) -> bytes:
    """16 bytes that change whenever the meaning of a report does.

    The first bytes of SHA-256 over the canonical JSON of protocol, parameters (without
    ``estimator``, ``messages_per_user`` and ``test_set``), constants, epochs, the smallest window,
    crowds, a central guarantee, keys and shuffle instances, where there are any. `values` are those
    of a deployed job, as JSON.
    """
    parameters = values["parameters"]
    meaning = {
        "protocol": values["protocol"],
        "parameters": {
            key: value for key, value in parameters.items() if key not in _OUTSIDE_FINGERPRINT
        },
        "constants": values["constants"],
        "epochs": {
            **{key: values["epochs"].get(key) for key in ("count", "start", "length")},
            **({"renew": True} if values["epochs"].get("renew") else {}),
            **_zone(values["epochs"].get("timezone")),
        },
        "minimum": values.get("shuffle", {}).get("minimum"),
        **_several(values.get("shuffle", {}).get("instances")),
        **({"sealed": values["sealed"]} if values.get("sealed") else {}),
        **({"crowds": values["crowds"]} if values.get("crowds") else {}),
        **({"central": values["central"]} if values.get("central") else {}),
        **_read_by(values.get("devices")),
    }
    return hashlib.sha256(_canonical(meaning)).digest()[:IDENTIFIER_BYTES]


def _read_by(devices: Mapping[str, Any] | None) -> dict[str, Any]:
    if devices is None:
        return {}
    return {"devices": {key: devices[key] for key in ("seal", "rotate") if key in devices}}


def _zone(name: object) -> dict[str, Any]:
    return {} if name is None else {"timezone": name}


def _several(instances: object) -> dict[str, Any]:
    return {} if instances in (None, 1) else {"instances": instances}


def _canonical(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
