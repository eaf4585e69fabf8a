"""Check, exactly or to dozens of digits, that rounding never favors the stated guarantee.

* The odds of devices' answers never exceed the requested loss.
* The decays and rates of noise, also per contributor, are never below the required values.
* The capacity for dummies is exceeded with at most the probability that is charged.
* Tables are at least as close to their distributions as they state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal, localcontext
from fractions import Fraction

from scipy import stats

from dpstream.pipeline.audit.audits import Finding
from dpstream.pipeline.audit.recomputed.small_laws import finding
from dpstream.pipeline.conformance.divergences import exponential
from dpstream.randomizers.accounting.calibration import optimal
from dpstream.randomizers.accounting.connected_dots import normal_deviation
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.composed import log_rounded_up
from dpstream.randomizers.dummies import (
    REDRAW_PROBABILITY,
    BernoulliDummies,
    ClusteredDummies,
    Dummies,
    PoissonDummies,
)
from dpstream.randomizers.noise_tables import (
    TABLE_BITS,
    NoiseTable,
    binomial_table,
    cluster_rate,
    discrete_laplace_table,
    logarithmic_table,
    poisson_table,
)

ATTACK = "rounding"
_EPSILONS = (0.01, 0.3, 1.0, 2.0, math.pi, 8.0)
_DIGITS = 90


def rounding() -> Iterator[Finding]:
    yield finding(ATTACK, "odds of signs, compared with the target loss", _odds())
    yield finding(
        ATTACK, "dummies from all contributors, compared with the planned number", _shares()
    )
    yield finding(ATTACK, "number of clusters of dummies", _clusters())
    yield finding(ATTACK, "capacity for dummies", _room())
    yield finding(ATTACK, "tables of noise, compared with their distributions", _tables())
    yield finding(ATTACK, "Gaussian noise, compared with the target delta", _normal())


def _odds() -> Iterator[str]:
    for epsilon in _EPSILONS:
        most = exponential(epsilon, rounded_up=True)
        for signs in (1, 2, 5, 16):
            law = optimal(signs, epsilon)
            odds = Fraction(max(law.weights), min(law.weights))
            if odds > most:
                yield f"calibrates {signs} signs to epsilon {epsilon:g}, but they lose more"
            if exponential(law.loss, rounded_up=True) < odds:
                yield f"states a loss of {law.loss!r} for {signs} signs, but they lose more"
    for odds in (Fraction(3), Fraction(10**30 + 1, 10**30), Fraction(7, 5)):
        for times in (1, 3, 100):
            if exponential(log_rounded_up(odds, times), rounded_up=True) < odds**times:
                yield f"states a loss below {times} times the logarithm of {odds}"


def _shares() -> Iterator[str]:
    for mean in (0.1, 3.3, 41.7, 1e5 / 7):
        for cells in (1, 3, 1000):
            wanted = Fraction(mean) * cells
            stage = CellNoiseLaw("shuffle", mean, 7).of_stage(cells)
            assert stage is not None
            yield _too_few("the stage", Fraction(stage.rate), wanted)
            for minimum in (2, 7, 1000):
                if mean >= minimum:
                    continue
                for kind in ("poisson", "bernoulli", "negative_binomial"):
                    shape = mean / 3 if kind == "negative_binomial" else None
                    law = CellNoiseLaw(kind, mean, minimum, shape)
                    dummies = law.of_contributors(cells)
                    assert dummies is not None
                    what = f"{minimum} contributors with {kind} dummies"
                    yield _too_few(what, Fraction(_rate(dummies)) * minimum, wanted)


def _rate(dummies: Dummies) -> Fraction:
    if isinstance(dummies, PoissonDummies):
        return Fraction(dummies.rate)
    if isinstance(dummies, ClusteredDummies):
        return Fraction(dummies.cell_mean) * dummies.cells
    assert isinstance(dummies, BernoulliDummies)
    return Fraction(dummies.probability) * dummies.cells


def _too_few(what: str, sent: Fraction, wanted: Fraction) -> str:
    if sent >= wanted:
        return ""
    return (
        f"{what} add {float(sent)!r} dummies on average, but noise was calibrated to "
        f"{float(wanted)!r}"
    )


def _clusters() -> Iterator[str]:
    for shape in (0.1, 1.0, 2.7, 40.0):
        for mean in (0.01, 1.0, 5.3, 1000.0):
            for times in (1, 3, 1000):
                with localcontext() as context:
                    context.prec = _DIGITS
                    share = 1 + Decimal(mean) / Decimal(shape)
                    exact = times * Decimal(shape) * share.ln()
                    if Decimal(cluster_rate(shape, mean, times)) < exact:
                        yield f"draws fewer clusters than {exact:.20g} on average"


def _room() -> Iterator[str]:
    """Check that at most the charged `REDRAW_PROBABILITY` of draws exceeds the capacity."""
    for contributors in (1, 30, 10_000):
        for rate in (0.01, 0.7, 9.0):
            mean = rate * contributors
            most = PoissonDummies(rate).most(contributors)
            yield _too_rare(stats.poisson.logsf(most, mean), "Poisson", contributors)
            shape = 0.2 * contributors
            most = ClusteredDummies(1, 0.2, rate).most(contributors)
            log = stats.nbinom.logsf(most, shape, shape / (shape + mean))
            yield _too_rare(log, "clustered", contributors)
        most = BernoulliDummies(5, 0.3).most(contributors)
        yield _too_rare(stats.binom.logsf(most, 5 * contributors, 0.3), "Bernoulli", contributors)


def _too_rare(logarithm: float, kind: str, contributors: int) -> str:
    if math.isnan(logarithm) or logarithm <= math.log(REDRAW_PROBABILITY):
        return ""
    return (
        f"redraws {kind} dummies for {contributors:,} contributors with probability "
        f"{math.exp(logarithm):.3g}, but charges {REDRAW_PROBABILITY:.3g}"
    )


def _tables() -> Iterator[str]:
    laws: list[tuple[str, NoiseTable, Callable[[int], Decimal]]] = [
        (f"Poisson({mean:g})", poisson_table(mean), _poisson(mean)) for mean in (0.01, 2.5, 60.0)
    ]
    laws += [
        ("Binomial(9, 0.2)", binomial_table(9, 0.2), _binomial(9, 0.2)),
        ("Logarithmic(0.6)", logarithmic_table(0.6), _logarithmic(0.6)),
    ]
    for decay in (Fraction(1, 2), Fraction(9, 10)):
        laws.append((f"Laplace({decay})", discrete_laplace_table(decay), _laplace(decay)))
    for name, table, law in laws:
        with localcontext() as context:
            context.prec = _DIGITS
            unit, before, off, known = Decimal(1 << TABLE_BITS), 0, Decimal(0), Decimal(0)
            for count, bound in enumerate(table.bounds, table.first):
                likely = law(count)
                off += abs(Decimal(bound - before) / unit - likely)
                known, before = known + likely, bound
            off = (off + 1 - known) / 2
            if off > Decimal(table.distance):
                yield (
                    f"states that a table is within {table.distance:.4g} of {name}; the "
                    f"distance is {off:.4g}"
                )


def _poisson(mean: float) -> Callable[[int], Decimal]:
    return lambda count: (
        (-Decimal(mean)).exp() * Decimal(mean) ** count / math.factorial(count)
        if count
        else (-Decimal(mean)).exp()
    )


def _binomial(trials: int, probability: float) -> Callable[[int], Decimal]:
    hit = Decimal(probability)
    return lambda count: math.comb(trials, count) * hit**count * (1 - hit) ** (trials - count)


def _logarithmic(failure: float) -> Callable[[int], Decimal]:
    power = Decimal(failure)
    return lambda count: -(power**count) / count / (1 - power).ln()


def _laplace(decay: Fraction) -> Callable[[int], Decimal]:
    def law(number: int) -> Decimal:
        power = Decimal(decay.numerator) / decay.denominator
        return (1 - power) / (1 + power) * power ** abs(number)

    return law


def _normal() -> Iterator[str]:
    """Check two Gaussians at distance 1: maximize P(set) - e^epsilon Q(set) over half lines."""
    for epsilon in (0.3, 1.0, 4.0):
        for delta in (0.05, 1e-3, 1e-8):
            deviation = normal_deviation(epsilon, delta)
            reach = epsilon * deviation
            likely = stats.norm.sf(reach - 1 / (2 * deviation))
            least = likely - math.exp(epsilon) * stats.norm.sf(reach + 1 / (2 * deviation))
            if least > delta * (1 + 1e-6):
                yield (
                    f"calibrates Gaussian noise to epsilon {epsilon:g} and delta {delta:g}, but "
                    f"delta is {least:.4g}"
                )
