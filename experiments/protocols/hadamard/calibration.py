"""Calibrate the mechanism of a job over Hadamard tuples from its parameters.

With a Poisson blanket, tuples are cells, and the sets of items overlap in a fraction q = 2^-tau of
the cells: see `overlapping_cells`. Compare a fixed number N of blanket tuples with a Poisson number
T, if T happens to be at most N. The fixed number hides at least as well: the N - T missing tuples
can be added afterwards, and T is visible in either case. So the delta of a fixed blanket is at most
that of a Poisson blanket, divided by the probability that T is at most N.
"""

from __future__ import annotations

import math

from scipy.special import gammainccinv

from dpstream.randomizers.accounting.overlapping_cells import (
    epsilon_for_overlapping,
    poisson_for_overlapping,
)
from dpstream.randomizers.accounting.shuffled_oracles import published_mean
from dpstream.randomizers.accounting.table_distances import FOR_TABLES, check_tables
from dpstream.randomizers.cell_noise_law import CellNoiseLaw
from dpstream.randomizers.item_domains import domain_size
from dpstream.randomizers.search import least_integer, raised
from experiments.protocols.hadamard import HadamardLaw, HadamardParameters

# Candidate probabilities that all Poisson numbers are at most N; the best depends on N.
_NOT_EXCEEDED = (0.5, 0.99, 0.9999)
# Relative margin below scipy's inverse of the gamma function, above its error.
_OF_INVERSE = 1e-9
# Relative margin above the least mean, whose epsilon is then computed.
_SLACK = 1e-7
_MORE = 0.02


def calibrate(parameters: HadamardParameters, last_epoch: int, minimum: int) -> HadamardLaw:
    """Calibrate the mechanism of a job, whose windows have at least `minimum` contributors.

    The published calibration is the formula of Algorithm 2 (Lemma 4.10) with a single row, for the
    lambda = rho n 2^-tau of Algorithm 1: 90 k^2 ln(2 k / delta) / epsilon^2 blanket tuples in the
    set of an item. Like any other blanket, it is verified to be enough.

    Raises `ValueError` if every number of columns requires more than `messages_per_user` messages,
    or if the given number of columns or the published blanket is too small.

    >>> parameters = HadamardParameters(1.0, 1e-6, tuple("abc"))
    >>> law = calibrate(parameters, last_epoch=1, minimum=1000)
    >>> law.rows, round(law.blanket * law.minimum * law.overlap, 1)
    (10, 42.7)
    """
    delta = parameters.delta * (1 - FOR_TABLES)
    rows, blanket = _tuples(parameters, delta, minimum)

    def spent(blanket: float, epochs: int) -> float:
        return blanket_epsilon(
            blanket * minimum, delta, rows, parameters.items, epochs, parameters.dummies
        )

    def enough(blanket: float) -> bool:
        return last_epoch == 1 or spent(blanket, last_epoch) <= last_epoch * parameters.epsilon

    # All epochs together must lose at most last_epoch times epsilon with the same delta, although a
    # single epoch may already need all of it.
    if parameters.dummies == "poisson":
        blanket = raised(enough, blanket, _MORE)
    else:
        blanket = float(least_integer(enough, int(blanket) - 1))
    if parameters.calibration == "published" and spent(blanket, 1) > parameters.epsilon:
        raise ValueError(
            f"'calibration: published' does not achieve epsilon {parameters.epsilon:g} with its "
            f"blanket of {blanket:.4g} tuples. Use 'calibration: exact'"
        )
    if parameters.dummies == "poisson":
        drawn = CellNoiseLaw("poisson", blanket * minimum, minimum)
        check_tables(parameters.epsilon, parameters.delta, [(drawn, last_epoch)])
    return HadamardLaw(
        items=domain_size(parameters.domain),
        slots=parameters.items,
        rows=rows,
        minimum=minimum,
        last_epoch=last_epoch,
        blanket=blanket,
        dummies=parameters.dummies,
        epsilon=parameters.epsilon,
        delta=parameters.delta,
        stream_epsilon=parameters.epsilon if last_epoch == 1 else spent(blanket, last_epoch),
    )


def epsilon_with(law: HadamardLaw, honest: int) -> float:
    tuples, delta = law.blanket * honest, law.delta * (1 - FOR_TABLES)
    return blanket_epsilon(tuples, delta, law.rows, law.slots, 1, law.dummies)


def blanket_epsilon(
    tuples: float, delta: float, rows: int, items: int, epochs: int, dummies: str
) -> float:
    """Return the epsilon that the blanket tuples of all contributors achieve, rounded up.

    `tuples` is the number of these tuples, or its mean with "poisson" dummies. A user participates
    in `epochs` epochs.

    >>> round(blanket_epsilon(43_800, 1e-6, 10, 1, 1, "poisson"), 3)
    0.999
    >>> round(blanket_epsilon(43_800, 1e-6, 10, 1, 1, "bernoulli"), 3)
    1.007
    """
    overlap = 0.5**rows
    if dummies == "poisson":
        return epsilon_for_overlapping(tuples * overlap, delta, overlap, items, epochs)
    return min(
        epsilon_for_overlapping(
            float(gammainccinv(tuples + 1, likely ** (1 / epochs))) * (1 - _OF_INVERSE) * overlap,
            delta * likely,
            overlap,
            items,
            epochs,
        )
        for likely in _NOT_EXCEEDED
    )


def _tuples(parameters: HadamardParameters, delta: float, minimum: int) -> tuple[int, float]:
    """Return the affordable number of columns per tuple, and of blanket tuples per contributor."""
    if parameters.rows is not None:
        return parameters.rows, _blanket(parameters, delta, parameters.rows, minimum)
    # With fewer columns, items cannot be separated.
    fewest = max(1, (2 * parameters.items - 2).bit_length())
    limit = parameters.messages_per_user or math.inf
    needed = 0.0
    for rows in range(max(fewest, (minimum - 1).bit_length()), fewest - 1, -1):
        # With one column fewer, half of the blanket or slightly more is needed.
        needed /= 2
        if parameters.items + needed <= limit:
            needed = _blanket(parameters, delta, rows, minimum)
            if parameters.items + needed <= limit:
                return rows, needed
    needed = _blanket(parameters, delta, fewest, minimum)
    raise ValueError(
        f"messages_per_user is {limit:g}; expected at least {parameters.items + needed:.4g} with "
        f"{minimum:,} contributors. Raise messages_per_user or the minimum"
    )


def _blanket(parameters: HadamardParameters, delta: float, rows: int, minimum: int) -> float:
    epsilon, items, overlap = parameters.epsilon, parameters.items, 0.5**rows
    if parameters.calibration == "published":
        mean = published_mean(epsilon, delta, rows=1, items=items)
    else:
        mean = poisson_for_overlapping(epsilon, delta, overlap, items)
    blanket = mean * (1 + _SLACK) / overlap / minimum
    if parameters.dummies == "poisson":
        return blanket
    whole = math.ceil(blanket)
    if parameters.calibration == "exact":
        whole = least_integer(
            lambda whole: (
                blanket_epsilon(whole * minimum, delta, rows, items, 1, "bernoulli") <= epsilon
            ),
            whole - 1,
        )
    return float(whole)
