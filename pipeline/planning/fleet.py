"""What a fleet needs: cores, memory, disks, network and partitions for so many devices.

For an epoch every part of the pipeline takes processor seconds in proportion to three things: that
there is an epoch, the records that gateways send in it, and the bytes of their reports. What each
of them takes was measured on one machine (`fleet_costs`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from pipeline.errors import WRONG_INPUT, DpstreamError
from pipeline.jobs.job_files import Job
from pipeline.planning.fleet_costs import (
    BROKER,
    PARTS,
    CostConstants,
    Traffic,
    cost_constants,
    memory_megabytes,
    processor_seconds,
)
from pipeline.planning.plan import Plan
from pipeline.protocols.protocol import Law
from topics.fixed_sizes import Table, fixed_size, table_cells
from topics.names import FOREVER, segment_ms

REPLICATION: Final = 3
"""Copies of every record, where a job leaves that to the cluster."""
COPIES_OF_A_BROKER: Final = 4_000
"""Copies of partitions that one broker is given at most; Kafka's own rule of thumb is as much."""
BUSY: Final = 0.6
"""Share of a core that may be busy for ever: the rest is for catching up after an outage."""
_YEAR: Final = timedelta(days=365.25).total_seconds()
# Of manifest, stage record, partial and estimate: what is kept for ever of an epoch, at the least.
_KEPT_BYTES: Final = 4_000


class FleetError(DpstreamError):
    """There is no such fleet; the message says what to change."""

    exit_code = WRONG_INPUT


@dataclass(frozen=True, slots=True)
class Fleet:
    """Who is there.

    Attributes:
        devices: that report, all of them at every epoch.
        gateways: producers that hold them, equally many each.
        jobs: alike, of the same devices and gateways.
        epoch_seconds: how long an epoch is.

    Raises:
        FleetError: one of them is not above 0, or there are more gateways than devices.
    """

    devices: int
    gateways: int
    jobs: int
    epoch_seconds: float

    def __post_init__(self) -> None:
        if min(self.devices, self.gateways, self.jobs) < 1 or not self.epoch_seconds > 0:
            raise FleetError("devices, gateways, jobs and the length of an epoch are above 0")
        if self.gateways > self.devices:
            raise FleetError(
                f"{self.gateways:,} gateways for {self.devices:,} devices: a gateway holds one at "
                "least"
            )


@dataclass(frozen=True, slots=True)
class PartNeed:
    """What one part needs, for all jobs.

    Attributes:
        name: of the part.
        busy: cores that are busy on average, of the machine that was measured.
        cores: with room to catch up, whole ones.
        megabytes: of memory, 10^6 bytes each; each job has a process of its own of every stage.
        received: 10^6 bytes a second.
        sent: the same.
    """

    name: str
    busy: float
    cores: int
    megabytes: float
    received: float
    sent: float


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What a fleet needs.

    Attributes:
        fleet: who is there.
        reports: of one job in an epoch.
        records: in which gateways send them, with their punctuation.
        megabytes: of these records, 10^6 bytes each.
        closing_seconds: of one core of the shuffle stage, for one window.
        partitions_needed: of a job, so that its windows are closed side by side as fast as they
            come: each of them lies in one partition, and one core closes it.
        parts: what each of them needs.
        device_seconds: processor seconds of all devices of a job for an epoch.
        disk_gigabytes: on all brokers together, once as much is deleted as is written.
        kept_gigabytes: a year more of them that are never deleted, at the least.
        copies: of partitions, of all jobs.
        brokers: for as many copies, at the least.
        machine: that was measured.
    """

    fleet: Fleet
    reports: float
    records: int
    megabytes: float
    closing_seconds: float
    partitions_needed: int
    parts: tuple[PartNeed, ...]
    device_seconds: float
    disk_gigabytes: float
    kept_gigabytes: float
    copies: int
    brokers: int
    machine: str

    def to_json(self) -> dict[str, Any]:
        """The fields, as JSON values."""
        return asdict(self)


def epoch_seconds(job: Job) -> float | None:
    """How long an epoch of a job is, of months on average; None if its job file does not say."""
    if job.epochs.length is None:
        return None
    return job.epochs.length.mean_seconds()


def plan_fleet(
    job: Job,
    made: Plan,
    fleet: Fleet,
    horizon_seconds: float,
    constants: CostConstants | None = None,
) -> FleetPlan:
    """What a fleet needs for a job, or for several like it.

    Args:
        job: any job whose devices belong to gateways.
        made: the plan of the job for so many devices.
        fleet: who is there.
        horizon_seconds: processor seconds of a million devices for all epochs, as
            `pipeline.planning.speeds.cpu_seconds` measures them.
        constants: what things cost; None: as they were measured last.

    Raises:
        FleetError: devices of the job report for themselves, to collectors.
    """
    if job.devices is not None:
        raise FleetError(
            f"devices of {job.name} report for themselves: what gateways send is planned, and "
            "collectors take the place of gateways there; see pipeline/collector/README.md"
        )
    constants = constants or cost_constants()
    epochs = len(made.epochs)
    traffic = traffic_of(job, job.calibrate(), made, fleet)
    copies = job.topics.replication or REPLICATION
    partitions = sum(topic.partitions for topic in job.topic_settings().values())
    all_copies = fleet.jobs * copies * partitions
    closing = processor_seconds(constants.parts["shuffle"], traffic)
    held = min(_raw_seconds(job, fleet), _retention(job))
    stored = traffic.megabytes * held + _passed_on(traffic, constants) * _retention(job)
    return FleetPlan(
        fleet=fleet,
        reports=traffic.reports,
        records=traffic.records,
        megabytes=traffic.megabytes,
        closing_seconds=closing,
        partitions_needed=max(1, math.ceil(closing / (BUSY * fleet.epoch_seconds))),
        parts=tuple(_parts(fleet, traffic, copies, constants)),
        device_seconds=horizon_seconds / epochs * fleet.devices / 1e6,
        disk_gigabytes=fleet.jobs * copies * stored / fleet.epoch_seconds / 1e3,
        kept_gigabytes=fleet.jobs * copies * _KEPT_BYTES * _YEAR / fleet.epoch_seconds / 1e9,
        copies=all_copies,
        brokers=max(copies, math.ceil(all_copies / COPIES_OF_A_BROKER)),
        machine=constants.machine,
    )


def traffic_of(job: Job, law: Law, made: Plan, fleet: Fleet) -> Traffic:
    """What the gateways of a job send in an epoch.

    Where the number of reports is a secret, that is room for as many as there can be.
    """
    form, epochs = job.protocol_entry.word_form(law), len(made.epochs)
    each = math.ceil(fleet.devices / fleet.gateways)
    payload = made.bytes_per_user / epochs * fleet.devices / fleet.gateways
    capacity = job.protocol_entry.capacity
    if job.shared:
        payload = made.bytes_per_user / epochs * made.users
    elif capacity is not None and job.sealed is None:
        room = fixed_size(form, capacity(law, 1, each))
        if isinstance(room, Table):
            payload = float(room.cells * room.count_bytes)
        else:
            payload = float(room.rows * form.report_bytes)
    return Traffic(
        reports=made.reports_per_user / epochs * fleet.devices,
        gateways=fleet.gateways,
        gateway_bytes=payload,
        tabular=table_cells(form) is not None,
    )


def _parts(
    fleet: Fleet, traffic: Traffic, copies: int, constants: CostConstants
) -> Iterator[PartNeed]:
    rate = fleet.jobs / fleet.epoch_seconds
    raw, out = rate * traffic.megabytes, rate * _passed_on(traffic, constants)
    # One copy is read by the stage, the others by brokers.
    flows: Mapping[str, tuple[float, float]] = {
        BROKER: (copies * (raw + out), copies * (raw + out)),
        "shuffle": (raw, out),
        "aggregate": (out, 0.0),
        "publish": (0.0, 0.0),
    }
    for part in PARTS:
        cost = constants.parts[part]
        # Followers write what the leader has written.
        times = copies if part == BROKER else 1
        busy = rate * times * processor_seconds(cost, traffic) + fleet.jobs * cost.idle
        received, sent = flows[part]
        memory = memory_megabytes(cost, traffic, 1 if part == BROKER else fleet.jobs)
        yield PartNeed(part, busy, math.ceil(busy / BUSY), memory, received, sent)


def _passed_on(traffic: Traffic, constants: CostConstants) -> float:
    """Megabytes of a window that the shuffle stage releases."""
    if traffic.tabular:
        return min(traffic.megabytes, constants.table_megabytes)
    return traffic.megabytes * constants.sorted_out


def _retention(job: Job) -> float:
    """Seconds that what is shuffled is there; for ever counts as a year."""
    kept = job.topics.retention_ms
    return _YEAR if kept == FOREVER else kept / 1e3


def _raw_seconds(job: Job, fleet: Fleet) -> float:
    """Seconds that raw reports are there: till windows are closed, and till a segment is rolled."""
    return 2 * fleet.epoch_seconds + job.shuffle.grace + segment_ms(job.topics.retention_ms) / 1e3
