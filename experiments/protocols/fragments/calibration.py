"""Calibrate the mechanism of fragments from a job's parameters.

Neighboring inputs differ in a few bits. Each of these bits is one message of randomized response,
hidden among all other users' messages about the same cell (`amplification`). So the loss of a user
is the composed loss of these bits. With several reports, it is the smaller of two bounds. First,
reports are made from bits that the backstop has reversed, and reveal no more than these bits
themselves would, shuffled. Second, each report is randomized response by itself. (The first term of
the paper's Theorem IV.2 claims more than is true. The tables use Equation 1, not Theorem III.1. The
first row of Table III has the message count for a local epsilon of 2, but the privacy for 1.)

A permanent backstop does not provide the first bound. If a user differs at one epoch, other epochs
may have revealed the total number of bits that the backstop has reversed. If only that user
changes, the sums of two epochs then differ by just the change, and the other users do not hide it.
The second bound holds for each epoch and for all epochs together, for any draws of the backstops:
given these draws, neighboring inputs differ in at most as many bits as before, and reports are
independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpstream.randomizers.accounting.amplification import (
    amplified_delta,
    amplified_epsilon,
    of_randomized_response,
)
from dpstream.randomizers.accounting.calibration import response_within
from dpstream.randomizers.accounting.shifted_noise import delta_of_tables
from dpstream.randomizers.accounting.table_distances import FOR_TABLES
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.dummies import REDRAW_PROBABILITY
from dpstream.randomizers.item_domains import domain_size
from dpstream.randomizers.search import crossing, least_parameter, raised
from experiments.protocols.fragments import (
    FragmentsLaw,
    FragmentsParameters,
    differing_bits,
)
from experiments.protocols.fragments.permanent_bits import WORD_BITS


def calibrate(parameters: FragmentsParameters, last_epoch: int, minimum: int) -> FragmentsLaw:
    """Return the mechanism with the least sufficient noise, for at least `minimum` contributors.

    Raises `ValueError` if no noise is enough.

    >>> requested = FragmentsParameters(1.0, 1e-6, tuple("abc"))
    >>> law = calibrate(requested, last_epoch=1, minimum=100_000)
    >>> round(law.local_epsilon, 2), round(law.messages_per_user, 4)
    (14.39, 1.0008)
    """
    size = domain_size(parameters.domain)
    shape = _Shape(
        differing_bits(size, parameters.items, parameters.neighbors),
        parameters.reports,
        permanent=parameters.permanent,
    )
    if parameters.permanent and last_epoch == 1:
        raise ValueError(
            "'permanent' is true, but the horizon has only 1 epoch; expected at least 2. Raise "
            "epochs.count, or remove 'permanent'"
        )
    delta = parameters.delta * (1 - FOR_TABLES)
    if parameters.calibration == "published":
        loss = published_loss(parameters.epsilon, delta, minimum)
    else:
        loss = shape.most_loss(parameters.epsilon, delta, minimum)
    stream_epsilon = parameters.epsilon
    if last_epoch > 1:
        stream_epsilon = shape.epsilon(loss, delta, minimum, last_epoch)
    backstop = response_within(loss) if parameters.reports > 1 else None
    if parameters.permanent:
        backstop = _odds_of_messages(loss)
    law = FragmentsLaw(
        last_epoch=last_epoch,
        items=size,
        slots=parameters.items,
        reports=parameters.reports,
        minimum=minimum,
        neighbors=parameters.neighbors,
        calibration=parameters.calibration,
        odds=response_within(loss_of_report(loss, parameters.reports)),
        backstop=backstop,
        epsilon=parameters.epsilon,
        delta=parameters.delta,
        stream_epsilon=max(parameters.epsilon, stream_epsilon),
        permanent=parameters.permanent,
    )
    _check_draws(law)
    return law


def epsilon_with(law: FragmentsLaw, honest: int) -> float:
    shape = _Shape(
        law.differing_bits,
        law.reports,
        permanent=law.permanent,
    )
    delta = law.delta * (1 - FOR_TABLES)
    if law.permanent:
        return shape.epsilon_of_reports(law.odds.loss, delta, honest, 1)
    return shape.epsilon((law.backstop or law.odds).loss, delta, honest, 1)


def loss_of_report(backstop: float, reports: int) -> float:
    """Return the loss per report of a bit with tau reports and a backstop: asinh(sinh(loss) / tau).

    The paper's tables follow this rule. The result is approximately the backstop's loss minus ln
    tau. A single report has the backstop's loss.
    """
    if reports == 1:
        return backstop
    return math.asinh(math.sinh(backstop) / reports)


def published_epsilon(mean: float, delta: float, contributors: int) -> float:
    """Return epsilon by the paper's Equation 1 for shuffled randomized response of one bit.

    Epsilon is sqrt(32 ln(4 / delta) / r) (1 - r / n) with r = lambda - sqrt(2 lambda ln(2 /
    delta)). `mean` is lambda = 2 n / (1 + e^loss), from 14 ln(4 / delta) to n = `contributors`.
    """
    certain = mean - math.sqrt(2 * mean * math.log(2 / delta))
    return math.sqrt(32 * math.log(4 / delta) / certain) * (1 - certain / contributors)


def published_loss(epsilon: float, delta: float, contributors: int) -> float:
    """Return a bit's loss for which `published_epsilon` is epsilon, within the valid range.

    >>> round(published_loss(1.0, 5e-8, 1_914_589), 3)
    8.547
    """

    def excess(mean: float) -> float:
        return published_epsilon(mean, delta, contributors) - epsilon

    least = 14 * math.log(4 / delta)
    if least > contributors or excess(contributors) > 0 or excess(least) < 0:
        raise ValueError(
            f"'calibration: published' does not support epsilon {epsilon:g} with delta {delta:g} "
            f"and {contributors:,} contributors. Use 'calibration: exact'"
        )
    mean = crossing(excess, least, contributors, 1e-9)
    mean = raised(lambda mean: excess(mean) <= 0, mean, 1e-12)
    return math.log(2 * contributors / mean - 1)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Components of a user's loss; neighboring inputs differ in `bits` bits at an epoch."""

    bits: int
    reports: int
    permanent: bool

    def most_loss(self, epsilon: float, delta: float, contributors: int) -> float:
        """Return the largest loss of a bit, or of its backstop, that meets epsilon and delta."""
        # With this loss per bit, epsilon holds for any number of other users.
        safe = epsilon / self.bits
        if self.permanent:
            of_report = safe / self.reports * (1 - 1e-12)
            safe = math.asinh(self.reports * math.sinh(of_report))

        def spent(odds: float) -> float:
            loss = -math.log(odds)
            if loss <= safe:
                return 0.0
            return self._least(
                loss, lambda one, many: self._delta(one, contributors, epsilon, many)
            )

        # The guess assumes Gaussian noise in as many cells.
        guess = 20 * self.bits / min(epsilon, 1.0) ** 2 / contributors
        return -math.log(least_parameter(spent, delta, min(guess, math.exp(-safe))))

    def epsilon(self, loss: float, delta: float, contributors: int, epochs: int) -> float:
        return self._least(
            loss, lambda one, many: self._epsilon(one, contributors, delta, epochs * many)
        )

    def epsilon_of_reports(
        self, loss: float, delta: float, contributors: int, epochs: int
    ) -> float:
        return self._epsilon(loss, contributors, delta, epochs * self.reports)

    def _least(self, loss: float, spent: Callable[[float, int], float]) -> float:
        """Return the smaller loss of the two bounds: from the backstop, or from all reports."""
        of_reports = spent(loss_of_report(loss, self.reports), self.reports)
        if self.reports == 1 or self.permanent:
            return of_reports
        return min(spent(loss, 1), of_reports)

    def _delta(self, loss: float, contributors: int, epsilon: float, times: int) -> float:
        coin = of_randomized_response(loss, 2)
        return amplified_delta(coin, contributors, epsilon, self.bits * times)

    def _epsilon(self, loss: float, contributors: int, delta: float, times: int) -> float:
        coin = of_randomized_response(loss, 2)
        return amplified_epsilon(coin, contributors, delta, self.bits * times)


def _odds_of_messages(loss: float) -> ComposedLaw:
    words = 1 << WORD_BITS
    kept, reversed_ = response_within(loss).weights
    threshold = -(-reversed_ * words // (kept + reversed_))
    return ComposedLaw((words - threshold, threshold))


def _check_draws(law: FragmentsLaw) -> None:
    """Check that draws from tables, and redraws over capacity, cost at most their part of delta.

    If every contributor has its own producer, there are as many draws as contributors.
    """
    draws = law.last_epoch * law.minimum
    left_out = delta_of_tables(law.epsilon, REDRAW_PROBABILITY, draws)
    backstop = None if law.permanent else law.backstop_flips
    for flips, times in ((law.flips, law.reports), (backstop, 1)):
        if flips is not None:
            distance = 2 * times * law.items * flips.distance(law.minimum)
            left_out += delta_of_tables(law.epsilon, distance, draws)
    if left_out > FOR_TABLES * law.delta:
        raise ValueError(
            f"epsilon {law.epsilon:g} with delta {law.delta:g} requires more precise draws than "
            "are available. Use a smaller epsilon or a larger delta"
        )
