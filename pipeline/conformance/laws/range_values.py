"""What a device on a level of the value tree can send by letters."""

from __future__ import annotations

from pipeline.conformance import cases
from pipeline.conformance.laws import hadamard_values
from pipeline.conformance.laws.range_stream import OnLevels
from randomizers.range_values import RangeValuesLaw


class ExactLaw(OnLevels):
    """Of the nodes, what `HadamardValues` can draw."""

    def __init__(self, law: RangeValuesLaw, last_epoch: int) -> None:
        nodes: list[cases.ExactLaw] = [
            hadamard_values.ExactLaw(level, last_epoch) for level in law.levels
        ]
        super().__init__(law, nodes, shift=24)
