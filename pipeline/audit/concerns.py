"""Which attacks on what surrounds the reports of a job concern it, and which do not.

Some are of something that a job has or has not: devices that report for themselves, sealed reports,
noise of the stage. They attack the installed code in scenes of their own, and take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from pipeline.audit.audits import Attack
from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.job_files import Job

ANYBODY: Final = "they are about what all protocols rest on"
"""Why attacks are left out that are about no job more than another."""

_Has = Callable[[Job, DeployedJob], bool]

_DEVICES: Final = "devices that report for themselves"
_PRODUCERS: Final = "producers"
_HAS: Final[Mapping[str, _Has]] = {
    _DEVICES: lambda job, opened: job.devices is not None,
    _PRODUCERS: lambda job, opened: job.devices is None,
    "dummies of the shuffle stage": lambda job, opened: opened.stage_dummies is not None,
    "sums of the shuffle stage": lambda job, opened: opened.stage_sum is not None,
    "crowds": lambda job, opened: job.crowds is not None,
    "sealed reports": lambda job, opened: job.sealed is not None,
    "shuffle instances or sealed reports": lambda job, opened: (
        job.shuffle.instances > 1 or job.sealed is not None
    ),
    "lanes": lambda job, opened: job.topics.lanes > 1,
    "population": lambda job, opened: job.population is not None,
}
# By subject and name, what a job has that an attack is about; all others concern every job.
_ABOUT: Final[Mapping[tuple[str, str], str]] = {
    ("collector", "collected reports"): _DEVICES,
    ("device client", "device clients"): _DEVICES,
    ("shuffle stage", "windows of devices"): _DEVICES,
    ("producer", "presence"): _PRODUCERS,
    ("producer", "interruptions"): _PRODUCERS,
    ("shuffle stage", "membership"): _PRODUCERS,
    ("shuffle stage", "dummies of the stage"): "dummies of the shuffle stage",
    ("shuffle stage", "sums of the stage"): "sums of the shuffle stage",
    ("shuffle stage", "crowds"): "crowds",
    ("shuffle stage", "lanes"): "lanes",
    ("sealed reports", "boxes and shares"): "sealed reports",
    ("shuffle instances", "sizes"): "shuffle instances or sealed reports",
    ("budgets", "spending"): "population",
    ("ledger", "ledger"): "population",
}


_VERB: Final = {"population": "is"}


def named(attack: Attack) -> str:
    """An attack among others, some of which have its name."""
    return f"{attack.name} ({attack.subject})"


def that_concern(
    attacks: Iterable[Attack], job: Job, opened: DeployedJob
) -> tuple[list[Attack], dict[str, str]]:
    """Of attacks on what surrounds reports those that concern a job, and the others with why not.

    Args:
        attacks: of any job.
        job: which one.
        opened: the same with its law, and without what surrounds its reports.
    """
    chosen, left_out = [], {}
    for attack in attacks:
        about = _ABOUT.get((attack.subject, attack.name))
        if about is None or _HAS[about](job, opened):
            chosen.append(attack)
        else:
            left_out[named(attack)] = f"there {_VERB.get(about, 'are')} no {about}"
    return chosen, left_out
