"""Conformance checks: each takes a case and raises `DoesNotConformError` on a violation.

- Checks that follow from the exact law are exact.
- Each comparison with samples fails with probability at most 1e-12 for a conforming protocol.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from scipy import stats

from dpstream.pipeline.conformance.cases import (
    FALSE_ALARM,
    Case,
    Report,
    Stream,
    View,
    show_reports,
    show_values,
)
from dpstream.pipeline.conformance.divergences import (
    divergence,
    exponential,
    largest_divergence,
    neighbors_of,
)
from dpstream.pipeline.conformance.running import (
    DoesNotConformError,
    absent_devices_send_nothing,
    intervals_contain_the_ground_truth,
    merging_equals_adding,
    restored_devices_continue,
)
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.guarantee import Guarantee

Check: TypeAlias = Callable[[Case], None]

MOST_EPOCHS = 4
WINDOWS = 1_000
# Number of streams whose windows are sampled, which is slow.
SAMPLED = 4
# Number of devices sampled together, epoch by epoch.
TOGETHER = 100_000
# Smallest expected count of a report that is treated as normally distributed.
ENOUGH = 100
# Allowed relative excess of an exact guarantee over the tight one: without delta, and with delta
# (then, calibration is a search).
SLACK, SEARCHED = 1e-9, 0.02

_UNITS = {
    "stream": "the whole stream",
    "epoch": "one epoch",
    "value": "a value that stays the same",
}


def examples_are_small(case: Case) -> None:
    """Check that examples are small enough to enumerate all views."""
    example, expected = case.protocol.examples[case.number], case.protocol.parameters
    if type(example.parameters) is not expected:
        kind = type(example.parameters).__name__
        raise DoesNotConformError(
            f"has an example with parameters of type {kind}; expected {expected.__name__}"
        )
    if not 1 <= example.last_epoch <= MOST_EPOCHS:
        raise DoesNotConformError(
            f"has an example with {example.last_epoch} epochs; expected 1 to {MOST_EPOCHS}"
        )


def laws_survive_json(case: Case) -> None:
    """Check that a mechanism survives a round trip through JSON, as in deployed jobs."""
    body = json.loads(json.dumps(case.law.to_json(), allow_nan=False))
    if case.protocol.law(case.parameters).from_json(body) != case.law:
        raise DoesNotConformError("has a mechanism that changes when written to JSON and read back")


def reports_have_the_declared_format(case: Case) -> None:
    """Check that reports have the declared width and dtype."""
    form = case.message_format
    for epoch, messages in enumerate(case.send(case.mixed_values(200), case.generator(1)), 1):
        found = f"{messages.dtype} of shape {messages.shape}"
        if messages.dtype != form.dtype or messages.ndim != 2 or messages.shape[1] != form.width:
            raise DoesNotConformError(
                f"reports {found} at epoch {epoch}; expected {form.width} integers of {form.dtype} "
                "per report, as declared"
            )


def spends_at_most_the_requested_epsilon(case: Case) -> None:
    """Check that the guarantee is within the job's parameters, which determine its charge."""
    guarantee = _guarantee(case)
    unit = _UNITS[guarantee.unit]
    requested = {
        "epsilon": case.parameters.epsilon,
        "delta": getattr(case.parameters, "delta", 0.0),
    }
    for name, most in requested.items():
        stated = getattr(guarantee, name)
        if not 0 <= stated <= most:
            raise DoesNotConformError(
                f"guarantee states {name} {stated:g} for {unit}; requested: at most {most:g}"
            )
    if (guarantee.stream_epsilon is None) != (guarantee.unit == "stream"):
        raise DoesNotConformError(
            f"states its guarantee for {unit}, with 'stream_epsilon' {guarantee.stream_epsilon}; "
            "expected 'stream_epsilon' if and only if the unit is not the whole stream"
        )


def exact_law_sums_to_one(case: Case) -> None:
    """Check that the exact law, to which other checks refer, is a probability distribution."""
    for stream, views in case.views.items():
        total = sum(views.values(), Fraction())
        if total != 1 or min(views.values()) <= 0:
            raise DoesNotConformError(
                f"has an exact law whose probabilities for {show_values(stream)} sum to {total}, "
                f"the smallest being {min(views.values())}; expected positive probabilities with "
                "sum 1"
            )


def neighbors_stay_within_the_guarantee(case: Case) -> None:
    """Check the guarantee itself, over all views of all neighbors."""
    guarantee = _guarantee(case)
    _check_loss(case, guarantee, guarantee.epsilon, _UNITS[guarantee.unit])
    if guarantee.stream_epsilon is not None:
        whole = Guarantee(**{**_fields(guarantee), "unit": "stream", "stream_epsilon": None})
        _check_loss(case, whole, guarantee.stream_epsilon, _UNITS["stream"])


def exact_guarantees_are_attained(case: Case) -> None:
    """Check that a guarantee declared exact is tight, so that any larger loss would be detected."""
    guarantee = _guarantee(case)
    if guarantee.basis != "exact":
        return
    slack = SEARCHED * guarantee.epsilon if guarantee.delta else SLACK
    less = guarantee.epsilon - slack
    if largest_divergence(case, guarantee, exponential(less, rounded_up=True)) <= guarantee.delta:
        raise DoesNotConformError(
            f"states epsilon {guarantee.epsilon:g} for {_UNITS[guarantee.unit]} as exact, but its "
            "actual epsilon is smaller; expected the actual epsilon, or another basis"
        )


def devices_draw_by_the_exact_law(case: Case) -> None:
    """Check that devices send exactly the reports that the exact law allows, at its frequencies."""
    if case.protocol.stage_sum(case.law) is not None:
        return  # The view is the shuffler's sum, not what devices send.
    for number, stream in enumerate(spread(case.streams)):
        law = case.views[stream]
        rng = case.generator(20, number)
        seen = Counter(window_seen(case, stream, rng) for _ in range(WINDOWS))
        for view, often in seen.items():
            if view not in law:
                raise DoesNotConformError(
                    f"sends reports {show_reports(view)} for {show_values(stream)} in "
                    f"{often} of {WINDOWS:,} windows; its exact law rules them out"
                )
        shares = np.array([float(probability) for probability in law.values()])
        times = np.array([seen[view] for view in law])
        at_most = stats.binom.cdf(times, WINDOWS, shares)
        at_least = stats.binom.sf(times - 1, WINDOWS, shares)
        unlikely = 2 * np.minimum(at_most, at_least) < FALSE_ALARM / len(law)
        for view, count, share, wrong in zip(law, times, shares, unlikely, strict=True):
            if wrong:
                raise DoesNotConformError(
                    f"sends reports {show_reports(view)} for {show_values(stream)} in {count:,} "
                    f"of {WINDOWS:,} windows; expected {share * WINDOWS:,.0f} under its exact law"
                )
        if case.exact.devices == 1:
            _check_many(case, stream, number)


def _check_many(case: Case, stream: Stream, number: int) -> None:
    values = case.array_of(np.zeros((case.last_epoch, TOGETHER), np.intp))
    values[:] = np.array(stream, case.dtype).reshape(case.last_epoch, 1, *values.shape[2:])
    for epoch, messages in enumerate(case.send(values, case.generator(21, number)), 1):
        reports, counts = np.unique(messages, axis=0, return_counts=True)
        sent = dict(zip(map(tuple, reports.tolist()), counts.tolist(), strict=True))
        means: defaultdict[Report, float] = defaultdict(float)
        squares: defaultdict[Report, float] = defaultdict(float)
        for view, probability in case.views[stream].items():
            for report, times in Counter(view[epoch - 1]).items():
                means[report] += times * float(probability)
                squares[report] += times**2 * float(probability)
        for report, mean in means.items():
            expected = TOGETHER * mean
            deviation = math.sqrt(TOGETHER * max(0.0, squares[report] - mean**2))
            off = abs(sent.get(report, 0) - expected)
            if expected >= ENOUGH and 2 * stats.norm.sf(off / max(deviation, 1.0)) < FALSE_ALARM:
                raise DoesNotConformError(
                    f"at epoch {epoch}, sends reports {show_reports(((report,),))} "
                    f"{sent.get(report, 0):,} times for {TOGETHER:,} devices with "
                    f"{show_values(stream)}; the protocol's exact law predicts {expected:,.0f}"
                )


def messages_are_accepted_at_their_epochs(case: Case) -> None:
    """Check that an aggregator accepts every possible report and rejects impossible reports."""
    if case.protocol.stage_sum(case.law) is not None:
        return
    aggregator, form = case.aggregator(), case.message_format
    largest = int(np.iinfo(form.dtype).max)
    for epoch in range(1, case.last_epoch + 1):
        sent = {
            report for views in case.views.values() for view in views for report in view[epoch - 1]
        }
        for report in sent:
            if not _accepted(aggregator, epoch, np.array([report], form.dtype)):
                raise DoesNotConformError(
                    f"sends reports {show_reports(((report,),))} at epoch {epoch}, which its "
                    "aggregator rejects"
                )
        impossible = (largest,) * form.width
        if impossible not in sent and _accepted(
            aggregator, epoch, np.array([impossible], form.dtype)
        ):
            raise DoesNotConformError(
                f"never sends reports {show_reports(((impossible,),))}, but its aggregator "
                f"accepts them at epoch {epoch}"
            )


CHECKS: tuple[Check, ...] = (
    examples_are_small,
    laws_survive_json,
    reports_have_the_declared_format,
    spends_at_most_the_requested_epsilon,
    exact_law_sums_to_one,
    neighbors_stay_within_the_guarantee,
    exact_guarantees_are_attained,
    devices_draw_by_the_exact_law,
    messages_are_accepted_at_their_epochs,
    restored_devices_continue,
    absent_devices_send_nothing,
    merging_equals_adding,
    intervals_contain_the_ground_truth,
)


def _guarantee(case: Case) -> Guarantee:
    return case.protocol.randomizer(case.law).guarantee


def _fields(guarantee: Guarantee) -> dict[str, Any]:
    return {name: getattr(guarantee, name) for name in guarantee.__dataclass_fields__}


def _check_loss(case: Case, guarantee: Guarantee, epsilon: float, unit: str) -> None:
    factor, delta = exponential(epsilon, rounded_up=False), Fraction(guarantee.delta)
    for one, other in neighbors_of(case, guarantee):
        spent = divergence(case.views[one], case.views[other], factor)
        if spent > delta:
            also = "" if not guarantee.delta else f" with delta {guarantee.delta:g}"
            raise DoesNotConformError(
                f"states epsilon {epsilon:g}{also} for {unit}, but {show_values(one)} can be "
                f"distinguished from {show_values(other)} "
                f"{_by(case, one, other, float(spent), guarantee.delta)}"
            )


def _by(case: Case, one: Stream, other: Stream, spent: float, delta: float) -> str:
    if delta:
        return f"by a delta of {spent:g}"
    views, others = case.views[one], case.views[other]
    ratios = [views[view] / others[view] if view in others else math.inf for view in views]
    largest = max(ratios)
    return "with certainty" if largest == math.inf else f"by epsilon {math.log(largest):.4g}"


def spread(streams: list[Stream]) -> list[Stream]:
    """Return about `SAMPLED` evenly spaced streams, including the first and the last."""
    step = max(1, -(-len(streams) // SAMPLED))
    return [*dict.fromkeys([*streams[::step], streams[-1]])]


def window_seen(case: Case, stream: Stream, rng: np.random.Generator) -> View:
    """Draw the reports of as many devices as the exact law covers; the first has the stream."""
    devices = case.protocol.randomizer(case.law)
    devices.enroll(case.exact.devices, rng)
    view = []
    for epoch, value in enumerate(stream, 1):
        values = np.zeros((case.exact.devices, *np.shape(value)), case.dtype)
        values[0] = value
        messages = written_out(devices.report(epoch, values, None, rng))
        view.append(tuple(sorted(map(tuple, messages.tolist()))))
    return tuple(view)


def _accepted(aggregator: Any, epoch: int, messages: Any) -> bool:
    try:
        aggregator.check_messages(epoch, messages)
    except ValueError:
        return False
    return True
