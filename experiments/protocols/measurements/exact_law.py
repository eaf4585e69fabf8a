"""Exact output distributions of devices that report a noisy matrix column, or one of its entries.

Columns are computed independently of `experiments.protocols.measurements.public_matrices`.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

import numpy as np
from scipy.linalg import hadamard

from dpstream.pipeline.conformance.cases import Report, Stream, View, independent
from dpstream.randomizers.noise_tables import TABLE_BITS
from experiments.protocols.measurements import (
    BucketLaw,
    JlHhLaw,
    LaplaceHistogramLaw,
    MeasurementsLaw,
    SparseRecoveryLaw,
)


class ExactMeasurements:
    """Enumerate the noise of every matrix entry, or all rows and bits."""

    devices = 1

    def __init__(self, law: MeasurementsLaw, last_epoch: int) -> None:
        self.law = law

    def followed(self, stream: Stream) -> bool:
        return True

    def views(self, stream: Stream) -> dict[View, Fraction]:
        return independent(
            {(report,): likely for report, likely in self._epoch(held[0]).items()}
            for held in stream
        )

    def _epoch(self, item: int) -> dict[Report, Fraction]:
        column = column_of(self.law, item) if item else [0] * len(column_of(self.law, 1))
        if self.law.odds is not None:
            return self._sampled(column, *self.law.odds.weights)
        return independent(self._word(entry) for entry in column)

    def _word(self, entry: int) -> dict[int, Fraction]:
        assert self.law.noise is not None
        table, most = self.law.noise.table, self.law.noise.most
        found: defaultdict[int, Fraction] = defaultdict(Fraction)
        for place, (low, high) in enumerate(pairwise((0, *table.bounds))):
            seen = entry + table.first + place
            found[max(-most, min(most, seen)) + most] += Fraction(high - low, 1 << TABLE_BITS)
        return dict(found)

    def _sampled(self, column: list[int], kept: int, reversed_: int) -> dict[Report, Fraction]:
        found: dict[Report, Fraction] = {}
        for row, entry in enumerate(column):
            for bit in (0, 1):
                weight = kept if (entry > 0) == (bit == 1) else reversed_
                share = Fraction(1, 2) if entry == 0 else Fraction(weight, kept + reversed_)
                found[(2 * row + bit,)] = share / len(column)
        return found


def column_of(law: MeasurementsLaw, item: int) -> list[int]:
    """Return the matrix entries of an item, numbered from 1."""
    match law:
        case JlHhLaw():  # Rows of scipy's Hadamard matrix that the mechanism uses.
            matrix = hadamard(1 << law.items.bit_length())
            return [int(matrix[row, item]) for row in law.matrix.rows]
        case BucketLaw():  # Parities of the bits that are 1 in both the bit string and the item.
            rows = law.matrix.rows.tolist()
            assert len(rows) == law.hashes * law.trials
            return [1 if bin(row & item).count("1") % 2 == 0 else -1 for row in rows]
        case SparseRecoveryLaw():
            return _tested_column(law, item)
        case LaplaceHistogramLaw():
            return [int(cell == item) for cell in range(1, law.items + 1)]
    raise TypeError(f"{type(law).__name__} has no columns to enumerate")


def _tested_column(law: SparseRecoveryLaw, item: int) -> list[int]:
    matrix, number = law.matrix, np.array([item])
    sign, own = int(matrix.signs_of(number)[0]), int(matrix.buckets_of(number)[0])
    tests = [1] + [-1 if item >> bit & 1 else 1 for bit in range(law.items.bit_length())]
    return [sign * test if bucket == own else 0 for bucket in range(law.buckets) for test in tests]


exact_law = ExactMeasurements
