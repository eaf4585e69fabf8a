"""Convert between this package's privacy losses and those of Google's dp_accounting.

`losses_of` reads dp_accounting events, which describe mechanisms. Known losses are exact or rounded
conservatively; an unknown event is rejected. `to_dp_accounting` returns distributions that
dp_accounting can compose and report. Numbers to which noise is added differ by 1 between neighbors
unless an event specifies a sensitivity. For randomized response, any two values are neighbors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.randomizers.accounting import rounding
from dpstream.randomizers.accounting.connected_dots import laplace_losses, normal_losses
from dpstream.randomizers.accounting.loss_distributions import (
    LossDistribution,
    Losses,
    Powers,
    on_grid,
)
from dpstream.randomizers.accounting.shifted_noise import GRID_FINENESS

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_TRUNCATED: Final = 1e-20
# Finer than needed for compositions, so that the rounding of a single mechanism is negligible.
_FINENESS: Final = GRID_FINENESS / 10
# Error of the logarithms and exponentials in a loss.
_SLACK: Final = 16 * rounding.FUNCTION

# Kind of a mechanism, its noise parameter, and its number of buckets or its sensitivity.
_Mechanism = tuple[str, float, int]


def losses_of(event: DpEvent) -> LossDistribution:
    """Return the privacy loss distribution of a dp_accounting event.

    Known events are randomized response, Gaussian, Laplace and discrete Laplace noise, no-op, and
    compositions of these. Raises `ValueError` for other events, or if the noise is not positive.
    """
    mechanisms: Counter[_Mechanism] = Counter()
    precision = 0.0
    for mechanism, count in _mechanisms(event, 1):
        if mechanism[0] == "normal":
            # Several Gaussian mechanisms are equivalent to one with the sum of their precisions.
            precision += count / mechanism[1] ** 2
        else:
            mechanisms[mechanism] += count
    discrete = {each: _losses(each) for each in mechanisms if each[0] != "laplace"}
    squares = [precision] if precision else []
    squares += [_square(each, discrete.get(each)) for each in mechanisms]
    if not squares:
        return LossDistribution(1.0, 0, np.ones(1), 0.0)
    # All mechanisms use one grid, fine enough for the mechanism with the least loss.
    width = _FINENESS * math.sqrt(min(squares))
    whole = normal_losses(1 / math.sqrt(precision), width) if precision else None
    for each, count in mechanisms.items():
        privacy_losses = discrete.get(each)
        single = (
            laplace_losses(each[1], width)
            if privacy_losses is None
            else on_grid(privacy_losses, width)
        )
        part = Powers(single, count).of(count)
        whole = part if whole is None else whole.composed_with(part, _TRUNCATED)
    assert whole is not None
    return whole


def to_dp_accounting(
    first: LossDistribution, second: LossDistribution | None = None
) -> PrivacyLossDistribution:
    """Return dp_accounting's representation of a distribution, with all rounding errors charged.

    `second` is the loss of the second neighbor against the first, on a grid of the same width; None
    means that it equals `first`.
    """
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    pmf = _pmf(first)
    return PrivacyLossDistribution(pmf, pmf if second is None else _pmf(second))


def event_of_response(loss: float, symbols: int = 2) -> DpEvent:
    """Return the event of randomized response over `symbols` symbols with this local loss.

    >>> event_of_response(math.log(3)).noise_parameter
    0.5
    """
    from dp_accounting.dp_event import RandomizedResponseDpEvent

    return RandomizedResponseDpEvent(symbols / (math.exp(loss) + symbols - 1), symbols)


def _pmf(losses: LossDistribution) -> Any:
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    # The error of losses moves them all up by whole points; the excess of masses moves to infinity.
    up = math.ceil(losses.slack / losses.width)
    more = math.expm1(losses.rounding) * float(losses.masses.sum())
    return DensePLDPmf(losses.width, losses.first + up, losses.masses, losses.certain + more, True)


def _mechanisms(event: DpEvent, count: int) -> Iterator[tuple[_Mechanism, int]]:
    from dp_accounting import dp_event

    match event:
        case dp_event.NoOpDpEvent():
            return
        case dp_event.ComposedDpEvent(events=events):
            for each in events:
                yield from _mechanisms(each, count)
        case dp_event.SelfComposedDpEvent(event=single, count=times):
            if times:
                yield from _mechanisms(single, count * times)
        case dp_event.GaussianDpEvent(noise_multiplier=deviation) if deviation > 0:
            yield ("normal", float(deviation), 1), count
        case dp_event.LaplaceDpEvent(noise_multiplier=scale) if scale > 0:
            yield ("laplace", float(scale), 1), count
        case dp_event.DiscreteLaplaceDpEvent(noise_parameter=loss, sensitivity=size) if loss > 0:
            yield ("discrete laplace", float(loss), int(size)), count
        case dp_event.RandomizedResponseDpEvent(num_buckets=1):
            return
        case dp_event.RandomizedResponseDpEvent(noise_parameter=noise, num_buckets=size) if (
            0 < noise <= 1
        ):
            if noise < 1:
                yield ("response", float(noise), int(size)), count
        case _:
            raise ValueError(
                f"the privacy loss of {event} is unknown; expected randomized response, Gaussian, "
                "Laplace or discrete Laplace noise, or a composition of these"
            )


def _losses(mechanism: _Mechanism) -> Losses:
    kind, number, size = mechanism
    losses, masses = _of_response(number, size) if kind == "response" else _of_steps(number, size)
    return Losses(losses, masses, 0.0, _SLACK * (1 + float(np.abs(losses).max())), _SLACK)


def _of_response(noise: float, symbols: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the losses if a uniform symbol replaces the true one with probability `noise`."""
    other = noise / symbols
    own = 1 - noise + other
    loss = math.log(own / other)
    return np.array([loss, -loss, 0.0]), np.array([own, other, (symbols - 2) * other])


def _of_steps(loss: float, distance: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the losses of discrete Laplace noise around 0, against noise around `distance`."""
    places = np.arange(distance + 1).astype(np.float64)
    decay = math.exp(-loss)
    masses = (1 - decay) / (1 + decay) * decay**places
    # All integers below both centers have the same loss, and so have all above both centers.
    masses[[0, -1]] = 1 / (1 + decay) * np.array([1.0, decay**distance])
    losses = loss * (distance - 2.0 * places)
    return losses, masses


def _square(mechanism: _Mechanism, privacy_losses: Losses | None) -> float:
    if privacy_losses is None:
        return 1 / mechanism[1] ** 2
    return float(privacy_losses.masses @ np.square(privacy_losses.losses))
