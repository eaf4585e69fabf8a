"""Presence of the shuffler's noise, and its independence between windows.

A window must have a single noisy version, and two windows must not have the same noise: versions
could be averaged, and the same noise cancels in a difference. The attacker therefore reruns the
stage at other epochs, under another deployment, and with another key. A correct stage fails with a
probability below 1e-16, namely if two noises are the same by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import NoiseKey, WrongKeyError
from dpstream.randomizers.randomness import cryptographic_generator
from tests.attacks.promises import broken
from tests.attacks.scenarios import EPOCHS, PATIENT, AttackScenario, Held, Sent, draw, scenario_job

_HERE, _ELSEWHERE = bytes(16), bytes(15) + b"\1"


@dataclass(frozen=True, slots=True)
class Noisy:
    """Kind of noise.

    Attributes:
        job: Builds a job with this noise, given a deployment and a key.
        noise: Returns the noise of a window; for sums, up to a constant.
        words: Number of messages in a window; None for any number.
    """

    job: Callable[[bytes, NoiseKey], DeployedJob]
    values: tuple[Any, ...]
    noise: Callable[[Held, Held], object]
    words: int | None = None


def attack_dummies() -> Iterator[str]:
    """Check that dummies are present, and independent between windows."""
    return _attack(DUMMIES)


def attack_sums() -> Iterator[str]:
    """Check that the noise of sums is independent between windows, and replaces messages."""
    return _attack(SUMS)


def _attack(noisy: Noisy) -> Iterator[str]:
    key = NoiseKey.random()
    promises = {
        "is present in every window, and differs by epoch, deployment and key": partial(
            _own, noisy, key
        ),
        "is never written by a worker with another key or without a key": partial(
            _other_keys, noisy, key
        ),
    }
    return broken({f"noise {what}": do for what, do in promises.items()})


def _own(noisy: Noisy, key: NoiseKey) -> str:
    noises, other = _noises(noisy, _HERE, key, key), NoiseKey.random()
    if isinstance(noises, str):
        return noises
    if not all(noises) or len({*map(repr, noises)}) == 1:
        return "all windows have the same noise or none: their difference is exact"
    if _noises(noisy, _HERE, key, key) != noises:
        return "the noise of a window changes when it is drawn again: averaging removes it"
    if _noises(noisy, _ELSEWHERE, key, key) == noises:
        return "two deployments have the same noise: their difference is exact"
    if _noises(noisy, _HERE, other, other) == noises:
        return "the noise does not depend on the key and can be computed without it"
    return ""


def _other_keys(noisy: Noisy, key: NoiseKey) -> str:
    noises = _noises(noisy, _HERE, key, key)
    for used in (NoiseKey.random(), None):
        try:
            seen = _noises(noisy, _HERE, key, used)
        except WrongKeyError:
            continue
        if seen != noises:
            return "a worker with another noise key writes a window with other noise"
    return ""


def _noises(
    noisy: Noisy, deployment: bytes, key: NoiseKey, used: NoiseKey | None
) -> list[object] | str:
    """Return the noise of each epoch's window, or evidence; `used` is the key of the worker."""
    job, randomness = noisy.job(deployment, key), cryptographic_generator()
    scenario = AttackScenario(job, randomness, used)
    senders: list[Sent] = [
        draw(job, name, [noisy.values] * EPOCHS, randomness) for name in ("north", "south")
    ]
    worker = scenario.worker(*PATIENT)
    scenario.register(*senders)
    for sent in senders:
        for epoch, records in sent.records.items():
            scenario.deliver(epoch, records)
    worker.step()
    noises: list[object] = []
    for epoch in range(1, EPOCHS + 1):
        sent_words = sum((sent.words[epoch] for sent in senders), Held())
        windows = scenario.writings(epoch)
        if len(windows) != 1:
            return f"{len(windows)} windows of an epoch are released"
        if noisy.words is not None and windows[0].total() != noisy.words:
            return f"the stage releases {windows[0].total()} messages instead of one number"
        noises.append(noisy.noise(windows[0], sent_words))
    return noises


@lru_cache(maxsize=8)
def dummies_job(deployment: bytes, key: NoiseKey) -> DeployedJob:
    """Build a job whose dummies fill enough cells for all draws to differ."""
    domain = [f"item {number}" for number in range(40)]
    parameters = {"epsilon": 1, "delta": 1e-6, "domain": domain, "dummies": "shuffle"}
    return scenario_job("count_min", parameters, minimum=2, deployment=deployment, key=key)


@lru_cache(maxsize=8)
def sums_job(deployment: bytes, key: NoiseKey) -> DeployedJob:
    """Build a job with noisy sums, whose noise is so wide that it never repeats."""
    parameters = {"epsilon": 1e-6, "delta": 1e-6, "max_changes": 1, "dummies": "shuffle"}
    return scenario_job("shuffled_counts", parameters, minimum=2, deployment=deployment, key=key)


def _beyond(window: Held, sent: Held) -> object:
    return sorted((window - sent).items())


def _beyond_sum(window: Held, sent: Held) -> object:
    ((number,),) = window
    return number - sum(word * times for (word,), times in sent.items())


DUMMIES = Noisy(dummies_job, (1, 2, 3), _beyond)
SUMS = Noisy(sums_job, (1, 0, 1), _beyond_sum, words=1)
