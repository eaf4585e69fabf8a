"""OpenDP's mechanisms pass this project's audit, and fail it with half the noise.

``make peers`` installs OpenDP and runs these tests; nothing else needs OpenDP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from dpstream.pipeline.audit.draw_comparison import compare_draws
from dpstream.pipeline.audit.exact import enumerate_losses
from dpstream.pipeline.audit.hockey_stick import Observations
from dpstream.pipeline.audit.plans import job_of
from dpstream.pipeline.audit.sampling import Sample
from dpstream.pipeline.conformance.cases import Stream
from dpstream.pipeline.conformance.finding import cases_of, find_cases
from dpstream.randomizers.given_values import check_epoch, checked_booleans
from dpstream.randomizers.guarantee import Guarantee
from dpstream.randomizers.randomness import seeded_generator
from tests.support.fresh_response import WHOLE, FreshResponse
from tests.support.fresh_response.entry import PROTOCOL
from tests.support.fresh_response.exact_law import ExactLaw

pytestmark = pytest.mark.verify

ALARM = 1e-11
TRIALS = 4_000
SCALE = 1.0
_NEVER_NEGATIVE = 1 << 20


@pytest.fixture(scope="module")
def opendp() -> Any:
    library = pytest.importorskip("opendp.prelude", reason="OpenDP is missing; run 'make peers'")
    library.enable_features("contrib")
    return library


@dataclass(frozen=True, slots=True)
class Releases:
    """Audit target whose observations are releases of one value, sampled by `draw`."""

    draw: Callable[[int, int], Sequence[int]]
    seen: tuple[str, ...] = ("releases of one value",)
    epochs: int = 1

    def observations(
        self, stream: Stream, trials: int, randomness: np.random.Generator
    ) -> tuple[Observations, ...]:
        (value,) = stream
        releases = self.draw(value, trials)
        return (Observations.of([((((each + _NEVER_NEGATIVE,), 1),),) for each in releases]),)


def observed(draw: Callable[[int, int], Sequence[int]], claimed: float) -> Any:
    """Audit a mechanism on one bit by sampling, and return the finding."""
    job = job_of(find_cases("split_budget")[0], epochs=1, minimum=1)
    guarantee = replace(job.guarantee, epsilon=claimed)
    sample = Sample("a peer", ("releases",), job, Releases(draw), guarantee, TRIALS)
    (finding,) = sample.run(seeded_generator(1), ALARM)
    return finding


@pytest.mark.parametrize("broken", [False, True])
def test_opendp_discrete_laplace_passes_the_audit(opendp: Any, broken: bool) -> None:
    space = (
        opendp.vector_domain(opendp.atom_domain(T=int)),
        opendp.l1_distance(T=int),
    )
    claimed = float(opendp.m.make_laplace(*space, scale=SCALE).map(1))
    assert claimed == pytest.approx(1 / SCALE)
    used = opendp.m.make_laplace(*space, scale=SCALE / 2 if broken else SCALE)

    def draw(value: int, count: int) -> Sequence[int]:
        # Each entry is drawn separately.
        return cast(Sequence[int], used([value] * count) if count else [])

    finding = observed(draw, claimed)
    print(f"discrete Laplace, {'half the noise' if broken else 'whole'}: {finding}")
    assert finding.failed == broken
    assert (finding.observed > claimed) == broken
    assert finding.observed > 0.2 * claimed


@pytest.mark.parametrize("broken", [False, True])
def test_opendp_randomized_response_passes_the_audit(opendp: Any, broken: bool) -> None:
    """The independent exact law matches the distribution of OpenDP's draws."""

    class Response(FreshResponse):
        louder: ClassVar[bool] = broken

        @property
        def measurement(self) -> Any:
            share = self.law.kept / WHOLE
            if self.louder:
                odds = (share / (1 - share)) ** 2
                share = odds / (1 + odds)
            return opendp.m.make_randomized_response_bool(prob=share)

        @property
        def guarantee(self) -> Guarantee:
            loss = opendp.m.make_randomized_response_bool(prob=self.law.kept / WHOLE).map(1)
            return replace(super().guarantee, epsilon=self.law.last_epoch * float(loss))

        def report(
            self,
            epoch: int,
            values: NDArray[np.integer] | NDArray[np.bool_],
            present: NDArray[np.bool_] | None,
            rng: np.random.Generator,
        ) -> NDArray[np.uint8]:
            check_epoch(epoch, after=self.epoch, last_epoch=self.law.last_epoch)
            checked = checked_booleans(epoch, values, present, self.population)
            held = checked if present is None else checked[present]
            release = self.measurement
            self.epoch = epoch
            return np.array([[release(bool(value))] for value in held], np.uint8).reshape(-1, 1)

    entry = replace(PROTOCOL, randomizer=Response)
    case = cases_of(entry, ExactLaw)[0]
    (enumerated,) = enumerate_losses(case)
    assert not enumerated.failed, "the exact law and the map stated by OpenDP agree"
    drawn = compare_draws(case, seeded_generator(2), windows=60, together=TRIALS, false_alarm=ALARM)
    print(f"randomized response, {'half the noise' if broken else 'whole'}: {drawn}")
    assert drawn.failed == broken
