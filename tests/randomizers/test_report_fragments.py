"""The lemmas about reports of randomized bits: attained, sharper, and where a text is wrong."""

from __future__ import annotations

import math

import pytest

from dpstream.randomizers.accounting.amplification import (
    amplified_delta,
    amplified_epsilon,
    of_randomized_response,
)
from tests.support.published_lemmas import (
    cascade,
    equation_1,
    shuffled_reports,
    theorem_iii_1,
)

HORSE = 1_914_589
"""Users of the data set of the paper's Tables IV to VII, with delta 5e-8."""


@pytest.mark.parametrize("backstop", [0.1, 1.0, 6.0])
@pytest.mark.parametrize("report", [0.05, 2.0, 9.0])
def test_binary_responses_attain_the_cascade(backstop: float, report: float) -> None:
    kept, told = (1 / (1 + math.exp(-loss)) for loss in (backstop, report))
    as_it_is = kept * told + (1 - kept) * (1 - told)
    loss = math.log(as_it_is / (1 - as_it_is))
    assert cascade(backstop, report) == pytest.approx(loss, rel=1e-9)
    assert cascade(backstop, report) <= min(backstop, report)


def test_the_golden_exposures() -> None:
    """A backstop of 6 and reports of 2: of 1, 2, 3, 4 and 8 of them."""
    found = [cascade(6.0, 2.0 * seen) for seen in (1, 2, 3, 4, 8)]
    assert found == pytest.approx([1.9822, 3.8731, 5.3069, 5.8731, 6.0], abs=6e-5)
    assert cascade(800.0, 900.0) == pytest.approx(800.0)
    assert cascade(0.0, 3.0) == 0.0
    with pytest.raises(ValueError, match="must not be negative"):
        cascade(-1.0, 1.0)


@pytest.mark.parametrize(("reports", "golden"), [(1, 0.3365), (4, 0.3329), (16, 0.3313)])
def test_shuffled_reports_of_the_paper_s_data(reports: int, golden: float) -> None:
    report = math.asinh(math.sinh(8.547) / reports)
    found = shuffled_reports(8.547, report, reports, HORSE, 5e-8)
    assert found == pytest.approx(golden, abs=1e-4)


def test_no_bound_alone_is_always_the_smaller_one() -> None:
    once = amplified_epsilon(of_randomized_response(2.0, 2), 10**4, 1e-6)
    assert shuffled_reports(2.0, 2.0, 3, 10**4, 1e-6) == once
    each = amplified_epsilon(of_randomized_response(1.0, 2), 10**4, 1e-6, 2)
    assert shuffled_reports(6.0, 1.0, 2, 10**4, 1e-6) == each
    assert shuffled_reports(2.0, 2.0, 1, 10**4, 1e-6, bits=2) > once


def test_equation_1_is_the_rule_behind_the_tables() -> None:
    assert equation_1(8.547, HORSE, 5e-8) == pytest.approx(1.0, abs=1e-3)
    # Exactly it is a third of that.
    exact = amplified_epsilon(of_randomized_response(8.547, 2), HORSE, 5e-8)
    assert exact == pytest.approx(0.3365, abs=1e-4)
    for local, users in ((20.0, HORSE), (0.5, 200)):
        with pytest.raises(ValueError, match=r"Lemma II\.6 is proven"):
            equation_1(local, users, 5e-8)


@pytest.mark.parametrize(
    ("local", "users", "delta", "golden"),
    [
        (7.405, HORSE, 5e-8, 1.00008),
        (1.0, 10**5, 1e-6, 0.16262),
        (4.0, 10**5, 1e-6, 0.72883),
        (6.0, 10**6, 1e-6, 0.62650),
    ],
)
def test_theorem_iii_1_is_right_and_larger_than_what_is_computed(
    local: float, users: int, delta: float, golden: float
) -> None:
    """Whom it is about: a value or none, of which one bit is set."""
    stated = theorem_iii_1(local, users, delta)
    assert stated == pytest.approx(golden, abs=6e-6)
    assert stated**2 * users >= 64 * math.exp(local) * math.log(4 / delta), "rounded up"
    bit = of_randomized_response(local, 2)
    exact = amplified_epsilon(bit, users, delta)
    assert 2 * exact < equation_1(local, users, delta) < stated
    assert amplified_delta(bit, users, stated) < delta / 1e6


def test_theorem_iii_1_is_refused_where_it_is_not_proven() -> None:
    most = math.log(10**5) - math.log(14 * math.log(4e6))
    assert theorem_iii_1(most - 1e-9, 10**5, 1e-6) == pytest.approx(math.sqrt(64 / 14))
    assert theorem_iii_1(1.0, 10**5, 1e-50) > 0
    for local, users, delta, message in (
        (most + 1e-3, 10**5, 1e-6, "the local loss is"),
        (0.999, 10**5, 1e-6, "the local loss is"),
        (1.0, 10**5, 1e-58, "delta is"),
        (1.0, 10**5, 1.0, "delta is"),
        (1.0, 0, 1e-6, "delta is"),
    ):
        with pytest.raises(ValueError, match=message):
            theorem_iii_1(local, users, delta)


def test_theorem_iv_2_says_less_than_is_lost() -> None:
    """Its first term with one report of loss 8.55: 8 tau eps_f ln^2(n / (eps_f delta)) / n."""
    stated = 0.1133
    assert shuffled_reports(8.55, 8.55, 1, HORSE, 5e-8) > 2 * stated
