"""Shuffler dummies are determined by the generator, formatted like reports, and enough.

Protocols with shuffler dummies have the parameter ``dummies: shuffle``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.jobs.key_files import NoiseKey
from dpstream.pipeline.protocols.protocol import Law, Protocol, StageDummies
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.counted_messages import CountedMessages, written_out
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.messages import Messages

KEY, DEPLOYMENT = NoiseKey(bytes(range(32))), bytes(range(16))
LAST_EPOCH, MINIMUM = 4, 20


@dataclass(frozen=True)
class Case:
    """Protocol with its first example's parameters and shuffler dummies."""

    protocol: Protocol
    parameters: Any

    @property
    def law(self) -> Law:
        return self.protocol.calibrate(self.parameters, LAST_EPOCH, MINIMUM)

    def draw(self, law: Law, epoch: int) -> CountedMessages:
        dummies = self.protocol.stage_dummies(law)
        assert dummies is not None
        return dummies(epoch, KEY.generator(DEPLOYMENT, epoch))


def cases() -> list[Case]:
    found = []
    for protocol in PROTOCOLS.values():
        parameters = protocol.examples[0].parameters
        if hasattr(parameters, "dummies"):
            try:
                found.append(Case(protocol, replace(parameters, dummies="shuffle")))
            except ValueError:
                continue
    return found


every_case = pytest.mark.parametrize("case", cases(), ids=lambda case: case.protocol.name)


def test_suite_covers_all_protocols_with_stage_dummies() -> None:
    assert {"count_min", "shuffled_counts"} <= {case.protocol.name for case in cases()}


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=lambda protocol: protocol.name)
def test_stage_adds_noise_only_if_the_job_requests_it(protocol: Protocol) -> None:
    for example in protocol.examples:
        law = protocol.calibrate(example.parameters, example.last_epoch, example.minimum)
        requested = getattr(example.parameters, "dummies", None) == "shuffle"
        requested |= protocol.name == "shuffled_panels"
        assert protocol.stage_adds_noise(law) == requested
        assert protocol.shuffling is not None or not requested


@every_case
def test_all_workers_draw_the_same_dummies(case: Case) -> None:
    """Each worker reads the mechanism from the deployed job; earlier draws do not matter."""
    law = case.law
    epochs = range(1, LAST_EPOCH + 1)
    first = [case.draw(law, epoch) for epoch in epochs]
    read = case.protocol.law(case.parameters).from_json(json.loads(json.dumps(law.to_json())))
    again = [case.draw(read, epoch) for epoch in reversed(epochs)][::-1]
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.values, other.values)
        np.testing.assert_array_equal(one.counts, other.counts)


@every_case
def test_dummies_have_the_format_of_reports(case: Case) -> None:
    law = case.law
    form, aggregator = (
        case.protocol.message_format(law),
        case.protocol.aggregation.make(law, case.parameters),
    )
    for epoch in range(1, LAST_EPOCH + 1):
        drawn = case.draw(law, epoch)
        words = Messages(drawn.values, drawn.counts)
        assert (words.values.dtype, words.width) == (form.dtype, form.width)
        assert form.distinct is None or (words.values < form.distinct).all()
        aggregator.check_messages(epoch, words.values)
        aggregator.add(epoch, words.values, drawn.counts.astype(np.uint32))


@every_case
def test_devices_send_no_dummies_if_the_stage_adds_them(case: Case) -> None:
    """Devices without a value send nothing, for any number of devices."""
    devices = case.protocol.randomizer(case.law)
    devices.enroll(1000, seeded_generator(1))
    slots = case.protocol.values(case.parameters).slots
    nothing = np.zeros((1000,) if slots is None else (1000, slots), np.int64)
    for epoch in range(1, LAST_EPOCH + 1):
        assert not len(written_out(devices.report(epoch, nothing, None, seeded_generator(2))))


@every_case
def test_stage_adds_as_many_dummies_as_the_minimum_number_of_contributors_would(case: Case) -> None:
    """The smallest window has the same noise from contributors and from the stage."""
    law = case.law
    of_stage = case.protocol.stage_dummies(law)
    assert of_stage is not None
    poisson = replace(case.parameters, dummies="poisson")
    contributed = case.protocol.calibrate(poisson, LAST_EPOCH, MINIMUM)
    slots = case.protocol.values(poisson).slots
    nothing = np.zeros((MINIMUM,) if slots is None else (MINIMUM, slots), np.int64)
    trials = 300
    added, sent = np.zeros(trials), np.zeros(trials)
    for trial in range(trials):
        added[trial] = messages_of(of_stage, trial)
        devices = case.protocol.randomizer(contributed)
        devices.enroll(MINIMUM, seeded_generator(3, trial))
        for epoch in range(1, LAST_EPOCH + 1):
            reports = devices.report(epoch, nothing, None, seeded_generator(4, trial, epoch))
            sent[trial] += len(written_out(reports))
    # Totals are Poisson: 7 standard deviations of their difference are exceeded once in 1e11.
    assert abs(added.sum() - sent.sum()) < 7 * np.sqrt(added.sum() + sent.sum())
    assert added.sum() > 6 * 7**2, "the test would not detect half of the noise"


def messages_of(dummies: StageDummies, trial: int) -> int:
    """Return the number of messages that the stage adds over a horizon."""
    epochs = range(1, LAST_EPOCH + 1)
    return sum(dummies(epoch, seeded_generator(5, trial, epoch)).messages for epoch in epochs)
