"""Epochs in lanes, each of which somebody sees alone: whoever may read one partition of a topic.

A lane must show no more than a part of the window drawn at random: of the reports of every
producer, whatever they say, and of the dummies of the stage. And all lanes hold the same producers,
whatever happens between them. A correct program is convicted with a probability below 2^-100.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from pipeline.jobs.deployed_job import DeployedJob
from pipeline.jobs.noise_keys import NoiseKey
from randomizers.randomness import cryptographic_generator
from tests.attacks.noise_of_stages import dummies_job
from tests.attacks.promises import broken
from tests.attacks.scenes import (
    EPOCHS,
    PATIENT,
    Held,
    Scene,
    Sent,
    draw,
    draw_lanes,
    scene_job,
    taken_over_at_every_step,
)

_LANES = 2
_DEVICES, _PRODUCERS = 200, 20
"""So many that no lane is empty by chance, and that not all producers fill lanes alike."""


def attack_lanes() -> Iterator[str]:
    """Reports and dummies in lanes, and who is in them."""
    promises = {
        "every report of a producer goes to a lane of its own draw, whatever it says": _reports,
        "dummies of the stage lie in every lane, all together those of a window": _dummies,
        "a producer is in all lanes or in none, whoever writes them": _members,
    }
    return broken(promises)


@lru_cache(maxsize=1)
def _reporting() -> DeployedJob:
    """A job whose devices send one report each, nearly the truth."""
    return scene_job("split_budget", {"epsilon": 12}, minimum=4, lanes=_LANES)


def _reports() -> str:
    job, coins = _reporting(), cryptographic_generator()
    for value in (0, 1):
        first_lanes = set()
        for number in range(_PRODUCERS):
            lanes = draw_lanes(job, f"producer {number}", [[value] * _DEVICES] * EPOCHS, coins)
            for epoch in range(1, EPOCHS + 1):
                sizes = [sent.words[epoch].total() for sent in lanes]
                if sum(sizes) != _DEVICES:
                    return f"of {_DEVICES} devices {sum(sizes)} reports are sent"
                if min(sizes) < _DEVICES // 20:
                    return "nearly all reports of a producer that say the same go to one lane"
                first_lanes.add(sizes[0])
        if len(first_lanes) == 1:
            return "which reports go to which lane is not drawn: places tell whose they are"
    return ""


def _dummies() -> str:
    key, coins = NoiseKey.random(), cryptographic_generator()
    whole, in_lanes = (dummies_job(bytes(16), key, lanes) for lanes in (1, _LANES))
    values = [[1, 2, 3]] * EPOCHS
    senders = [draw(whole, name, values, coins) for name in ("north", "south")]
    expected = Scene(whole, coins, key)
    expected.register(*senders)
    scene = Scene(in_lanes, coins, key)
    by_lane = [draw_lanes(in_lanes, name, values, coins) for name in ("north", "south")]
    scene.register(*(lanes[0] for lanes in by_lane))
    for epoch in range(1, EPOCHS + 1):
        for sent, lanes in zip(senders, by_lane, strict=True):
            expected.hand_on(epoch, sent.records[epoch])
            _hand_on(scene, epoch, lanes)
    expected.work(*PATIENT)
    # Whoever decides may come after who writes the other lanes.
    scene.work(*PATIENT, *PATIENT)
    for epoch in range(1, EPOCHS + 1):
        noises = []
        for lane in range(_LANES):
            windows = scene.writings(epoch, lane + 1)
            if len(windows) != 1:
                return f"lane {lane + 1} of a window is released {len(windows)} times"
            noises.append(_beyond(windows[0], [lanes[lane] for lanes in by_lane], epoch))
        if not all(noises):
            return "a lane has no dummies: its reports stand there as they are"
        together = sum(noises, Held())
        if together != _beyond(expected.writings(epoch)[0], senders, epoch):
            return "dummies in all lanes together are not those of a window without lanes"
    return ""


def _beyond(window: Held, senders: Sequence[Sent], epoch: int) -> Held:
    """What a window holds beside what was sent."""
    return window - sum((sent.words[epoch] for sent in senders), Held())


def _members() -> str:
    job, coins = _reporting(), cryptographic_generator()
    north, south = (draw_lanes(job, name, [[0, 1] * 4], coins) for name in ("north", "south"))

    def begin() -> Scene:
        scene = Scene(job, coins)
        scene.register(north[0], south[0])
        _hand_on(scene, 1, north)
        # All that is left of the other one is on its way: what decides is sent last.
        scene.hand_on(1, south[1].records[1], lane=2)
        return scene

    seen = set[frozenset[str]]()
    late = south[0].records[1]
    for scene in taken_over_at_every_step(begin, lambda scene: scene.hand_on(1, late)):
        inside = scene.inside(1)
        seen.add(frozenset(inside))
        there = [lanes for lanes in (north, south) if lanes[0].name in inside]
        for lane in range(_LANES):
            expected = sum((lanes[lane].words[1] for lanes in there), Held())
            windows = scene.writings(1, lane + 1)
            if not windows:
                return f"lane {lane + 1} of a window that was decided is not released"
            if any(window != expected for window in windows):
                return "a lane holds other reports than those of whom its manifest says are in"
    return "" if len(seen) > 1 else "whoever is late is in a window, or nobody is, at every moment"


def _hand_on(scene: Scene, epoch: int, lanes: Sequence[Sent]) -> None:
    """Let the records of a producer arrive, as it sends them: the first lane last."""
    for lane, sent in reversed([*enumerate(lanes, 1)]):
        scene.hand_on(epoch, sent.records[epoch], lane)
