"""Deletion of messages from crowds by the shuffler, compared with the mechanism of the guarantee.

Of n messages of a crowd, max(0, min(n, n + Z - shift)) must remain, with discrete Laplace noise Z;
none if that is below the minimum. Each message is equally likely to remain. The stage runs with one
key for many epochs, each with its own randomness. A correct stage fails with probability at most
`false_alarm`, by the inequalities of Dvoretzky, Kiefer and Wolfowitz (with Massart's constant)
and of Hoeffding.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.key_files import KEY_BYTES, NoiseKey
from dpstream.pipeline.stages.stage_noise import StageNoise
from dpstream.randomizers.crowds import CrowdsLaw
from dpstream.topics.messages import Messages
from tests.attacks.scenarios import scenario_job
from tests.support.new_jobs import hidden_sizes

LARGE, MINIMUM = 40, 4
"""Size of a crowd that is never suppressed, and the minimum size of a released crowd."""
_CROWDS = ("1", "2", "3", "4", "5")
# The last crowd is smaller.
_SMALL = len(_CROWDS) - 1


def crowds_job(key: NoiseKey) -> DeployedJob:
    return _without_key().model_copy(update={"noise_key": key.digest})


@lru_cache(maxsize=1)
def _without_key() -> DeployedJob:
    crowds = hidden_sizes(_CROWDS, 2, 0.05)
    parameters = {"epsilon": 2, "delta": 0.05, "domain": ["a", "b"]}
    return scenario_job("single_message", parameters, minimum=MINIMUM, **crowds)


def attack_crowds(windows: int, randomness: np.random.Generator, false_alarm: float) -> str:
    """Return why numbers or positions of deleted messages are wrong, or an empty text."""
    key = NoiseKey(randomness.bytes(KEY_BYTES))
    job = crowds_job(key)
    law, noise = job.crowds_law, StageNoise(job, key)
    assert law is not None
    # In the smaller crowd, the remaining number is below the minimum most of the time.
    small = MINIMUM + law.counts.shift - 2
    sizes = [LARGE] * _SMALL + [small]
    words = _messages(law, sizes)
    kept = np.zeros((windows, len(sizes), LARGE), np.bool_)
    for window in range(windows):
        left = noise.left(window + 1, words).values
        kept[window, law.crowds_of(left) - 1, left[:, -1]] = True
    return _doubts(law, kept, small, false_alarm)


def _messages(law: CrowdsLaw, sizes: list[int]) -> Messages:
    """Return messages in canonical order; each states its position in its crowd."""
    crowds = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    places = np.concatenate([np.arange(size) for size in sizes])
    return Messages(law.messages_of(crowds, places[:, None].astype(np.uint8)))


def _doubts(law: CrowdsLaw, kept: NDArray[np.bool_], small: int, false_alarm: float) -> str:
    """Return the evidence against the mechanism; `kept` has shape (windows, crowds, positions)."""
    numbers = kept.sum(axis=2)
    share = false_alarm / 4
    for size, seen in ((LARGE, numbers[:, :_SMALL].ravel()), (small, numbers[:, _SMALL])):
        shares = np.bincount(seen, minlength=size + 1) / len(seen)
        distance = np.abs(np.cumsum(shares) - np.cumsum(_law_of_left(law, size))).max()
        if distance > math.sqrt(math.log(2 / share) / (2 * len(seen))):
            return (
                f"the number of messages left of crowds of {size} differs by {distance:.3g} from "
                "the law: sizes have too little noise, or small crowds are released"
            )
    expected = _law_of_left(law, LARGE) @ np.arange(LARGE + 1) / LARGE
    found = kept[:, :_SMALL].reshape(-1, LARGE)
    deviation = np.abs(found.mean(axis=0) - expected).max()
    if deviation > math.sqrt(math.log(2 * LARGE / (2 * share)) / (2 * len(found))):
        return "the selection of deleted messages depends on their position in the crowd"
    return ""


def _law_of_left(law: CrowdsLaw, size: int) -> NDArray[np.float64]:
    """Return the probability of each number of remaining messages, shape (size + 1,)."""
    decay, reach = float(law.counts.ratio), 400
    noise = np.arange(-reach, reach + 1)
    masses = (1 - decay) / (1 + decay) * decay ** np.abs(noise)
    left = np.clip(size + noise - law.counts.shift, 0, size)
    found = np.zeros(size + 1)
    np.add.at(found, np.where(left < law.minimum, 0, left), masses)
    return found
