"""Exact output distribution of a FutureRand device: its own code, run with all possible draws."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from itertools import product
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.conformance.cases import Stream, View
from dpstream.randomizers.dyadic import FutureRandLaw
from dpstream.randomizers.future_rand import FutureRand


class ExactFutureRand:
    devices = 1

    def __init__(self, law: FutureRandLaw, last_epoch: int) -> None:
        self.law = law
        self.last_epoch = last_epoch

    def followed(self, stream: Stream) -> bool:
        """Return whether a device of the lowest order has a sign for every change."""
        return int(np.abs(np.diff((0, *stream))).sum()) <= self.law.composed[0].k

    def views(self, stream: Stream) -> dict[View, Fraction]:
        probabilities: defaultdict[View, Fraction] = defaultdict(Fraction)
        orders = sum(self.law.order_weights)
        for order, order_weight in enumerate(self.law.order_weights):
            if not order_weight:
                continue
            coins_and_signs = sum(self.law.composed[order].masses) << self.last_epoch
            for view, weight in self._views_of_order(order, stream).items():
                probabilities[view] += Fraction(order_weight * weight, orders * coins_and_signs)
        return dict(probabilities)

    def _views_of_order(self, order: int, stream: Stream) -> Counter[View]:
        composed = self.law.composed[order]
        vectors = np.array(list(product((0, 1), repeat=composed.k)), np.uint8)
        # One device for each sign vector and each sequence of random bits, one bit per epoch.
        vector = np.repeat(np.arange(len(vectors)), 1 << self.last_epoch)
        coins = np.tile(np.arange(1 << self.last_epoch), len(vectors))
        devices = self._restored(order, vectors[vector])
        reports = np.empty((len(vector), 0), np.uint8)
        ended = []
        for epoch, value in enumerate(stream, start=1):
            rng = cast(np.random.Generator, Coins((coins >> (epoch - 1) & 1).astype(np.uint8)))
            messages = devices.report(epoch, np.full(len(vector), value, np.int8), None, rng)
            if len(messages):
                reports = np.hstack([reports, messages])
            ended.append(reports.shape[1])
        weights = [composed.weights[composed.k - int(kept)] for kept in vectors.sum(axis=1)]
        views = Counter[View]()
        for row, index in zip(reports.tolist(), vector.tolist(), strict=True):
            starts = [0, *ended[:-1]]
            view = tuple(
                tuple((word,) for word in row[start:end])
                for start, end in zip(starts, ended, strict=True)
            )
            views[view] += weights[index]
        return views

    def _restored(self, order: int, sign_bits: NDArray[np.uint8]) -> FutureRand:
        empty = FutureRand(self.law).state_arrays()
        count = len(sign_bits)
        signs = np.zeros((count, empty["signs"].shape[1]), np.uint8)
        packed = np.packbits(sign_bits, axis=1, bitorder="little")
        signs[:, : packed.shape[1]] = packed
        arrays = {
            "order": np.full(count, order, np.uint8),
            "signs": signs,
            "used": np.zeros(count, empty["used"].dtype),
            "boundary": np.full(count, 2, np.int8),
        }
        return FutureRand.restore(self.law, arrays, epoch=0)


class Coins:
    """Stub of the generator for `FutureRand.report`: one random bit per device and epoch.

    All devices have the same order, so no bits are requested for devices of other orders.
    """

    def __init__(self, coins: NDArray[np.uint8]) -> None:
        self.coins = coins

    def integers(
        self, low: int, high: int, size: int, dtype: type[np.uint64]
    ) -> NDArray[np.uint64]:
        """Return the random bits as integers, 64 bits in each."""
        assert (low, high) == (0, 2**64)
        assert size in (0, -(-len(self.coins) // 64))
        padded = np.zeros(64 * size, np.uint8)
        padded[: len(self.coins)] = self.coins[: len(padded)]
        return np.packbits(padded).view("<u8").astype(np.uint64)


exact_law = ExactFutureRand
