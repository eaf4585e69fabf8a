"""Compute exact losses of Poisson cells to thirty digits, by inverting a Laplace transform.

(1 - e^-x)+ is the integral of e^(s x) / (s (s + 1)) over a vertical line right of 0, over 2 pi i.
So delta is the same integral of e^(-s epsilon) M(s) / (s (s + 1)), where M(s) is the mean of e^(s
loss), a product over all cells. With Poisson noise, the factor of a cell that is shifted up is the
mean of (Z / lambda)^-s. That of a cell shifted down is the mean of (Z / lambda)^(s + 1) without the
message. Both are computed from enough central moments of Z: the terms decrease like (s^2 /
lambda)^(k / 2) / k!!. There is no discretization and no truncation.
"""

from __future__ import annotations

from functools import cache

import mpmath

mpmath.mp.dps = 40

MOMENTS = 100


@cache
def scaled_moments(mean: mpmath.mpf) -> list[mpmath.mpf]:
    """Return means of ((Z - lambda) / lambda)^k over k!; the cumulants of Z are all lambda."""
    # Recursion of moments from cumulants: m_k = sum of C(k - 1, i - 1) lambda m_(k - i).
    moments = [mpmath.mpf(1), mpmath.mpf(0)]
    for order in range(2, MOMENTS):
        moments.append(
            mpmath.fsum(
                mpmath.binomial(order - 1, size - 1) * mean * moments[order - size]
                for size in range(2, order + 1)
            )
        )
    return [each / mean**k / mpmath.factorial(k) for k, each in enumerate(moments)]


def log_transform(mean: mpmath.mpf, power: mpmath.mpc) -> mpmath.mpc:
    """Return the logarithm of the mean of (Z / lambda)^power."""
    excess, falling = mpmath.mpc(0), mpmath.mpc(1)
    for order, moment in enumerate(scaled_moments(mean)):
        if order:
            falling *= power - (order - 1)
            term = falling * moment
            excess += term
            if order > 3 and abs(term) < mpmath.mpf(10) ** -40 * abs(excess):
                return mpmath.log1p(excess)
    raise ArithmeticError(f"too few moments for {power} and {mean}")


def true_delta(mean: float, up: int, down: int, epsilon: float) -> mpmath.mpf:
    """Return delta of `up` and `down` shifted cells; `mean` is at least several thousand."""
    exact, requested = mpmath.mpf(mean), mpmath.mpf(epsilon)
    spread = (up + down) / exact
    line = max(requested / spread - mpmath.mpf("0.5"), 1)

    def part(height: mpmath.mpf) -> mpmath.mpf:
        s = mpmath.mpc(line, height)
        exponent = -s * requested
        if up:
            exponent += up * log_transform(exact, -s)
        if down:
            exponent += down * log_transform(exact, s + 1)
        return mpmath.re(mpmath.exp(exponent) / (s * (s + 1)))

    # The trapezoidal rule adds what lies 2 pi / step away: less than e^-75 of a loss that far below
    # epsilon, and e^-120 of one that far above, more than 15 standard deviations.
    step = min(line / 12, mpmath.mpf("0.4") / mpmath.sqrt(spread))
    whole, height, at_zero = part(mpmath.mpf(0)) / 2, step, abs(part(mpmath.mpf(0)))
    while height * height * spread < 140:
        whole += part(height)
        height += step
    assert abs(part(height)) < at_zero * mpmath.mpf(10) ** -25
    return whole * step / mpmath.pi


def renyi_divergence(mean: float, alpha: float) -> mpmath.mpf:
    """Return the larger divergence of a cell shifted up or down."""
    exact, order = mpmath.mpf(mean), mpmath.mpf(alpha)
    both = (log_transform(exact, 1 - order), log_transform(exact, order))
    return max(mpmath.re(each) for each in both) / (order - 1)
