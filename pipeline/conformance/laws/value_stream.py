"""Exact output distribution of a value_stream device: every symbol at every epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dpstream.pipeline.conformance.cases import Stream, View
from dpstream.randomizers.value_stream import ValueStreamLaw
from dpstream.randomizers.value_stream.lattice import weights
from dpstream.randomizers.value_stream.tilt import reach

LETTERS = np.arange(-72, 73)
BODY_AND_TAIL = 32


@dataclass(frozen=True)
class DeviceState:
    """Fields f, s, remaining squared-norm budget, and number of changes, as in NOTE.md."""

    followed: float
    moved: float
    left: float
    made: int = 0


class ExactValueStream:
    devices = 1

    def __init__(self, law: ValueStreamLaw, last_epoch: int) -> None:
        self.law = law
        self.last_epoch = last_epoch

    def followed(self, stream: Stream) -> bool:
        """Return whether the number of changes is at most the number of boosted changes."""
        return int(np.abs(np.diff((0, *stream))).sum()) <= self.law.max_changes

    def views(self, stream: Stream) -> dict[View, Fraction]:
        noise, unit = self.law.noise, 1 << 64
        # For each sequence of symbols: the weights of input-independent and of input-dependent
        # devices, the total of the input-dependent weights, and the state of input-dependent
        # devices.
        begun = DeviceState(0.0, 0.0, self.law.squared_norm_budget)
        paths: dict[View, tuple[int, int, int, DeviceState]] = {
            (): (noise, unit - noise, unit, begun)
        }
        before, places = 0, unit
        for value in stream:
            places <<= 62
            paths = {
                (*sent, ((symbol + 80,),)): (
                    of_noise * weights()[symbol + 72],
                    of_others * mass,
                    total * of_all,
                    after,
                )
                for sent, (of_noise, of_others, total, state) in paths.items()
                for symbol, mass, of_all, after in self._letters(state, before, value)
            }
            before = value
        return {
            sent: Fraction(of_noise * total + of_others * places, places * total)
            for sent, (of_noise, of_others, total, _) in paths.items()
        }

    def _letters(
        self, state: DeviceState, before: int, value: int
    ) -> list[tuple[int, int, int, DeviceState]]:
        """Return each symbol with its weight, the total weight, and the next state."""
        law, made = self.law, state.made
        followed = law.decay * state.followed
        if value != before:
            followed += (law.boost if value else -law.boost) * (made < law.max_changes)
            made += 1
        limit = min(law.boost + 0.5, math.sqrt(max(state.left - law.reserve, 0.0)))
        step = min(max(value - 0.5 + followed, -limit), limit)
        left = state.left - step * step
        moved = state.moved + step * (LETTERS / 8)
        reached = reach(moved, np.full(len(LETTERS), left), law.goal)
        bound = float(reach(np.array([state.moved + 4 * abs(step)]), np.array([left]), law.goal)[0])
        # Random integers of 62 bits index all weights; random integers of `box_bits` bits index the
        # tail.
        box_bits = sum(weights()[72 + BODY_AND_TAIL + 1 :]).bit_length()
        box = 2.0 ** (box_bits - 62)
        of_tail = math.floor(box / (box + bound) * 2**64)
        masses = []
        for symbol, weight, share in zip(
            LETTERS.tolist(), weights(), reached.tolist(), strict=True
        ):
            if symbol * (-1 if step < 0 else 1) <= BODY_AND_TAIL:
                proposed = ((1 << 64) - of_tail) * weight
                share /= bound
            else:
                proposed = of_tail * weight << (62 - box_bits)
            masses.append(proposed * ((1 << 64) if share >= 1 else math.floor(share * 2**64)))
        total = sum(masses)
        after = replace(state, followed=followed, left=left, made=made)
        return [
            (symbol, mass, total, replace(after, moved=place))
            for symbol, mass, place in zip(LETTERS.tolist(), masses, moved.tolist(), strict=True)
        ]


exact_law = ExactValueStream
