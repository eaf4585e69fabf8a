"""From the parameters of a job over Hadamard tuples to the constants that its devices run on.

Tuples are words and the sets of items overlap in a part q = 2^-tau of them: see
`overlapping_cells`, where the blanket is Poisson. A fixed number N of blanket tuples hides no less
than a Poisson number T of them that happens not to exceed N: tuples up to N can be added later, and
T is seen in either case. So what a fixed blanket spends of delta is at most that of a Poisson one,
over the probability that T does not exceed N.
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
from dpstream.randomizers.hadamard import HadamardLaw, HadamardParameters
from dpstream.randomizers.item_domains import domain_size
from dpstream.randomizers.search import least_integer, raised

# Of all Poisson numbers not to exceed the fixed one; what serves best depends on how large it is.
_NOT_EXCEEDED = (0.5, 0.99, 0.9999)
# Taken off what scipy's inverse of the gamma function says, which is off by less.
_OF_INVERSE = 1e-9
# The least mean is found to within so much of itself, and its epsilon computed.
_SLACK = 1e-7
_MORE = 0.02


def calibrate(parameters: HadamardParameters, last_epoch: int, minimum: int) -> HadamardLaw:
    """The law of a job.

    What is called the published calibration is the formula of Algorithm 2 (Lemma 4.10) with a
    single row, for the lambda = rho n 2^-tau of Algorithm 1: 90 k^2 ln(2 k / delta) / epsilon^2
    blanket tuples in the set of an item. That this is enough is checked as for any other blanket.

    Args:
        parameters: of the job.
        last_epoch: number of epochs.
        minimum: fewest contributors that a window is released with.

    Raises:
        ValueError: no number of columns keeps within `messages_per_user`, or items hide each other
            too badly with so few columns, or the published blanket is not enough.

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

    # An epoch may have used up all of delta for certain losses; all of them must not lose more than
    # so many times epsilon with the same delta.
    if parameters.dummies == "poisson":
        blanket = raised(enough, blanket, _MORE)
    else:
        blanket = float(least_integer(enough, int(blanket) - 1))
    if parameters.calibration == "published" and spent(blanket, 1) > parameters.epsilon:
        raise ValueError(
            f"the published blanket of {blanket:.4g} tuples is not enough for epsilon "
            f"{parameters.epsilon:g}: use calibration: exact"
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
    """The epsilon with so many honest contributors, at least 1, where these add the noise."""
    tuples, delta = law.blanket * honest, law.delta * (1 - FOR_TABLES)
    return blanket_epsilon(tuples, delta, law.rows, law.slots, 1, law.dummies)


def blanket_epsilon(
    tuples: float, delta: float, rows: int, items: int, epochs: int, dummies: str
) -> float:
    """Epsilon of so many blanket tuples of all contributors together, rounded up.

    Args:
        tuples: their mean number, or their number if it is fixed.
        delta: wanted.
        rows: tau.
        items: k.
        epochs: in how many a user takes part.
        dummies: "poisson", or "bernoulli" for a fixed number.

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
    """Columns of a tuple, and tuples in the blanket of a contributor: more columns, less error."""
    if parameters.rows is not None:
        return parameters.rows, _blanket(parameters, delta, parameters.rows, minimum)
    # With fewer columns items hide each other too badly.
    fewest = max(1, (2 * parameters.items - 2).bit_length())
    limit = parameters.messages_per_user or math.inf
    needed = 0.0
    for rows in range(max(fewest, (minimum - 1).bit_length()), fewest - 1, -1):
        # With one column less, half of the blanket or a little more is needed.
        needed /= 2
        if parameters.items + needed <= limit:
            needed = _blanket(parameters, delta, rows, minimum)
            if parameters.items + needed <= limit:
                return rows, needed
    needed = _blanket(parameters, delta, fewest, minimum)
    raise ValueError(
        f"messages_per_user is {limit:g}, but at least {parameters.items + needed:.4g} are needed "
        f"with {minimum:,} contributors: raise it, or the minimum"
    )


def _blanket(parameters: HadamardParameters, delta: float, rows: int, minimum: int) -> float:
    """Tuples in the blanket of a contributor, rounded up."""
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
