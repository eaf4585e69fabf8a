from __future__ import annotations

import math

import numpy as np
import pytest

from dpstream.randomizers.accounting.amplification import (
    most_local_loss,
    of_any_randomizer,
    of_rappor,
)
from dpstream.randomizers.composed import ComposedLaw
from dpstream.randomizers.guarantee import rounded_up
from dpstream.randomizers.randomness import seeded_generator
from dpstream.randomizers.single_message import (
    Response,
    SingleMessage,
    SingleMessageLaw,
    SingleMessageParameters,
)
from dpstream.randomizers.single_message.calibration import calibrate, coins

LABELS = tuple("abc")


def test_bits_are_packed_in_order() -> None:
    law = SingleMessageLaw(20, 3, "rappor", 10, 1, ComposedLaw((10**30, 1)), 1.0, 0.1, 1.0)
    devices, rng = SingleMessage(law), seeded_generator(82)
    devices.enroll(3, rng)
    words = devices.report(1, np.array([[1, 9, 20], [8, 8, 0], [0, 0, 0]]), None, rng)
    assert words.tolist() == [[1, 1, 8], [128, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("contributors", "response", "slots"),
    [
        (10_000, "randomized_response", 1),
        (10_000, "rappor", 1),
        (100_000, "rappor", 3),
        (20, "randomized_response", 1),
    ],
)
def test_local_loss_is_the_largest_that_shuffling_allows(
    contributors: int, response: Response, slots: int
) -> None:
    law = calibrate(SingleMessageParameters(1.0, 1e-6, LABELS, slots, response), 1, contributors)
    local = law.local_epsilon
    assert local >= 1.0 - 1e-9
    held, other = law.probabilities
    if response == "rappor":
        assert math.log(held / other) == pytest.approx(local / (2 * slots))
        assert held + other == 1
    else:
        assert math.log(held / other) == pytest.approx(local)
        assert held + 3 * other == 1
    seen = coins(response, local, slots, 3)
    assert all(coin.loss == local for coin in seen)
    assert f"epsilon is {rounded_up(local)}" in SingleMessage(law).guarantee.trust


@pytest.mark.parametrize(
    ("response", "slots"), [("randomized_response", 1), ("rappor", 1), ("rappor", 3)]
)
def test_message_loses_at_most_the_calibrated_local_loss(response: Response, slots: int) -> None:
    for epsilon in (0.5, 0.9, 1.0):
        law = calibrate(SingleMessageParameters(epsilon, 1e-6, LABELS, slots, response), 1, 300)
        computed = most_local_loss(epsilon, 1e-6, 300, lambda loss: coins(response, loss, slots, 3))
        assert law.local_epsilon <= computed <= law.local_epsilon * (1 + 1e-14)


def test_more_accurate_of_two_responses_is_chosen() -> None:
    """Symbols are chosen for few items, and bits once most symbols would be false."""
    few, many = (
        calibrate(SingleMessageParameters(1.0, 1e-6, tuple(map(str, range(n)))), 1, 10_000)
        for n in (3, 2000)
    )
    assert (few.response, many.response) == ("randomized_response", "rappor")
    assert calibrate(SingleMessageParameters(1.0, 1e-6, LABELS, 2), 1, 100).response == "rappor"


def test_stream_epsilon_covers_all_epochs() -> None:
    parameters = SingleMessageParameters(1.0, 1e-6, LABELS)
    once, often = calibrate(parameters, 1, 10_000), calibrate(parameters, 10, 10_000)
    assert once.stream_epsilon == once.epsilon == often.epsilon == 1.0
    assert 2.0 < often.stream_epsilon < 10.0
    assert SingleMessage(often).guarantee.stream_epsilon == often.stream_epsilon


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"delta": 1.0}, "delta is"),
        ({"items": 4}, "'items' is 4"),
        (
            {"items": 2, "response": "randomized_response"},
            ("expected 1 for response 'randomized_response'"),
        ),
        ({"response": "coin"}, "response is 'coin'"),
        (
            {"domain": tuple(map(str, range(5000))), "response": "rappor"},
            "at most 4,096 for response 'rappor'",
        ),
        (
            {"domain": tuple(map(str, range(5000))), "items": 2},
            "at most 4,096 for response 'rappor'",
        ),
    ],
)
def test_error_mentions_the_invalid_parameter(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SingleMessageParameters(**{"epsilon": 1.0, "delta": 1e-6, "domain": LABELS, **changed})  # type: ignore[arg-type]


def test_rappor_bound_is_used_only_for_single_items() -> None:
    """Sets of several items can differ in more bits than two items."""
    of_one, of_several = (coins("rappor", 0.5, slots, 10) for slots in (1, 2))
    assert of_one == [of_any_randomizer(0.5), of_rappor(0.5)]
    assert of_several == [of_any_randomizer(0.5)]
