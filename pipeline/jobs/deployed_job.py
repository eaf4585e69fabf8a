"""Deployed jobs: a job, the constants that devices and servers share, and its start offsets.

`deploy_job` determines these values once. Every device, stage and reader takes them from the record
in ``dpstream.jobs``. A *deployment* is one run of a job, identified by random bytes. The
*fingerprint* is a digest of everything that gives a report its meaning. Both are in every record of
the job. Records of another deployment or fingerprint are rejected.
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
from dpstream.pipeline.protocols.protocol import Aggregator, Law, StageDummies, StageSum
from dpstream.randomizers.devices import Devices
from dpstream.randomizers.guarantee import Guarantee
from dpstream.topics.message_formats import MessageFormat
from dpstream.topics.names import Role

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dpstream.pipeline.jobs.locks import Locks
    from dpstream.randomizers.crowds import CrowdsLaw
    from dpstream.topics.envelopes import ContentFormat
    from dpstream.topics.shares import ShareFormat

IDENTIFIER_BYTES = 16
MANY_PRODUCERS = 100
"""Smallest ``shuffle.producers`` for which manifests encode differences from earlier manifests."""

# Parameters that change how reports are read, or how many exist, but not a report's meaning.
_OUTSIDE_FINGERPRINT = {"estimator", "messages_per_user", "test_set", "window"}

_OF_EVENTS = ("measures", "attributes", "by", "trust")
"""Keys that say which answers devices compute from their events."""


def _from_hexadecimal(length: int) -> PlainValidator:
    def read(text: object) -> bytes:
        if not isinstance(text, str) or len(text) != 2 * length:
            raise ValueError(f"expected {length} bytes in hexadecimal")
        return bytes.fromhex(text)

    return PlainValidator(read)


_AS_HEXADECIMAL = PlainSerializer(lambda value: value.hex(), str)
Identifier = Annotated[bytes, _from_hexadecimal(IDENTIFIER_BYTES), _AS_HEXADECIMAL]
Digest = Annotated[bytes, _from_hexadecimal(32), _AS_HEXADECIMAL]
Offsets = tuple[Annotated[int, Field(ge=0)], ...]


class SignedDescription(Section):
    """Job description for devices, signed by the operator; see `descriptions`.

    `statement` is canonical JSON. `signature` is an Ed25519 signature (64 bytes), and `signer` is
    the public key (32 bytes) built into the app.
    """

    statement: str
    signature: Annotated[bytes, _from_hexadecimal(64), _AS_HEXADECIMAL]
    signer: Digest

    def encoded(self) -> dict[str, str]:
        """Return the description as JSON; base64 keeps the exact bytes that are signed."""
        parts = {
            "statement": self.statement.encode(),
            "signature": self.signature,
            "signer": self.signer,
        }
        return {name: base64.b64encode(part).decode() for name, part in parts.items()}


class Origin(Section):
    job: str = Field(description="the name of the job that ran")
    deployment: Identifier = Field(description="16 bytes in hexadecimal")
    first_epoch: int = Field(default=1, ge=1, description="an integer of at least 1")


class DeployedJob(Job):
    """A job with the values that are added at deployment.

    Attributes:
        deployment, fingerprint: 16 random bytes, and 16 bytes of `fingerprint_of`.
        constants: Calibrated mechanism (`Law`), as JSON.
        start_offsets: The deployment's first offset in each partition, by topic.
        topic_ids: Kafka's topic IDs; empty if the cluster has none.
        deployed_at: Time of deployment, milliseconds since 1970.
        horizons: Number of horizons that a recurring job's budget allows; None if unlimited.
        noise_key: SHA-256 of the noise key that the shuffle workers share; None if they need no
            key, or if the key does not exist yet.
        collector_key: SHA-256 of the key shared by the collectors; None without collectors.
        replay_of: Origin of a replay, which has no devices and no shuffler, and charges no user.
    """

    version: Literal[1] = Field(
        default=1, description="1; a higher version requires newer software"
    )
    deployment: Identifier = Field(description="16 bytes in hexadecimal")
    fingerprint: Identifier = Field(description="16 bytes in hexadecimal")
    constants: dict[str, Any]
    start_offsets: dict[Role, Offsets]
    topic_ids: dict[Role, str] = Field(default_factory=dict)
    deployed_at: int = Field(ge=0)
    horizons: int | None = Field(default=None, ge=1, description="an integer of at least 1")
    noise_key: Digest | None = Field(default=None, description="32 bytes in hexadecimal")
    collector_key: Digest | None = Field(default=None, description="32 bytes in hexadecimal")
    signed_description: SignedDescription | None = None
    replay_of: Origin | None = None

    @model_validator(mode="after")
    def _every_partition_begins_somewhere(self) -> Self:
        wanted = self.topic_settings()
        for role in wanted.keys() | self.start_offsets.keys():
            if role not in wanted:
                raise ValueError(
                    f"start_offsets has topic {role}, which protocol {self.protocol} does not use"
                )
            offsets, settings = self.start_offsets.get(role, ()), wanted[role]
            if len(offsets) != settings.partitions:
                raise ValueError(
                    f"start_offsets has {len(offsets)} offsets for {role}; expected "
                    f"{settings.partitions}, one per partition"
                )
        return self

    @property
    def last_epoch(self) -> int | None:
        if self.epochs.renew and self.horizons is not None:
            return (self.epochs.horizon_of(self.first_epoch) + self.horizons) * self.epochs.count
        return super().last_epoch

    def start_offset(self, role: Role, partition: int = 0) -> int:
        return self.start_offsets[role][partition]

    def cursor(
        self,
        role: Role,
        visit: Callable[[LogRecord], object],
        partition: int = 0,
        visit_all: Callable[[Sequence[LogRecord]], object] | None = None,
    ) -> LogCursor:
        start = self.start_offset(role, partition)
        return LogCursor(role, start, visit, partition, visit_all)

    @cached_property
    def law(self) -> Law:
        return self.protocol_entry.law(self.parameters).from_json(self.constants)

    @cached_property
    def change_limit(self) -> ChangeLimit | None:
        return self.protocol_entry.aggregation.change_limit(
            self.law, self.parameters, self.epochs.count
        )

    @cached_property
    def first_shown(self) -> NDArray[np.int64] | None:
        """First epoch at which each row of the results is shown; None if all rows always are."""
        if not any(keys.spare or keys.named for keys in (self.attributes or {}).values()):
            return None
        from dpstream.pipeline.jobs.spare_cells import first_shown

        return first_shown(self)

    @property
    def added_epochs(self) -> int | None:
        """Number of epochs that an estimate covers; see `Aggregation.added_epochs`."""
        return self.protocol_entry.aggregation.added_epochs(self.law, self.parameters)

    @property
    def assumes_changes(self) -> int | None:
        return None if self.change_limit is None else self.change_limit.max_changes

    @cached_property
    def stage_dummies(self) -> StageDummies | None:
        return self.protocol_entry.stage_dummies(self.law)

    @cached_property
    def stage_sum(self) -> StageSum | None:
        return self.protocol_entry.stage_sum(self.law)

    @cached_property
    def crowds_law(self) -> CrowdsLaw | None:
        return self.protocol_entry.crowds(self.law)

    @property
    def needs_noise_key(self) -> bool:
        return self.protocol_entry.stage_adds_noise(self.law) or self.crowds_law is not None

    @property
    def counts_devices(self) -> bool:
        """True if public numbers count devices instead of messages.

        The number of devices is public. The number of messages can be secret, or messages can be
        chunks of tables instead of reports.
        """
        return self.protocol_entry.shuffling is not None or self.shared

    @cached_property
    def message_format(self) -> MessageFormat:
        return self.protocol_entry.message_format(self.law)

    @cached_property
    def content_format(self) -> ContentFormat:
        from dpstream.topics.envelopes import ContentFormat

        form, shuffling = self.message_format, self.protocol_entry.shuffling
        slots = 1
        if shuffling is not None:
            # Most messages are due when most intervals end: at powers of two.
            powers = {1 << order for order in range(self.epochs.count.bit_length())}
            epochs = powers | {self.epochs.count}
            slots = max(shuffling.capacity(self.law, epoch, 1) for epoch in epochs)
        return ContentFormat(slots, form.width, form.dtype.itemsize)

    @property
    def first_epoch(self) -> int:
        """First epoch that can be reported.

        If devices report for themselves, it is the epoch in which the deployment starts. Producers
        can also report past epochs; the first epoch that they report is in manifests.
        """
        if self.replay_of is not None:
            return self.replay_of.first_epoch
        if self.devices is None:
            return 1
        assert self.epochs.calendar is not None
        moment = datetime.fromtimestamp(self.deployed_at / 1000, UTC)
        return max(1, self.epochs.calendar.epoch_of(moment))

    @cached_property
    def table_format(self) -> ShareFormat:
        return self.share_format(self.law)

    def format_of(self, role: Role) -> MessageFormat:
        if self.stage_sum is not None and role is Role.SHUFFLED:
            return self.stage_sum.form
        if self.sealed is None:
            return self.message_format
        if self.shared:
            return self.table_format.row_format
        from dpstream.topics.sealed_messages import sealed_format

        return sealed_format(self.message_format, len(self.locks.parties_after(role)))

    @property
    def locks(self) -> Locks:
        from dpstream.pipeline.jobs.locks import Locks

        assert self.sealed is not None
        # A replay reads data sealed for its original.
        return Locks(self.sealed, self.window_deployment, self.fingerprint, self.route)

    @property
    def window_deployment(self) -> bytes:
        """Deployment of the windows; for a replay, the original deployment."""
        return self.deployment if self.replay_of is None else self.replay_of.deployment

    @property
    def short_manifests(self) -> bool:
        """True if manifests for many producers encode differences from an earlier manifest."""
        return self.shuffle.producers >= MANY_PRODUCERS and self.replay_of is None

    @property
    def partial_window_count(self) -> int:
        """Number of parallel shufflers that write parts of every window; 1 for a replay."""
        return self.shuffle.instances if self.replay_of is None else 1

    def randomizer(self) -> Devices[Any]:
        return self.protocol_entry.randomizer(self.law)

    @cached_property
    def guarantee(self) -> Guarantee:
        return self.guarantee_of(self.law)

    def guarantee_at(self, epoch: int, first_epoch: int) -> Guarantee:
        """Return the guarantee for a user who participates from `first_epoch` to `epoch`."""
        return self.guarantee_over(self.horizons_until(epoch, first_epoch))

    def horizons_until(self, epoch: int, first_epoch: int) -> int:
        """Return the number of horizons charged to a user who participates up to `epoch`."""
        counts_itself = self.replay_of is not None or self.devices is not None
        first = self.first_epoch if counts_itself else first_epoch
        return horizons_between(first, epoch, self.epochs.count)

    def guarantee_over(self, horizons: int) -> Guarantee:
        return self.guarantee.over(horizons) if self.epochs.renew else self.guarantee

    def aggregator(self) -> Aggregator:
        return self.protocol_entry.aggregation.make(self.law, self.parameters)

    def aggregator_from_bytes(self, data: bytes) -> Aggregator:
        return self.protocol_entry.aggregation.read(self.law, self.parameters, data)

    def to_bytes(self) -> bytes:
        # Keys that are written only if set.
        optional = ("replay_of", "collector_key", "signed_description", "topic_ids")
        left_out = self._absent | {name for name in optional if not getattr(self, name)}
        return _canonical(self.model_dump(mode="json", exclude=left_out))

    @classmethod
    def from_bytes(cls, data: bytes) -> DeployedJob:
        """Decode a deployed job from the value of its record.

        Raises `JobError` if the record is invalid or from another version, its protocol is unknown,
        its fingerprint does not match, or its constants exceed the declared privacy loss.
        """
        try:
            values = json.loads(data)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise JobError(
                [Problem((), "not the record of a deployed job: expected a JSON object")]
            )
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
                        f"does not match the values of job {job.name}: the record was altered. "
                        "Deploy the job again",
                    )
                ]
            )
        job._check_constants()
        return job

    def _check_constants(self) -> None:
        try:
            guarantee = self.guarantee
        except ValueError as error:
            raise JobError([Problem(("constants",), f"{error}. Deploy the job again")]) from None
        for name in ("epsilon", "delta"):
            spent, said = getattr(guarantee, name), getattr(self.parameters, name, math.inf)
            where = f"parameters.{name} is"
            if self.crowds is not None:
                from dpstream.randomizers.crowds import sum_rounded_up

                attribute, keys = self.crowds

                said = sum_rounded_up(said, getattr(keys.hide_sizes, name))
                hidden = f"attributes.{attribute}.hide_sizes.{name}"
                where = f"parameters.{name} and {hidden} allow only"
            if spent > said:
                raise JobError(
                    [
                        Problem(
                            ("constants",),
                            f"spend {name} {spent}, but {where} {said}. Deploy the job again",
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
    """Start a deployment: calibrate the protocol and assign the job's identity.

    `start_offsets` are the current end offsets of all topics, or None if the topics are new.
    `deployed_at` is in milliseconds since 1970. `deployment` is 16 bytes, random by default. Raises
    `JobError` if the protocol cannot be calibrated for the job's parameters and horizon.
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
    """Return 16 bytes that change whenever the meaning of a report changes.

    They are the first 16 of a SHA-256 over canonical JSON with the protocol, parameters (without
    `_OUTSIDE_FINGERPRINT`), constants, epochs and ``shuffle.minimum``. If present, it also contains
    measures and breakdowns, a central guarantee, keys and shuffle instances. `values` is a deployed
    job as JSON values. Values that a running job names do not change the bytes.
    """
    if values.get("attributes"):
        from dpstream.pipeline.jobs.spare_cells import as_deployed

        values = as_deployed(values)
    parameters, epochs, shuffle = values["parameters"], values["epochs"], values.get("shuffle", {})
    zone, instances = epochs.get("timezone"), shuffle.get("instances")
    meaning = {
        "protocol": values["protocol"],
        "parameters": {
            key: value for key, value in parameters.items() if key not in _OUTSIDE_FINGERPRINT
        },
        "constants": values["constants"],
        "epochs": {
            **{key: epochs.get(key) for key in ("count", "start", "length")},
            **({"renew": True} if epochs.get("renew") else {}),
            **({"timezone": zone} if zone is not None else {}),
        },
        "minimum": shuffle.get("minimum"),
        **({"instances": instances} if instances not in (None, 1) else {}),
        **({"sealed": values["sealed"]} if values.get("sealed") else {}),
        **({"central": values["central"]} if values.get("central") else {}),
        **{key: values[key] for key in _OF_EVENTS if values.get(key)},
        **_read_by(values.get("devices")),
    }
    return hashlib.sha256(_canonical(meaning)).digest()[:IDENTIFIER_BYTES]


def _read_by(devices: Mapping[str, Any] | None) -> dict[str, Any]:
    if devices is None:
        return {}
    return {"devices": {key: devices[key] for key in ("seal", "rotate") if key in devices}}


def _canonical(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
