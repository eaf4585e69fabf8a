"""A fleet as it is asked for, and what it needs as it is shown."""

from __future__ import annotations

import re
from typing import Final

from pipeline.cli.errors import UsageProblem
from pipeline.cli.output import duration, number, plural, say, say_pairs, say_table
from pipeline.jobs.job_files import Job
from pipeline.planning.fleet import Fleet, FleetPlan, epoch_seconds, plan_fleet
from pipeline.planning.plan import Plan
from pipeline.planning.speeds import cpu_seconds
from pipeline.values.durations import parse_duration

DEVICES_OF_A_GATEWAY: Final = 10_000
"""Where nothing else is said."""
_NUMBER: Final = re.compile(r"(\d{1,12}(?:\.\d{1,3})?)([kMG]?)", re.ASCII)
_FACTORS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}


def asked_fleet(
    job: Job, devices: str | None, gateways: str | None, jobs: int, every: str | None
) -> Fleet | None:
    """The fleet that options ask for; None without any of them.

    Raises:
        UsageProblem: they do not fit together; the message says what to give.
        FleetError: there is no such fleet.
    """
    if devices is None:
        if gateways is not None or every is not None or jobs > 1:
            raise UsageProblem("--gateways, --jobs and --every are about a fleet: give --devices")
        return None
    seconds = epoch_seconds(job) if every is None else _seconds(every)
    if seconds is None:
        raise UsageProblem(
            f"{job.name} does not say how long its epochs are: give --every, such as --every 1h"
        )
    held = _whole("--devices", devices)
    given = None if gateways is None else _whole("--gateways", gateways)
    return Fleet(held, given or -(-held // DEVICES_OF_A_GATEWAY), jobs, seconds)


def plan_of(job: Job, made: Plan, fleet: Fleet) -> FleetPlan:
    """What the fleet needs; devices are timed here and now.

    Raises:
        FleetError: there is none for the job.
    """
    seconds = cpu_seconds(job.protocol_entry, job.calibrate(), job.parameters, job.epochs.count)
    return plan_fleet(job, made, fleet, seconds)


def show_fleet(needed: FleetPlan) -> None:
    """Print what a fleet needs."""
    fleet = needed.fleet
    alike = "" if fleet.jobs == 1 else f", {plural(fleet.jobs, 'job')} of them"
    behind = f"{number(fleet.devices)} devices behind {plural(fleet.gateways, 'gateway')}"
    say(f"\na fleet of {behind}{alike}, an epoch every {duration(fleet.epoch_seconds)}", "bold")
    say_pairs(
        [
            (
                "a window of a job",
                f"{number(needed.reports)} reports, {_megabytes(needed.megabytes)}",
            ),
            ("", f"in {plural(needed.records, 'record')}"),
            (
                "closing it",
                f"{_seconds_of(needed.closing_seconds)} of one core of the shuffle stage",
            ),
            ("partitions", _partitions(needed)),
            (
                "drawing it",
                f"{_seconds_of(needed.device_seconds)} of a core, on all gateways together",
            ),
        ]
    )
    say_table(
        ["part", ">cores busy", ">cores to have", ">memory", ">received", ">sent"],
        (
            [
                part.name,
                f"{part.busy:.2f}",
                f"{part.cores:,}",
                _megabytes(part.megabytes),
                f"{_megabytes(part.received)}/s",
                f"{_megabytes(part.sent)}/s",
            ]
            for part in needed.parts
        ),
    )
    say_pairs(
        [
            ("disks of all brokers", _megabytes(1e3 * needed.disk_gigabytes)),
            (
                "kept for ever",
                f"{_megabytes(1e3 * needed.kept_gigabytes)} more a year, at the least",
            ),
            (
                "copies of partitions",
                f"{needed.copies:,}, on {plural(needed.brokers, 'broker')} or more",
            ),
        ]
    )
    say(
        f"note: measured on {needed.machine}; how this is reckoned, and how far it can be "
        "trusted: pipeline/planning/fleets.md"
    )


def _partitions(needed: FleetPlan) -> str:
    if needed.partitions_needed == 1:
        return "one is enough: a window is closed before the next one is complete"
    return (
        f"{needed.partitions_needed:,} at least (topics.partitions), closed side by side: one core "
        "is not as fast as windows come"
    )


def _megabytes(megabytes: float) -> str:
    for factor, unit in ((1e6, "TB"), (1e3, "GB"), (1.0, "MB"), (1e-3, "kB")):
        if megabytes >= factor:
            return f"{megabytes / factor:,.1f} {unit}"
    return f"{megabytes * 1e6:.0f} B"


def _seconds_of(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{number(round(seconds, 1))} s"


def _whole(option: str, text: str) -> int:
    found = _NUMBER.fullmatch(text.replace(",", ""))
    value = 0 if found is None else round(float(found[1]) * _FACTORS[found[2]])
    if value < 1:
        raise UsageProblem(f"{option} is {text}: give a number such as 25000, 300k, 100M or 1.5G")
    return value


def _seconds(text: str) -> float:
    try:
        return parse_duration(text).mean_seconds()
    except ValueError as error:
        raise UsageProblem(f"--every is {text}: {error}") from None
