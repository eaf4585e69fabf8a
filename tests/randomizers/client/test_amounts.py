"""Test losses as integers, and the sums in a device's account."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpstream.randomizers.client import DeviceError, Limit, LimitError
from dpstream.randomizers.client.account import Account, AccountEntry
from dpstream.randomizers.client.amounts import allowed, read, spent, written
from dpstream.randomizers.client.statements import read_statement
from tests.support.small_collector import SETS, STREAM, deployed

numbers = st.floats(0, 1e6, allow_nan=False) | st.integers(0, 10**6)


@given(numbers, st.sampled_from([9, 18]))
def test_privacy_losses_are_rounded_up_and_limits_are_rounded_down(
    number: float, digits: int
) -> None:
    exact = Fraction(repr(number))
    unit = Fraction(1, 10**digits)
    assert 0 <= spent(number, digits) * unit - exact < unit
    assert 0 <= exact - allowed(number, digits) * unit < unit


def test_privacy_losses_are_exact_decimals() -> None:
    assert spent(0.1, 9) == 100_000_000
    assert 10 * spent(0.1, 9) == allowed(1, 9)
    assert spent(1e-10, 9) == 1
    assert allowed(1e-10, 9) == 0
    assert spent(5e-324, 18) == 1


@given(st.integers(0, 10**30), st.sampled_from([9, 18]))
def test_amount_text_round_trips(amount: int, digits: int) -> None:
    assert read(written(amount, digits), digits) == amount
    assert Fraction(written(amount, digits)) == Fraction(amount, 10**digits)


@pytest.mark.parametrize("text", ["", "-1", "1.50", "01", "1.", ".5", "1e3", "1,5", " 1", "1_0"])
def test_amount_that_is_not_canonical_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"amount|invalid literal"):
        read(text, 9)


@pytest.mark.parametrize("number", [-1, float("nan"), float("inf"), True, "1", None])
def test_invalid_loss_is_rejected(number: object) -> None:
    with pytest.raises(ValueError, match="expected a finite number of at least 0"):
        spent(number, 9)  # type: ignore[arg-type]


def statement_of(**values: object) -> bytes:
    description = deployed(**values).signed_description  # type: ignore[arg-type]
    assert description is not None
    return description.statement.encode()


def test_each_horizon_is_charged_once_up_to_the_limit() -> None:
    statement = read_statement(statement_of(values=STREAM))
    limit = Limit.of(2)
    account = Account().opened(statement, limit)
    assert account.spent("logins") == Limit.of(1)
    # Joining paid for the first draw, whichever horizon it is in.
    account = account.charged(statement, 100, limit)
    assert account.spent("logins") == Limit.of(1)
    assert account.charged(statement, 100, limit) is account
    account = account.charged(statement, 103, limit)
    assert account.spent("logins") == Limit.of(2)
    for earlier in (0, 99, 100, 102):
        with pytest.raises(DeviceError, match="already has a draw for this epoch or a later one"):
            account.charged(statement, earlier, limit)
    with pytest.raises(LimitError, match="that this app allows is already spent"):
        account.charged(statement, 104, limit)
    assert account.spent("others") == Limit(0, 0)


def test_each_epoch_is_charged_once() -> None:
    statement = read_statement(statement_of(values=SETS))
    limit = Limit.of(100, 1)
    account = Account().opened(statement, limit)
    assert account.spent("fruits") == Limit(0, 0)
    account = account.charged(statement, 7, limit)
    assert account.spent("fruits").epsilon == 10**9
    for again in (7, 6, 1):
        with pytest.raises(DeviceError, match="already has a draw for this epoch or a later one"):
            account.charged(statement, again, limit)


@pytest.mark.parametrize(
    ("unit", "charges", "last"),
    [("stream", 0, -1), ("epoch", 0, 3), ("epoch", -1, -1), ("epoch", 1, -2), ("week", 1, 1)],
)
def test_inconsistent_account_entry_is_rejected(unit: str, charges: int, last: int) -> None:
    entry = AccountEntry("people", "logins", "00" * 16, 5, unit, 1, 0, charges, last)
    with pytest.raises(ValueError, match=r"charges|'unit'"):
        AccountEntry.from_json(entry.to_json())


def test_sum_of_deltas_has_a_separate_limit() -> None:
    statement = read_statement(statement_of(values=SETS))
    with pytest.raises(LimitError, match=r"costs epsilon 1, delta 0\.000001 for each epoch"):
        Account().opened(statement, Limit.of(100))
    account = Account().opened(statement, Limit.of(100, 2e-6))
    account = account.charged(statement, 1, Limit.of(100, 2e-6))
    account = account.charged(statement, 2, Limit.of(100, 2e-6))
    with pytest.raises(LimitError):
        account.charged(statement, 3, Limit.of(100, 2e-6))


def test_deployments_for_a_population_share_one_limit() -> None:
    account, limit = Account(), Limit.of(3)
    for number, name in enumerate(("one", "two", "three", "four")):
        text = statement_of(values={**STREAM, "name": name}, number=number, population="people")
        statement = read_statement(text)
        if name == "four":
            with pytest.raises(LimitError):
                account.check_room(statement, limit)
        else:
            account = account.opened(statement, limit).charged(statement, 0, limit)
    assert account.spent("people") == limit
    assert str(account.entries[1]) == "job two, deployment 00000000: epsilon 1"
    assert [AccountEntry.from_json(each.to_json()) for each in account.entries] == [
        *account.entries
    ]
