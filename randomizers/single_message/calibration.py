"""Calibrate the mechanism of single_message from a job's parameters.

The local loss is the largest that shuffling among `minimum` contributors reduces to epsilon
(`amplification`). It is at least epsilon, since a smaller loss needs no shuffling.
"""

from __future__ import annotations

from dpstream.randomizers.accounting.amplification import (
    HiddenCoin,
    amplified_epsilon,
    most_local_loss,
    of_any_randomizer,
    of_randomized_response,
    of_rappor,
)
from dpstream.randomizers.accounting.calibration import response_within
from dpstream.randomizers.item_domains import domain_size
from dpstream.randomizers.single_message import (
    Response,
    SingleMessageLaw,
    SingleMessageParameters,
)


def calibrate(
    parameters: SingleMessageParameters, last_epoch: int, minimum: int, windows: int = 1
) -> SingleMessageLaw:
    """Calibrate the mechanism for windows of at least `minimum` contributors.

    `windows` is the number of windows of one epoch in which neighbors can differ.

    >>> law = calibrate(SingleMessageParameters(1.0, 1e-6, ("a", "b", "c")), 1, minimum=10_000)
    >>> law.response, round(law.local_epsilon, 2), [round(float(p), 4) for p in law.probabilities]
    ('randomized_response', 5.46, [0.9874, 0.0042])
    """
    return min(
        (
            _law(parameters, last_epoch, minimum, response, windows)
            for response in parameters.responses
        ),
        key=_relative_variance,
    )


def epsilon_with(law: SingleMessageLaw, honest: int, windows: int = 1) -> float:
    hidden = coins(law.response, law.local_epsilon, law.slots, law.items)
    return min(amplified_epsilon(coin, honest, law.delta, windows) for coin in hidden)


def coins(response: Response, loss: float, slots: int, items: int) -> list[HiddenCoin]:
    """Return models of a shuffled message; each yields a valid bound."""
    if response == "randomized_response":
        return [of_any_randomizer(loss), of_randomized_response(loss, items + 1)]
    return [of_any_randomizer(loss), *([of_rappor(loss)] if slots == 1 else [])]


def _law(
    parameters: SingleMessageParameters,
    last_epoch: int,
    minimum: int,
    response: Response,
    windows: int,
) -> SingleMessageLaw:
    items, slots = domain_size(parameters.domain), parameters.items
    loss = most_local_loss(
        parameters.epsilon,
        parameters.delta,
        minimum,
        lambda loss: coins(response, loss, slots, items),
        windows,
    )
    stream_epsilon = parameters.epsilon
    if last_epoch > 1:
        stream_epsilon = min(
            amplified_epsilon(coin, minimum, parameters.delta, windows * last_epoch)
            for coin in coins(response, loss, slots, items)
        )
        # Even without shuffling, the sum of the local losses is a bound.
        stream_epsilon = min(stream_epsilon, windows * last_epoch * loss)
    return SingleMessageLaw(
        items=items,
        slots=slots,
        response=response,
        minimum=minimum,
        last_epoch=last_epoch,
        odds=response_within(loss, 2 * slots if response == "rappor" else 1),
        epsilon=parameters.epsilon,
        delta=parameters.delta,
        stream_epsilon=stream_epsilon,
    )


def _relative_variance(law: SingleMessageLaw) -> float:
    held, other = map(float, law.probabilities)
    return other * (1 - other) / (held - other) ** 2
