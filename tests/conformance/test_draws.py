"""Devices draw at enrollment before any value arrives, and budgets are spent permanently.

Every longitudinal protocol runs for eight epochs, with every kind of parameters. Its devices change
their values at nearly every epoch and exhaust any budget. If epochs are independent, all have the
same distribution of draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.conformance.finding import exact_law_of
from dpstream.pipeline.protocols.protocol import Example, PerEpochLaw, Protocol
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.item_domains import Numbers
from tests.conformance.cases import CASES, Case, Values
from tests.conformance.test_devices import enrolled, same_arrays, snapshot, through_disk

EPOCHS = 8
MINIMUM = 50

DRAWN: dict[str, set[str]] = {
    "future_rand": {"order", "signs"},
    "erlingsson": {"order", "signs"},
    "bun": {"order", "signs"},
    "independent_response": {"order", "signs"},
    "memoized_response": {"memo"},
    "sampled_response": {"flips", "phase"},
    "value_stream": {"noise"},
    "hadamard_values": {"noise", "row"},
    "range_values": {"level", "noise", "row"},
    "panels": {"question", "threshold", "noise", "row"},
    "sampled_panels": {"question", "threshold", "flips", "phase"},
    "fragments": {"key"},
}
"""State arrays that are drawn at enrollment and only read afterwards."""

BUDGETS = {"panels": {"left"}}
"""State arrays that start with a constant of the device's part, which is drawn."""

MORE: dict[str, tuple[dict[str, Any], ...]] = {
    "hadamard_values": ({"domain": ("a", "b", "c"), "max_changes": 2},),
    "range_values": ({"buckets": 8, "max_changes": 2},),
    "shuffled_counts": (
        {"max_changes": 2, "boost": 2},
        {"max_changes": 2, "boost": 2, "dummies": "shuffle"},
        {"max_changes": 2, "dummies": "shuffle"},
        {"max_changes": 2, "boost": 1, "domain": ("a", "b", "c"), "cells": "count_min"},
        {"max_changes": 2, "boost": 1, "domain": Numbers(0.0, 80.0, 4)},
    ),
}
"""Kinds of parameters that a protocol's examples lack."""


STANDING_ALONE: dict[str, tuple[dict[str, Any], ...]] = {
    "count_min": ({"dummies": "negative_binomial"},),
    "hadamard": ({"dummies": "poisson"},),
}
"""Kinds of parameters missing from the examples of protocols with independent epochs."""


def forms() -> Iterator[Case]:
    for protocol in PROTOCOLS.values():
        requested = [
            example.parameters
            for example in protocol.examples
            if keeps_draws(protocol, example.parameters)
        ]
        requested += [replace(requested[0], **more) for more in MORE.get(protocol.name, ())]
        yield from with_examples(
            protocol, [Example(parameters, EPOCHS, MINIMUM) for parameters in requested]
        )


def with_examples(protocol: Protocol, examples: list[Example]) -> list[Case]:
    make_exact = exact_law_of(protocol.name)
    offering = replace(protocol, examples=tuple(examples))
    return [Case(offering, number, make_exact) for number in range(len(examples))]


def keeps_draws(protocol: Protocol, parameters: Any) -> bool:
    """Return whether devices keep their enrollment draws for all epochs."""
    return not protocol.per_epoch or getattr(parameters, "permanent", False)


FORMS = list(forms())


def forms_standing_alone() -> Iterator[Case]:
    for protocol in PROTOCOLS.values():
        if protocol.per_epoch:
            first = protocol.examples[0]
            more = STANDING_ALONE.get(protocol.name, ())
            requested = [
                replace(first, parameters=replace(first.parameters, **each)) for each in more
            ]
            examples = [
                replace(each, last_epoch=2, minimum=10) for each in (*protocol.examples, *requested)
            ]
            yield from with_examples(protocol, examples)


every_form = pytest.mark.parametrize("case", FORMS, ids=str)


@every_form
def test_enrollment_draws_do_not_depend_on_values(case: Case) -> None:
    """Two populations have the same randomness and different values; some devices enroll later."""
    one, two = enrolled(case, 1), enrolled(case, 1)
    names = DRAWN.get(case.protocol.name, set()) & snapshot(one).keys()
    for epoch in range(1, EPOCHS + 1):
        for devices in (one, two):
            devices.enroll(10, case.generator(2, epoch))
        before = {name: snapshot(one)[name] for name in names}
        assert same_arrays(before, {name: snapshot(two)[name] for name in names})
        for devices, seed in ((one, 3), (two, 4)):
            values = some_values(case, devices.population, seed, epoch)
            devices.report(epoch, values, None, case.generator(5, epoch))
            assert same_arrays(before, {name: snapshot(devices)[name] for name in names})


@every_form
def test_all_arrays_drawn_at_enrollment_are_listed(case: Case) -> None:
    """Two populations with different randomness initially differ only in the listed arrays."""
    one, two = snapshot(enrolled(case, 1)), snapshot(enrolled(case, 2))
    differing = {name for name in one if not np.array_equal(one[name], two[name])}
    differing -= BUDGETS.get(case.protocol.name, set())
    expected = DRAWN.get(case.protocol.name, set())
    constant = {name for name in expected & one.keys() if len(np.unique(one[name], axis=0)) == 1}
    assert differing == expected & one.keys() - constant
    if case.protocol.name in DRAWN:
        assert differing, "list in DRAWN the arrays that this protocol draws at enrollment"


@every_form
def test_exhausted_budget_stays_exhausted_after_restore(case: Case, tmp_path: Path) -> None:
    """Saving and restoring after every epoch changes neither reports nor state."""
    undisturbed, restarted = enrolled(case, 6), enrolled(case, 6)
    used: list[int] = []
    for epoch in range(1, EPOCHS + 1):
        kept = snapshot(restarted)
        restarted = case.protocol.randomizer(case.law).restored(
            through_disk(tmp_path / "state", kept), epoch - 1
        )
        assert same_arrays(snapshot(restarted), kept)
        values = some_values(case, undisturbed.population, 7, epoch)
        expected, found = (
            written_out(devices.report(epoch, values, None, case.generator(8, epoch)))
            for devices in (undisturbed, restarted)
        )
        assert np.array_equal(found, expected)
        assert same_arrays(snapshot(restarted), snapshot(undisturbed))
        used.append(restarted.exhausted)
        assert restarted.exhausted == undisturbed.exhausted
    assert used == sorted(used)
    if getattr(case.parameters, "max_changes", None) and case.protocol.name != "shuffled_counts":
        assert used[-1] > 0, "no budget was exhausted; use more epochs or fewer changes"


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in FORMS
        if case.protocol.shuffling is not None
        and getattr(case.parameters, "dummies", "shuffle") != "shuffle"
    ],
    ids=str,
)
def test_dummies_are_sent_at_every_epoch(case: Case) -> None:
    """Devices without a value send dummies at every epoch, including the last.

    In a tree the number varies by epoch, and is compared with the number of shuffler dummies.
    """
    trials = 150
    sent, added = np.zeros((2, EPOCHS))
    law = case.law
    requested = replace(case.parameters, dummies="shuffle")
    of_stage = case.protocol.stage_dummies(case.protocol.calibrate(requested, EPOCHS, MINIMUM))
    assert of_stage is not None
    nothing = np.zeros(MINIMUM, np.int64)
    constant = constant_messages(case)
    for trial in range(trials):
        devices = case.protocol.randomizer(law)
        devices.enroll(MINIMUM, case.generator(9, trial))
        for epoch in range(1, EPOCHS + 1):
            reports = devices.report(epoch, nothing, None, case.generator(10, trial, epoch))
            sent[epoch - 1] += len(written_out(reports)) - constant
            added[epoch - 1] += of_stage(epoch, case.generator(11, trial, epoch)).messages
    # Totals are Poisson: 7 standard deviations of their difference are exceeded once in 1e11.
    if getattr(case.parameters, "dummies", "") != "negative_binomial":
        assert (np.abs(sent - added) < 7 * np.sqrt(sent + added)).all(), (sent, added)
    assert (added > 6 * 7**2).all(), "the test would not detect half of the noise"
    assert (sent > added / 4).all()


@pytest.mark.parametrize("case", list(forms_standing_alone()), ids=str)
@pytest.mark.parametrize(("devices", "trials"), [(1, 100), (MINIMUM, 1), (200 * MINIMUM, 1)])
def test_equal_seeds_give_equal_draws_in_any_epoch(case: Case, devices: int, trials: int) -> None:
    """With the same randomness and values, the last epoch has the same draws as the first."""
    for trial in range(trials):
        population = case.protocol.randomizer(case.law)
        population.enroll(devices, case.generator(1))
        values = some_values(case, devices, 12, trial)
        first, last = (
            written_out(population.report(epoch, values, None, case.generator(13, trial)))
            for epoch in (1, case.last_epoch)
        )
        assert np.array_equal(first, last)


@pytest.mark.parametrize("case", list(forms_standing_alone()), ids=str)
def test_mechanism_for_one_epoch_equals_one_epoch_of_a_longer_mechanism(case: Case) -> None:
    assert isinstance(case.law, PerEpochLaw), "the mechanism lacks 'of_one_epoch'"
    several, single = map(case.protocol.randomizer, (case.law, case.law.of_one_epoch()))
    values = some_values(case, MINIMUM, 12, 1)
    for devices in (several, single):
        devices.enroll(MINIMUM, case.generator(1))
    expected, drawn = (
        written_out(devices.report(1, values, None, case.generator(13)))
        for devices in (several, single)
    )
    assert np.array_equal(drawn, expected)
    spent = single.guarantee
    assert spent.epsilon == spent.stream_epsilon == several.guarantee.epsilon
    with pytest.raises(ValueError, match="epoch 2"):
        single.report(2, values, None, case.generator(14))


def constant_messages(case: Case) -> int:
    """Return the number of messages of all devices without a value and without a change."""
    boost = getattr(case.law, "boost", 0)
    return MINIMUM * boost if hasattr(case.law, "calibration") else 0


def some_values(case: Case, devices: int, seed: int, epoch: int) -> Values:
    """Return random values: half of all devices or more change at an epoch."""
    return case.array_of(case.generator(seed, epoch).integers(len(case.values), size=devices))


def test_protocols_with_independent_epochs_draw_nothing_at_enrollment() -> None:
    for case in CASES:
        if not keeps_draws(case.protocol, case.parameters):
            assert not drawn_by(case), case.protocol.name


def drawn_by(case: Case) -> bool:
    return not same_arrays(snapshot(enrolled(case, 1)), snapshot(enrolled(case, 2)))
