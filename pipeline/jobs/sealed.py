"""Section `sealed` of a job file: public keys to which reports are sealed, and their periods.

::

    sealed: {aggregate: aggregate.pub, stages: [stage-a.pub, stage-b.pub]}

Each file contains the public key of a party, which keeps the private key secret. A list contains
successive keys::

    sealed: {aggregate: [aggregate-1.pub, aggregate-2.pub], stages: [[a-1.pub, a-2.pub]],
             rotate: 90}

After a key period, its private key can be erased. Data sealed to it can then never be opened.

Several shufflers are chained or, with `shuffle.instances`, parallel. Each of them has its own key,
so no other shuffler can open what a producer sends to it::

    shuffle: {minimum: 100000, instances: 2}
    sealed: {aggregate: aggregate.pub, stages: [instance-1.pub, instance-2.pub]}

If reports are counts of a table's cells, two parties can instead aggregate one share of each table.
Neither party learns more than the sum::

    sealed: {shares: [a.pub, b.pub]}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from dpstream.pipeline.jobs.job_problems import JobError, Problem, shown
from dpstream.pipeline.jobs.routes import SHARERS, stage_party
from dpstream.pipeline.jobs.shuffle import MOST_INSTANCES
from dpstream.pipeline.jobs.wording import Section
from dpstream.topics.names import HOPS

if TYPE_CHECKING:
    from dpstream.pipeline.jobs.job_files import Job

SEALING_KEY_BYTES: Final = 32
"""Length of a public key for sealed reports, in bytes."""

PublicKey = Annotated[
    str,
    Field(
        pattern=f"^[0-9a-f]{{{2 * SEALING_KEY_BYTES}}}$",
        description="a public key file, as written by dpstream keygen",
    ),
]
PeriodKeys = Annotated[tuple[PublicKey, ...], Field(min_length=1)]

MOST_IN_SERIES: Final = 1 + len(HOPS)
MOST_STAGES: Final = max(MOST_IN_SERIES, MOST_INSTANCES)
AGGREGATE: Final = "aggregate"
"""Party that decrypts the innermost ciphertext."""


REPLACING = (
    "the guarantee fails if a shuffler replaces or drops reports: it could isolate one device, "
    "which then has only the guarantee of unshuffled reports"
)
"""Limit of a guarantee if no party adds devices: a stage can replace reports it cannot read."""
REPLACING_STREAMS = (
    "the guarantee of shuffled streams does not hold against a shuffler that replaces or drops "
    "reports; the local guarantee does"
)
"""Limit of the guarantee in a sealed job with `central`."""


def added_devices(devices: int, *, shared: bool) -> str:
    parties = "each aggregator" if shared else "each party after the first shuffler"
    return (
        f"{parties} adds the reports of {devices:,} devices without a value, so the guarantee "
        "holds even if any one shuffler or aggregator replaces or drops reports"
    )


class Sealed(Section):
    """Public keys (hexadecimal) of all parties that decrypt reports, in the order of the data flow.

    Attributes:
        aggregate: Keys of the aggregator, by key period.
        stages: Keys of each chained or parallel shuffler, by key period.
        shares: Keys of each of the two share aggregators, by key period; excludes `aggregate`
            and `stages`.
        rotate: Number of epochs per key; the last key of a party has no end.
    """

    aggregate: PeriodKeys = Field(
        default=(), description="a public key, or a list of successive keys"
    )
    stages: Annotated[tuple[PeriodKeys, ...], Field(min_length=1, max_length=MOST_STAGES)] = Field(
        default=(),
        description=(
            f"a list of 1 to {MOST_IN_SERIES} entries, one per shuffler (or instance, with "
            "shuffle.instances): a public key, or a list of successive keys"
        ),
    )
    shares: Annotated[tuple[PeriodKeys, ...], Field(min_length=2, max_length=2)] = Field(
        default=(),
        description="a list of 2 entries, one per aggregator: a public key, or a list of "
        "successive keys",
    )
    rotate: int | None = Field(
        default=None, ge=1, description="epochs per key period, an integer of at least 1"
    )

    @model_validator(mode="after")
    def _keys_have_periods(self) -> Self:
        if self.shares and (self.aggregate or self.stages):
            raise ValueError(
                "'shares' cannot be combined with 'aggregate' or 'stages': two aggregators sum "
                "shares, and no party opens or shuffles reports. Remove 'shares', or the others"
            )
        if not self.shares and not (self.aggregate and self.stages):
            missing = "stages" if self.aggregate else "aggregate"
            raise ValueError(
                f"{missing} is missing. Set either 'aggregate' and 'stages', or only 'shares', to "
                "the public keys of the parties"
            )
        parties = (self.aggregate, *self.stages, *self.shares)
        if self.rotate is None and any(len(keys) > 1 for keys in parties):
            raise ValueError(
                "rotate is missing; expected the number of epochs for which each key is used"
            )
        keys = list(chain(*parties))
        if len(set(keys)) < len(keys):
            raise ValueError(
                "a key is listed twice; expected a different key for every party and key period"
            )
        return self

    @model_serializer(mode="wrap")
    def _without_other_parties(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        absent = ("aggregate", "stages") if self.shares else ("shares",)
        return {key: value for key, value in values.items() if key not in absent}

    @property
    def parties(self) -> dict[str, tuple[bytes, ...]]:
        """Keys of each party, by key period.

        Parties are "stage 1", "stage 2" ... and "aggregate"; with shares, "aggregate-a" and
        "aggregate-b".
        """
        by_party = dict(zip(SHARERS, self.shares, strict=False))
        if not self.shares:
            stages = {stage_party(index): keys for index, keys in enumerate(self.stages)}
            by_party = {**stages, AGGREGATE: self.aggregate}
        return {party: tuple(map(bytes.fromhex, keys)) for party, keys in by_party.items()}

    def check_instances(self, instances: int) -> None:
        stages = len(self.stages)
        if instances == 1 and stages > MOST_IN_SERIES:
            raise ValueError(
                f"sealed.stages lists {stages} chained shufflers; expected at most "
                f"{MOST_IN_SERIES}. List fewer, or set shuffle.instances for parallel shufflers"
            )
        if instances > 1 and self.shares:
            raise ValueError(
                "shufflers do not open shares, so parallel shufflers have nothing to divide. "
                "Remove shuffle.instances, or seal every report instead with 'aggregate' and "
                "'stages'"
            )
        if instances > 1 and stages != instances:
            raise ValueError(
                f"shuffle.instances is {instances}, but sealed.stages has "
                f"{stages} key{'s' * (stages != 1)}. List one key (or a list of successive keys) "
                "for each instance, in order. Chained shufflers require one instance"
            )

    def trust(self, instances: int) -> str:
        if self.shares:
            return (
                "no shuffler reads a report, and neither aggregator learns more than the sum over "
                "all producers; if both collude, they can see each producer's table; a malicious "
                "producer can corrupt the sum"
            )
        if instances > 1:
            return (
                "reports are sealed: no shuffler can read a report; each shuffler opens the "
                "messages drawn for it with its own key; linking reports to their senders "
                f"requires all {instances} shufflers and the aggregator to collude; the aggregator "
                f"and one shuffler together see 1/{instances} of a device's messages on average"
            )
        stages = len(self.stages)
        all_stages = "the shuffler" if stages == 1 else f"all {stages} shufflers"
        return (
            "reports are sealed: no shuffler can read a report, and linking reports to their "
            f"senders requires {all_stages} and the aggregator to collude"
        )

    def public_key(self, party: str, epoch: int) -> bytes:
        keys = self.parties[party]
        period = 0 if self.rotate is None else (epoch - 1) // self.rotate
        return keys[min(period, len(keys) - 1)]

    def last_epoch_of(self, party: str, period: int) -> int | None:
        if self.rotate is None or period == len(self.parties[party]) - 1:
            return None
        return (period + 1) * self.rotate


def sealing_periods(job: Job) -> list[tuple[str, bytes, int | None]]:
    """Return each key in a job: its party, the public key, and its last epoch (None: no end)."""
    if job.devices is not None:
        return [(stage_party(0), key, last) for key, _, last in job.devices.periods()]
    if job.sealed is None:
        return []
    return [
        (party, key, job.sealed.last_epoch_of(party, period))
        for party, keys in job.sealed.parties.items()
        for period, key in enumerate(keys)
    ]


def with_public_keys(values: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """Return a job file's values, with the file names in `sealed` replaced by the files' keys."""
    sealed = values.get("sealed")
    if not isinstance(sealed, Mapping):
        return values
    read: dict[str, Any] = dict(sealed)
    if "aggregate" in sealed:
        read["aggregate"] = read_periods(sealed["aggregate"], folder, "sealed", "aggregate")
    for key in ("stages", "shares"):
        if isinstance(sealed.get(key), list | tuple):
            read[key] = [
                read_periods(keys, folder, "sealed", key, index)
                for index, keys in enumerate(sealed[key])
            ]
    return {**values, "sealed": read}


def read_periods(keys: object, folder: Path, *place: str | int) -> list[object]:
    """Read public keys from one file or several; messages locate the file names by `place`."""
    listed: Sequence[object] = keys if isinstance(keys, list | tuple) else [keys]
    return [_key(key, folder, place) for key in listed]


def _key(key: object, folder: Path, where: tuple[str | int, ...]) -> str:
    if not isinstance(key, str):
        raise JobError([Problem(where, f"{shown(key)} is not the name of a file")])
    if len(key) == 2 * SEALING_KEY_BYTES and not set(key) - set("0123456789abcdef"):
        return key
    from dpstream.pipeline.jobs.key_files import WrongKeyError
    from dpstream.pipeline.jobs.sealing_keys import read_public_key

    try:
        return read_public_key(folder / key).hex()
    except WrongKeyError as error:
        raise JobError([Problem(where, str(error))]) from None
