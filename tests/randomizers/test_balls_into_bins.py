"""Devices of balls into bins: what they send, how many buckets are chosen, what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from randomizers.accounting.overlapping_cells import epsilon_for_overlapping
from randomizers.accounting.shuffled_oracles import poisson_for_rows
from randomizers.affine_hashes import is_prime
from randomizers.balls_into_bins import (
    BallsIntoBins,
    BallsIntoBinsLaw,
    BallsIntoBinsParameters,
)
from randomizers.balls_into_bins.calibration import calibrate
from randomizers.counted_words import CountedWords, written_out
from randomizers.item_domains import Bits
from randomizers.randomness import seeded_generator

FALSE_ALARM = 1e-10
ITEMS = tuple(map(str, range(100)))


def law_of(
    domain: int, buckets: int, items: int = 1, minimum: int = 1000, dummies: Any = "poisson"
) -> BallsIntoBinsLaw:
    labels = tuple(map(str, range(domain)))
    return calibrate(BallsIntoBinsParameters(4.0, 0.1, labels, items, buckets, dummies), 1, minimum)


def sent(law: BallsIntoBinsLaw, values: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """The words of a window."""
    devices = BallsIntoBins(law)
    devices.enrol(len(values), seeded_generator(seed))
    return written_out(devices.report(1, values, None, seeded_generator(seed)))[:, 0].astype(int)


def words_of(law: BallsIntoBinsLaw, item: int) -> list[int]:
    """All that a message about an item may be."""
    hashes = law.hashes
    directions = np.arange(hashes.directions)
    buckets = hashes.buckets_of(directions, np.full(hashes.directions, item - 1))
    words: list[int] = (directions * hashes.buckets + buckets).tolist()
    return words


@pytest.mark.slow
@pytest.mark.parametrize(("domain", "buckets"), [(20, 5), (20, 3), (3, 2), (8, 11)])
def test_a_message_is_any_word_of_its_item_and_a_dummy_any_word(domain: int, buckets: int) -> None:
    law = law_of(domain, buckets, dummies="shuffle")
    n, item = 60_000, domain - 1
    words = sent(law, np.full((n, 1), item), 1)
    expected = words_of(law, item)
    assert len(words) == n
    assert set(words.tolist()) == set(expected)
    counts = np.bincount(words, minlength=law.hashes.words)
    if len(expected) > 1:
        assert stats.chisquare(counts[expected]).pvalue > FALSE_ALARM
        # A hash twice as likely as the others would be noticed.
        counts[expected[0]] *= 2
        assert stats.chisquare(counts[expected]).pvalue < FALSE_ALARM
    dummies = law.draw_dummies(200_000, seeded_generator(2))
    counts = np.bincount(dummies, minlength=law.hashes.words)
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_dummies_are_those_of_all_contributors_and_as_many_as_the_noise_says() -> None:
    law, n = law_of(20, 5, minimum=5), 20_000
    words = sent(law, np.zeros((n, 1), np.int64), 1)
    expected = law.noise.mean * law.buckets * n / 5
    assert abs(len(words) - expected) < 6.5 * math.sqrt(expected)
    # Five in a hundred more or less would be noticed.
    assert 6.5 * math.sqrt(expected) < 0.05 * expected
    for item in (1, 20):
        inside = np.isin(words, words_of(law, item)).sum()
        assert inside == pytest.approx(expected / law.buckets, abs=6.5 * math.sqrt(expected / 5))


def test_the_shuffle_stage_adds_the_dummies_where_it_is_to() -> None:
    law = law_of(20, 5, dummies="shuffle")
    assert law.messages == 1
    devices = BallsIntoBins(law)
    devices.enrol(7, seeded_generator(1))
    assert len(written_out(devices.report(1, np.ones((7, 1), int), None, seeded_generator(1)))) == 7
    totals = [law.stage_dummies(1, seeded_generator(seed)).messages for seed in range(200)]
    mean = 200 * law.noise.mean * law.buckets
    assert abs(sum(totals) - mean) < 6.5 * math.sqrt(mean)
    first, again = (law.stage_dummies(1, seeded_generator(3)) for _ in range(2))
    assert first.values.tolist() == again.values.tolist()
    assert (np.diff(first.values[:, 0].astype(int)) > 0).all()
    assert law_of(20, 5).stage_dummies(1, seeded_generator(1)).messages == 0


def test_an_item_named_twice_is_sent_once_and_no_item_not_at_all() -> None:
    law = law_of(20, 5, items=3, dummies="shuffle")
    values = np.array([[7, 7, 7], [0, 7, 0], [7, 0, 7], [0, 0, 0]])
    words = sent(law, np.tile(values, (100, 1)), 1)
    assert len(words) == 300
    assert set(words.tolist()) <= set(words_of(law, 7))


def test_two_items_of_a_user_are_two_messages_even_in_one_bucket() -> None:
    law = law_of(20, 2, items=1, dummies="shuffle")
    both = law_of(20, 5, items=2, dummies="shuffle")
    assert len(sent(both, np.tile([3, 4], (50, 1)), 1)) == 100
    with pytest.raises(ValueError, match="at most 1"):
        sent(law, np.tile([3, 4], (50, 1)), 1)


def test_silent_devices_send_neither_messages_nor_dummies() -> None:
    law = law_of(20, 5, minimum=1)
    devices = BallsIntoBins(law)
    devices.enrol(2, seeded_generator(1))
    present = np.array([True, False])
    sizes = []
    for seed in range(400):
        devices.epoch = 0
        reports = devices.report(1, np.array([[3], [21]]), present, seeded_generator(seed))
        sizes.append(len(written_out(reports)))
    mean = 400 * (1 + law.noise.mean * law.buckets)
    assert abs(sum(sizes) - mean) < 6.5 * math.sqrt(mean)


def test_many_messages_of_few_words_are_counted() -> None:
    devices = BallsIntoBins(law_of(4, 2))
    devices.enrol(5_000, seeded_generator(1))
    reports = devices.report(1, np.ones((5_000, 1), int), None, seeded_generator(1))
    assert isinstance(reports, CountedWords)
    assert reports.messages >= 5_000


@pytest.mark.parametrize(
    ("values", "present", "complaint"),
    [
        (np.array([[1], [21]]), None, "item 21 at epoch 1, there are 20"),
        (np.array([[1], [-1]]), None, "item -1"),
        (np.array([[1]]), None, "shape"),
        (np.array([1, 2]), None, "shape"),
        (np.array([[1.0], [2.0]]), None, "float64"),
        (np.array([[1], [2]]), np.array([True]), "present"),
    ],
)
def test_values_of_a_wrong_kind_or_shape_are_refused(
    values: NDArray[Any], present: NDArray[np.bool_] | None, complaint: str
) -> None:
    devices = BallsIntoBins(law_of(20, 5))
    devices.enrol(2, seeded_generator(1))
    with pytest.raises(ValueError, match=complaint):
        devices.report(1, values, present, seeded_generator(1))
    assert devices.epoch == 0


@pytest.mark.parametrize("buckets", [0, 4, 2**29 + 11])
def test_buckets_that_no_hash_is_of_are_refused(buckets: int) -> None:
    assert is_prime(2**29 + 11)
    with pytest.raises(ValueError, match=r"must be a prime number up to 2\^29"):
        BallsIntoBinsParameters(1.0, 1e-6, Bits(16), buckets=buckets)


class TestChoice:
    def test_as_many_buckets_as_messages_allow(self) -> None:
        """The reference has 4.7 messages and a standard deviation of 7.4."""
        parameters = BallsIntoBinsParameters(1.0, 1e-6, Bits(16), messages_per_user=4.7)
        law = calibrate(parameters, 1, 100_000)
        assert is_prime(law.buckets)
        assert 4.69 < law.messages <= 4.7
        assert law.hashes.digits == 2
        assert law.noise.mean == pytest.approx(poisson_for_rows(1.0, 1e-6, 1).mean, rel=2e-4)
        assert math.sqrt(law.noise.mean + 100_000 / law.buckets) == pytest.approx(7.4, abs=0.1)

    def test_ten_messages_unless_something_is_said(self) -> None:
        law = calibrate(BallsIntoBinsParameters(1.0, 1e-6, Bits(16)), 1, 100_000)
        assert 9.98 < law.messages <= 10

    def test_no_more_buckets_than_items(self) -> None:
        law = calibrate(BallsIntoBinsParameters(1.0, 1e-6, Bits(12)), 1, 100_000)
        assert (law.buckets, law.hashes.digits, law.hashes.overlap) == (4099, 1, 0)
        assert law.noise.mean == pytest.approx(poisson_for_rows(1.0, 1e-6, 1).mean, rel=2e-5)

    def test_dummies_of_the_shuffle_stage_cost_no_messages(self) -> None:
        parameters = BallsIntoBinsParameters(1.0, 1e-6, Bits(18), dummies="shuffle")
        law = calibrate(parameters, 1, 10)
        assert law.buckets > 1 << 18
        assert law.messages == 1

    def test_several_items_of_a_user_collide_with_each_other_less_the_more_buckets(self) -> None:
        law = calibrate(BallsIntoBinsParameters(1.0, 1e-6, Bits(16), items=3), 1, 1000)
        assert 5 * law.hashes.overlap < 1
        assert law.noise.mean > poisson_for_rows(1.0, 1e-6, 1, 3).mean
        spent = epsilon_for_overlapping(law.noise.mean, 1e-6, law.hashes.overlap, 3)
        assert spent <= law.epsilon * (1 + 1e-6) <= 1 + 1e-6

    def test_too_few_messages_are_refused(self) -> None:
        with pytest.raises(ValueError, match="with 20 contributors and up to 3 items each"):
            calibrate(BallsIntoBinsParameters(1.0, 1e-6, Bits(5), items=3), 1, 20)
        with pytest.raises(ValueError, match=r"5\.1 messages in an epoch, messages_per_user is 4"):
            calibrate(
                BallsIntoBinsParameters(1.0, 1e-6, Bits(5), buckets=97, messages_per_user=4.0),
                1,
                1000,
            )

    def test_too_few_buckets_for_the_items_of_a_user_are_refused(self) -> None:
        with pytest.raises(ValueError, match="take more buckets or fewer items"):
            calibrate(BallsIntoBinsParameters(1.0, 1e-6, Bits(5), items=3, buckets=3), 1, 1000)


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 12.0])
def test_all_epochs_together_lose_something_finite(epsilon: float) -> None:
    """Where an epoch uses all of delta up for certain losses, it gets a little more noise."""
    law = calibrate(BallsIntoBinsParameters(epsilon, 1e-6, Bits(4)), 170, 100)
    assert 0 < law.epsilon <= epsilon
    assert law.epsilon < law.stream_epsilon <= 170 * epsilon
    guarantee = BallsIntoBins(law).guarantee
    assert (guarantee.unit, guarantee.stream_epsilon) == ("epoch", law.stream_epsilon)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"dummies": "negative_binomial"}, "clusters of dummies with the same one would show"),
        ({"buckets": 4}, "buckets is 4, must be a prime"),
        ({"buckets": 1}, "buckets is 1, must be a prime"),
        ({"buckets": 5.0}, r"buckets is 5\.0, must be a prime"),
        ({"items": 0}, "items is 0"),
        ({"items": 4}, "items is 4"),
        ({"domain": ()}, "domain"),
        ({"domain": ("a", "a", "b")}, "distinct"),
        ({"domain": Bits(40)}, "take count_min"),
        ({"epsilon": 0.0}, "epsilon is 0"),
        ({"delta": 0.0}, "delta is 0"),
        ({"messages_per_user": 0}, "messages_per_user is 0"),
    ],
)
def test_parameters_out_of_range_are_refused(changed: dict[str, Any], complaint: str) -> None:
    said: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "domain": ("a", "b", "c")}
    BallsIntoBinsParameters(**said)
    with pytest.raises(ValueError, match=complaint):
        BallsIntoBinsParameters(**said | changed)


@pytest.mark.parametrize(
    "spoiled", [{"buckets": 6}, {"last_epoch": 0}, {"size": 0}, {"items": 30}, {"noise": None}]
)
def test_laws_that_cannot_be_are_refused(spoiled: dict[str, Any]) -> None:
    body = json.loads(json.dumps(law_of(20, 5).to_json()))
    assert BallsIntoBinsLaw.from_json(body) == law_of(20, 5)
    with pytest.raises(ValueError, match="not a law of balls_into_bins"):
        BallsIntoBinsLaw.from_json(body | spoiled)


def test_messages_that_are_too_few_for_any_number_of_buckets_are_refused() -> None:
    """Down to none: then the search for fewer buckets has nowhere to go on."""
    for messages in (1 + 1e-9, 1.01):
        asked = BallsIntoBinsParameters(1.0, 1e-6, ITEMS, messages_per_user=messages)
        with pytest.raises(ValueError, match="too few for any number of buckets"):
            calibrate(asked, 1, minimum=10)
