"""Cases of the suite: every example of every registered protocol.

A new protocol needs no change here. It needs examples in its registry entry, an exact law in
``pipeline/conformance/laws/<protocol>.py`` (see `ExactLaw`) and golden bytes
(``python -m tests.conformance.golden``). Anything missing fails with a message that names it.
"""

from __future__ import annotations

from functools import cached_property

import pytest

from dpstream.pipeline.conformance.cases import FALSE_ALARM as FALSE_ALARM
from dpstream.pipeline.conformance.cases import Case as Case
from dpstream.pipeline.conformance.cases import ExactLaw as ExactLaw
from dpstream.pipeline.conformance.cases import MessageArray as MessageArray
from dpstream.pipeline.conformance.cases import Report as Report
from dpstream.pipeline.conformance.cases import Stream as Stream
from dpstream.pipeline.conformance.cases import Values as Values
from dpstream.pipeline.conformance.cases import View as View
from dpstream.pipeline.conformance.finding import find_cases
from dpstream.pipeline.protocols.registry import PROTOCOLS
from experiments.protocols.ldp_sgd import entry as ldp_sgd
from experiments.protocols.ldp_sgd.exact_law import exact_law

CASES = [case for name in PROTOCOLS for case in find_cases(name)]


class TrainingCase(Case):
    """Example of `ldp_sgd`, which is not registered: values are a class and its features."""

    @cached_property
    def values(self) -> list[int | tuple[int, ...]]:
        features = self.parameters.features
        return [(0,) * (1 + features), (1, *[127] * features), (2, 90, *[-50] * (features - 1))]


TRAINING = [
    TrainingCase(ldp_sgd.PROTOCOL, number, exact_law)
    for number in range(len(ldp_sgd.PROTOCOL.examples))
]

# All pairs of streams are checked, which is slow for many streams.
MANY_STREAMS = 40

EXHAUSTIVE = (
    "count_min-3",
    "hadamard_values-1",
    "range_values-1",
    "shuffled_counts-4",
    "laplace_histogram-1",
    "jl_hh-1",
    "bucket-1",
    "sparse_recovery-1",
)
"""Larger examples whose behavior smaller ones cover too; only ``make verify`` enumerates them."""


LONG_TO_SAMPLE = ("sparse_recovery-0", "count_mean_sketch-0", "shuffled_counts-5")
"""Examples that are slow to sample; only ``make verify`` compares them with the exact law."""


def _one_of_each_law() -> frozenset[str]:
    first: dict[tuple[str, type], str] = {}
    for case in (*CASES, *TRAINING):
        if str(case) not in (*EXHAUSTIVE, *LONG_TO_SAMPLE):
            first.setdefault((case.protocol.name, type(case.law)), str(case))
    return frozenset(first.values())


SAMPLED = _one_of_each_law()
"""First example of each mechanism, sampled by ``make test``; ``make verify`` samples all."""


def _marks(case: Case, *, sampled: bool = False) -> list[pytest.MarkDecorator]:
    if str(case) in EXHAUSTIVE or (sampled and str(case) not in SAMPLED):
        return [pytest.mark.verify]
    return [pytest.mark.slow] if len(case.streams) > MANY_STREAMS else []


SUMMED = [case for case in CASES if case.protocol.stage_sum(case.law) is not None]
"""Cases whose shuffler releases noisy sums, with views of windows instead of devices."""


def _every(cases: list[Case], *, sampled: bool = False) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "case", [pytest.param(case, marks=_marks(case, sampled=sampled)) for case in cases], ids=str
    )


every_case = _every([*CASES, *TRAINING])
every_sampled_case = _every([*CASES, *TRAINING], sampled=True)
every_counting_case = _every(CASES)
every_estimated_case = _every(CASES, sampled=True)
