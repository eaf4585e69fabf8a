"""What a device on a level of the value tree can send by letters."""

from __future__ import annotations

from randomizers.range_values import RangeValuesLaw
from tests.conformance import cases
from tests.conformance.laws import hadamard_values
from tests.conformance.laws.range_stream import OnLevels


class ExactLaw(OnLevels):
    """Of the nodes, what `HadamardValues` can draw."""

    def __init__(self, law: RangeValuesLaw, last_epoch: int) -> None:
        nodes: list[cases.ExactLaw] = [
            hadamard_values.ExactLaw(level, last_epoch) for level in law.levels
        ]
        super().__init__(law, nodes, shift=24)
