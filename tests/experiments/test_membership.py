"""Who can be told from a model, and what that says of epsilon."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpstream.aggregators.ldp_sgd import losses
from experiments.evaluation.membership import Membership, membership


def test_losses_are_those_of_the_class_of_an_example() -> None:
    model = np.array([1.0, 0.0, -1.0, 0.5])
    examples = np.array([[1, 4096, 8192], [2, -4096, 0]])
    found = losses(model, examples, 2)
    assert found[0] == pytest.approx(math.log(math.exp(1) + math.exp(0)) - 1)
    assert found[1] == pytest.approx(math.log(math.exp(-1) + math.exp(1)) - 1)


def test_nothing_is_told_of_members_whose_losses_are_like_others() -> None:
    rng = np.random.default_rng(1)
    told = [membership(rng.normal(size=300), rng.normal(size=200)) for _ in range(400)]
    exceeding = sum(each.advantage > each.uncertainty for each in told)
    # In one of twenty or fewer; 60 of 400 once in 1e14.
    assert exceeding < 60
    shifted = [membership(rng.normal(-1, 1, 300), rng.normal(size=200)) for _ in range(20)]
    assert all(each.advantage > each.uncertainty for each in shifted)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
def test_the_bound_on_epsilon_holds_and_is_attained(epsilon: float) -> None:
    """By a response that says "no" with probability 1 - e^-epsilon where a member says "yes".

    The table's text has -ln(TPR - FPR), which falls as more is told; for what nobody can tell it
    is infinite.
    """
    members, others = 1.0, math.exp(-epsilon)
    advantage = members - others
    told = Membership(advantage, 0.0)
    assert told.epsilon == pytest.approx(epsilon)
    for likelier, less in ((members, others), (1 - others, 1 - members)):
        assert likelier <= math.exp(told.epsilon) * less + 1e-12 or less == 0
    # Randomized response with this epsilon tells less, and the bound stays below it.
    kept = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert Membership(2 * kept - 1, 0.0).epsilon < epsilon
    published = -math.log(2 * kept - 1)
    assert (published > epsilon) == (epsilon < 1.0)


def test_who_is_told_for_certain_has_no_epsilon() -> None:
    assert membership(np.array([0.0, 0.1]), np.array([0.2, 0.3])).epsilon == math.inf
    assert membership(np.array([0.2]), np.array([0.1])).epsilon == 0.0
