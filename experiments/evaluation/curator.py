"""Reference curator, who sees all values and adds Gaussian noise to every count.

No part of dpstream adds this noise: all users would have to trust the curator. For (epsilon,
delta), and counts that a user changes by a Euclidean distance of at most `sensitivity`, there are
two standard deviations:

* Published, in the tables of "Encode, Shuffle, Analyze Privacy Revisited":
  sigma = (sqrt(G) + sqrt(G + 2 epsilon)) / (2 epsilon) with G = ln(1 / (2 delta)). It is too
  small: at epsilon 1 and delta 5e-10 it is 4.66, where the true delta is 1.1e-7.
* Exact, by the analytic Gaussian mechanism (Balle, Wang, ICML 2018, Theorem 8).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm


def published_deviation(epsilon: float, delta: float) -> float:
    """Return the standard deviation used in the paper's tables, for sensitivity 1.

    >>> round(published_deviation(1, 5e-10), 2), round(published_deviation(1, 5e-8), 2)
    (4.66, 4.14)
    """
    tail = math.log(1 / (2 * delta))
    return (math.sqrt(tail) + math.sqrt(tail + 2 * epsilon)) / (2 * epsilon)


def exact_deviation(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return the least standard deviation for (epsilon, delta)-differential privacy.

    >>> round(exact_deviation(1, 5e-10), 2), round(exact_deviation(1, 5e-8), 2)
    (5.61, 4.81)
    """
    largest = 2 * sensitivity * (1 + math.sqrt(2 * math.log(1.25 / delta))) * (1 + 1 / epsilon)
    found = brentq(
        lambda deviation: loss_delta(epsilon, deviation / sensitivity) - delta,
        1e-3 * sensitivity,
        largest,
        xtol=1e-12,
        rtol=1e-12,
    )
    return float(found)


def loss_delta(epsilon: float, deviation: float) -> float:
    """Return the exact delta of Gaussian noise, for sensitivity 1."""
    half, shift = 1 / (2 * deviation), epsilon * deviation
    first, second = norm.cdf(half - shift), norm.logcdf(-half - shift)
    return float(first - np.exp(epsilon + second))
