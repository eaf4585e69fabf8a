"""Membership of released windows, when the broker's operator controls delivery.

The reports of every producer are known, so that each window can be compared with its manifest. A
correct stage never fails, because results do not depend on random draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import permutations

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.randomizers.randomness import cryptographic_generator
from dpstream.topics.batches import (
    batch_id,
    decode_batch,
    drawing_of,
    encode_batch,
    encode_punctuation,
)
from dpstream.topics.messages import MessageArray, Messages
from tests.attacks.promises import broken
from tests.attacks.scenarios import (
    PATIENT,
    AttackScenario,
    Held,
    Sent,
    draw,
    punctuation_of,
    scenario_job,
)

MINIMUM = 4


def attack_membership() -> Iterator[str]:
    promises = {
        "a window below the minimum is never released": (_too_few),
        "records delivered twice or reordered count once": _copies,
        "a producer is in a window with all of its reports or none": _parts,
        "only registered producers are in a window": _unknown_users,
    }
    return broken(promises)


@lru_cache(maxsize=1)
def plain_job() -> DeployedJob:
    """Build a job whose windows contain only reports, which rarely differ from the values."""
    parameters = {"epsilon": 12, "domain": ["a", "b"]}
    return scenario_job("laplace_histogram", parameters, minimum=MINIMUM)


def evidence_against(scenario: AttackScenario, senders: Sequence[Sent]) -> str:
    """Return the evidence against the finalized windows of a scenario, or an empty text."""
    minimum = scenario.job.shuffle.minimum
    for epoch, manifest in scenario.manifests().items():
        inside = scenario.inside(epoch)
        there = [sent for sent in senders if sent.name in inside]
        devices = sum(sent.present[epoch] for sent in there)
        if manifest.contributors != devices:
            return f"a manifest declares {manifest.contributors} devices; the window has {devices}"
        expected: Held = sum((sent.words[epoch] for sent in there), Held())
        for words in scenario.writings(epoch):
            if devices < minimum:
                return f"a window of {devices} devices is released with a minimum of {minimum}"
            if words != expected:
                return "a window contains reports other than those of its manifest's producers"
    return ""


def _of(job: DeployedJob, north: Sequence[object], south: Sequence[object]) -> tuple[Sent, Sent]:
    randomness = cryptographic_generator()
    return draw(job, "north", [north] * 2, randomness), draw(job, "south", [south] * 2, randomness)


def _too_few() -> str:
    job = plain_job()
    absent = [1, 2, 1, *[None] * MINIMUM]
    for north, south, first, then in (
        # All devices are present: one fewer than the minimum, and exactly the minimum.
        ([1, 2], [1], "both", "both"),
        ([1, 2], [1, 2], "both", "both"),
        # Many devices are enrolled, and few of them report.
        (absent, [None], "both", "both"),
        # Some devices are in the first window, and too late for the second.
        ([1, 2, 1, None], [2, 2], "both", "one"),
        ([1, 2, 1], [2, 2], "one", "one"),
    ):
        senders = _of(job, north, south)
        scenario = AttackScenario(job, cryptographic_generator())
        scenario.register(*senders)
        for epoch, who in ((1, first), (2, then)):
            for sent in senders[: 1 if who == "one" else 2]:
                scenario.deliver(epoch, sent.records[epoch])
            scenario.work(*PATIENT)
        reason = evidence_against(scenario, senders)
        if reason:
            return reason
        if sum(sent.present[1] for sent in senders) == MINIMUM and not scenario.writings(1):
            return f"no window of {MINIMUM} devices is released with that minimum"
    return ""


def _delivered(
    senders: Sequence[Sent], records: Sequence[bytes], registered: Sequence[Sent]
) -> tuple[AttackScenario, str]:
    """Deliver records to a window of `registered` producers, and return the evidence against it."""
    scenario = AttackScenario(plain_job(), cryptographic_generator())
    scenario.register(*registered)
    scenario.deliver(1, records)
    scenario.work(*PATIENT)
    return scenario, evidence_against(scenario, senders)


def _copies() -> str:
    senders = _of(plain_job(), [1, 2, 1], [2, 2])
    north, south = (sent.records[1] for sent in senders)
    in_two = _in_two(senders[0])
    orders: list[Sequence[bytes]] = [
        [*order, *south, *south] for order in dict.fromkeys(permutations([*north, *north]))
    ]
    orders += [[*order, *order, *south] for order in permutations(in_two)]
    for records in orders:
        scenario, reason = _delivered(senders, records, senders)
        if reason or not scenario.writings(1):
            return reason or "a complete window is not released"
    return ""


def _parts() -> str:
    senders = _of(plain_job(), [1, 2, 1], [2, 2, 1, 1])
    one, other, end = _in_two(senders[0])
    south = senders[1].records[1]
    for records in ([one, end], [end, one], [one, one, end, end], [one, other], [end, other]):
        scenario, reason = _delivered(senders, [*records, *south], senders)
        if not reason and "north" in scenario.inside(1):
            reason = "a producer with an incomplete batch is in a window"
        if reason:
            return reason
    return ""


def _unknown_users() -> str:
    senders = _of(plain_job(), [1, 2, 1], [2, 2, 1, 1])
    north, south = (sent.records[1] for sent in senders)
    _, reason = _delivered(senders[1:], [*north, *south], senders[1:])
    return reason


def _in_two(sent: Sent) -> tuple[bytes, bytes, bytes]:
    """Return the reports of a first epoch as two batches, and the punctuation."""
    batch = decode_batch(sent.records[1][0])
    drawing = drawing_of(batch.batch)
    assert batch.words.counts is None

    def half(index: int, values: MessageArray) -> bytes:
        return encode_batch(replace(batch, batch=batch_id(drawing, index), words=Messages(values)))

    end = replace(punctuation_of(sent.records[1]), batches=2)
    middle = batch.words.rows // 2
    first, second = batch.words.values[:middle], batch.words.values[middle:]
    return half(0, first), half(1, second), encode_punctuation(end)
