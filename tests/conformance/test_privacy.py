"""Check guarantees exactly, from the probabilities of all views."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np

from dpstream.pipeline.conformance.divergences import exponential, largest_divergence
from dpstream.randomizers.counted_messages import written_out
from tests.conformance.cases import SUMMED, Case, Report, every_case

NEWCOMERS = 20_000


@every_case
def test_neighboring_inputs_satisfy_the_guarantee(case: Case) -> None:
    guarantee = case.protocol.randomizer(case.law).guarantee
    spent = largest_divergence(case, guarantee, exponential(guarantee.epsilon, rounded_up=False))
    assert spent <= Fraction(guarantee.delta)


@every_case
def test_stream_epsilon_holds_and_is_tight_for_constant_values(case: Case) -> None:
    """If the unit is a value that never changes, streams with changes lose more."""
    guarantee = case.protocol.randomizer(case.law).guarantee
    assert (guarantee.stream_epsilon is not None) == (guarantee.unit != "stream")
    if guarantee.stream_epsilon is None:
        return
    whole = replace(guarantee, unit="stream")
    spent = exponential(guarantee.stream_epsilon, rounded_up=False)
    assert largest_divergence(case, whole, spent) <= Fraction(guarantee.delta)
    if guarantee.unit == "epoch":
        # An upper bound, over several epochs with fresh noise in each.
        assert guarantee.stream_epsilon >= guarantee.epsilon
        return
    less = exponential(guarantee.stream_epsilon - 1e-9, rounded_up=True)
    assert largest_divergence(case, whole, less) > 0


@every_case
def test_messages_are_accepted_only_at_their_epochs(case: Case) -> None:
    if case in SUMMED:
        return  # Every possible sum over devices is accepted.
    possible = [
        {report for views in case.views.values() for view in views for report in view[epoch]}
        for epoch in range(case.last_epoch)
    ]
    for enrolled_at in range(2, case.last_epoch + 1):
        for epoch, sent in enumerate(sent_by_newcomers(case, enrolled_at), start=enrolled_at - 1):
            possible[epoch] |= sent
    form = case.message_format
    largest = np.iinfo(form.dtype).max
    candidates = set[tuple[int, ...]]().union(
        *possible, [(word,) * form.width for word in (*range(256), largest)]
    )
    aggregator = case.aggregator()
    for epoch, expected in enumerate(possible, start=1):
        accepted = set()
        for candidate in candidates:
            words = np.array([candidate], form.dtype)
            try:
                aggregator.check_messages(epoch, words)
            except ValueError:
                continue
            accepted.add(candidate)
        assert accepted == expected


def sent_by_newcomers(case: Case, enrolled_at: int) -> Iterator[set[Report]]:
    """Yield all possible reports of devices that enroll later."""
    devices, rng = case.protocol.randomizer(case.law), case.generator(40, enrolled_at)
    devices.enroll(NEWCOMERS, rng)
    values = case.mixed_values(NEWCOMERS)
    for epoch in range(enrolled_at, case.last_epoch + 1):
        words = written_out(devices.report(epoch, values[epoch - 1], None, rng))
        yield set(map(tuple, words.tolist()))
