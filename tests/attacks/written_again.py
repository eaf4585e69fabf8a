"""Equality of a window across writers, when workers are stopped between any two actions.

A worker finalizes a window and is stopped at some action. Late records arrive, another worker takes
over and finishes, and then the first one resumes. Two versions of a window that differ in a user
reveal that user's report. Two versions that differ in noise reveal reports with less noise.
"""

from __future__ import annotations

from collections.abc import Iterator

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.randomizers.randomness import cryptographic_generator
from tests.attacks.crowds_left import crowds_job
from tests.attacks.device_windows import device_job, device_rows, record_of
from tests.attacks.membership import evidence_against, plain_job
from tests.attacks.noise_of_stages import dummies_job, sums_job
from tests.attacks.promises import broken
from tests.attacks.scenarios import AttackScenario, Sent, draw, taken_over_at_every_step

_DEPLOYMENT = bytes(16)


def attack_written_again() -> Iterator[str]:
    key = NoiseKey.random()
    promises = {
        "of producers": lambda: _producers(plain_job(), None, ([1, 2, 1, 1], [2, 2]), judged=True),
        "with dummies": lambda: _producers(dummies_job(_DEPLOYMENT, key), key, ([1, 2], [3])),
        "with a released noisy sum": lambda: _producers(
            sums_job(_DEPLOYMENT, key), key, ([1, 0], [1])
        ),
        "with deleted messages": lambda: _producers(
            crowds_job(key), key, (["1: a", "2: b"] * 20, ["1: b", "2"])
        ),
        "of devices": _devices,
    }
    same = "is equal for all writers"
    return broken({f"a window {what} {same}": do for what, do in promises.items()})


def _producers(
    job: DeployedJob,
    key: NoiseKey | None,
    values: tuple[list[object], list[object]],
    *,
    judged: bool = False,
) -> str:
    """Let the second producer be late; `judged` windows contain only reports."""
    randomness = cryptographic_generator()
    senders: list[Sent] = [
        draw(job, name, [held], randomness)
        for name, held in zip(("north", "south"), values, strict=True)
    ]

    def begin() -> AttackScenario:
        scenario = AttackScenario(job, randomness, key)
        scenario.register(*senders)
        scenario.deliver(1, senders[0].records[1])
        return scenario

    reason, seen = "", set[frozenset[str]]()
    for scenario in taken_over_at_every_step(
        begin, lambda scenario: scenario.deliver(1, senders[1].records[1]), just_decided=judged
    ):
        reason = (
            reason or _differs(scenario) or (evidence_against(scenario, senders) if judged else "")
        )
        seen.add(frozenset(scenario.inside(1)))
    if not reason and len(seen) < 2:
        reason = "presence of late producers does not depend on the time of finalization"
    return reason


def _devices() -> str:
    job, randomness = device_job(None), cryptographic_generator()
    rows = device_rows(job, 1, 5)

    def begin() -> AttackScenario:
        scenario = AttackScenario(job, randomness)
        scenario.deliver(1, [record_of(job, 1, rows[:4])])
        return scenario

    def late(scenario: AttackScenario) -> None:
        scenario.deliver(1, [record_of(job, 1, rows[4:])])

    for scenario in taken_over_at_every_step(begin, late):
        reason = _differs(scenario)
        devices = scenario.manifests()[1].contributors
        if any(words.total() != devices for words in scenario.writings(1)):
            reason = reason or "a window contains reports that arrived after it was finalized"
        if reason:
            return reason
    return ""


def _differs(scenario: AttackScenario) -> str:
    windows = scenario.writings(1)
    if not windows:
        return "a finalized window is not released"
    if any(window != windows[0] for window in windows):
        return "two versions of one window are released, and their difference reveals users"
    return ""
