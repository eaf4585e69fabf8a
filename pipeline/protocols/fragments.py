"""Sets of items at epochs that stand alone, in fragments. Its entry and its forecast."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from aggregators import fragments
from aggregators.fragments import FragmentsAggregator
from pipeline.protocols.late_calibration import late, late_calibration
from pipeline.protocols.per_epoch_forecast import PerEpochForecast
from pipeline.protocols.protocol import Example, Protocol, stated_capacity
from pipeline.values.sets import SetDomain
from randomizers.fragments import Fragments, FragmentsLaw, FragmentsParameters


class FragmentsForecast(PerEpochForecast):
    """Bits that are reversed, of every user alike.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
        held: see `PerEpochForecast`.
    """

    def __init__(
        self, law: FragmentsLaw, last_epoch: int, held: NDArray[np.float64] | None = None
    ) -> None:
        super().__init__(last_epoch, law.items, law.slots, held)
        self._law = law
        of_reports = f" in each of {law.reports} reports" if law.reports > 1 else ""
        self.cells = f"a bit for each of {law.items:,} items{of_reports}"
        self.reports_per_user = np.full(last_epoch, law.messages_per_user)
        self.constants: tuple[Mapping[str, int | float], ...] = tuple(
            {
                "reports_seen": seen,
                "epsilon_of_a_bit": law.exposure(seen),
                "epsilon_of_a_user": law.differing_bits * law.exposure(seen),
            }
            for seen in _some(law.reports)
        )
        self.caveats = _caveats(law)

    def like(self, held: NDArray[np.float64]) -> FragmentsForecast:
        """The same: bits are reversed alike, whatever is held."""
        return FragmentsForecast(self._law, self._last_epoch, held)

    def _deviation(self, users: int) -> float:
        return math.sqrt(fragments.noise_variance(self._law, users))


def _some(reports: int) -> list[int]:
    """1, 2, 4 and so on up to a number, and that."""
    return sorted({1 << power for power in range(reports.bit_length())} | {reports})


def _caveats(law: FragmentsLaw) -> tuple[str, ...]:
    alone = (
        "if the stage keeps the messages of a device together, epsilon is "
        f"{law.local_epsilon:.4g} at every epoch",
    )
    if law.reports == 1:
        return alone
    return (
        *alone,
        f"a single shuffle stage sees all {law.reports} reports: the smaller epsilons are those of "
        "whoever sees fewer of them",
    )


PROTOCOL = Protocol(
    name="fragments",
    parameters=FragmentsParameters,
    calibrate=late_calibration("fragments", sized=True),
    law=lambda asked: FragmentsLaw,
    randomizer=Fragments,
    restore=Fragments.restore,
    aggregator=lambda law, asked: FragmentsAggregator(law),
    aggregator_from_bytes=lambda law, asked, data: FragmentsAggregator.from_bytes(law, data),
    word_form=lambda law: law.word_form,
    needs_shuffle=True,
    capacity=stated_capacity,
    contributors=lambda law: law.minimum,
    epsilon_with=late("fragments", "epsilon_with"),
    per_epoch=True,
    values=lambda asked: SetDomain(asked.domain, asked.items),
    forecast=lambda law, asked, last_epoch: FragmentsForecast(law, last_epoch),
    examples=(
        Example(FragmentsParameters(2.0, 0.05, ("a", "b")), 1, minimum=4),
        Example(FragmentsParameters(1.5, 0.05, ("a",)), 2, minimum=3),
        Example(FragmentsParameters(2.0, 0.05, ("a", "b"), neighbours="removal"), 1, minimum=4),
        Example(FragmentsParameters(3.0, 0.05, ("a", "b"), items=2), 1, minimum=3),
        Example(FragmentsParameters(2.0, 0.05, ("a", "b"), reports=2), 1, minimum=3),
    ),
)
