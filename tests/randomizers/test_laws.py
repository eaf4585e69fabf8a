"""Test that constants round trip through JSON by field type, and that other JSON is rejected."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest

from dpstream.randomizers.laws import Constants


@dataclass(frozen=True, slots=True)
class Coin(Constants):
    weight: float
    edge: float | None = None


@dataclass(frozen=True, slots=True)
class CoinTossLaw(Constants):
    tosses: int
    coins: tuple[Coin, ...]
    spare: Coin | None
    share: Fraction = field(metadata={"read": Fraction})

    def __post_init__(self) -> None:
        if self.tosses < 1:
            raise ValueError(f"{self.tosses} tosses; expected at least 1")


BODY: dict[str, Any] = {
    "tosses": 3,
    "coins": [{"weight": 2.5, "edge": None}, {"weight": 1.0, "edge": 0.5}],
    "spare": None,
    "share": "1/3",
}


def test_constants_are_parsed_according_to_field_type() -> None:
    law = CoinTossLaw.from_json(json.loads(json.dumps(BODY)))
    assert law == CoinTossLaw(3, (Coin(2.5), Coin(1.0, 0.5)), None, Fraction(1, 3))
    with_spare = CoinTossLaw.from_json({**BODY, "spare": {"weight": 7}})
    assert with_spare.spare == Coin(7.0)
    assert type(with_spare.spare.weight) is float


def test_constants_are_serialized_according_to_field_type() -> None:
    written = CoinTossLaw(3, (Coin(2.5), Coin(1.0, 0.5)), None, Fraction(1, 3)).to_json()
    assert json.loads(json.dumps({**written, "share": "1/3"})) == BODY


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tosses": 0}, "invalid constants for coin_toss: .*0 tosses; expected at least 1"),
        ({"more": 1, "most": 2}, "invalid constants for coin_toss: .*unknown constants more, most"),
        ({"coins": None}, "invalid constants for coin_toss"),
        (
            {"coins": [{}]},
            "invalid constants for coin_toss: .*invalid constants for coin: .*weight",
        ),
        (
            {"spare": {"weight": "1"}},
            "invalid constants for coin_toss: invalid constants for coin: got '1'; expected",
        ),
        ({"spare": {"weight": True}}, "got True; expected a number"),
    ],
)
def test_invalid_json_of_constants_is_rejected(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CoinTossLaw.from_json({**BODY, **changed})


@pytest.mark.parametrize("name", BODY)
def test_missing_constant_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="invalid constants for coin_toss"):
        CoinTossLaw.from_json({key: value for key, value in BODY.items() if key != name})
