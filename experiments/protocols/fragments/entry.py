"""Registry entry and forecast for fragments: sets of items at independent epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from dpstream.pipeline.protocols.alternatives import Alternative, alternatives
from dpstream.pipeline.protocols.per_epoch_forecast import PerEpochForecast
from dpstream.pipeline.protocols.protocol import (
    Aggregation,
    Example,
    Planning,
    Protocol,
    Shuffling,
)
from dpstream.pipeline.values.sets import SetDomain
from dpstream.randomizers.count_min import CountMinParameters
from dpstream.randomizers.division import chances_of_one_instance
from dpstream.randomizers.guarantee import rounded_up
from experiments.protocols.fragments import Fragments, FragmentsLaw, FragmentsParameters
from experiments.protocols.fragments.aggregator import (
    FragmentsAggregator,
    lasting_variance,
    noise_variance,
)
from experiments.protocols.fragments.calibration import calibrate, epsilon_with

# Up to this number of reports, the table has a row for each number that an instance can see.
_ALL_SHOWN = 8


class FragmentsForecast(PerEpochForecast):
    """Forecast of the errors from reversed bits, which are as likely for every user."""

    def __init__(
        self,
        law: FragmentsLaw,
        last_epoch: int,
        held: NDArray[np.float64] | None = None,
        instances: int = 1,
        sealed: bool = False,
    ) -> None:
        super().__init__(last_epoch, law.items, law.slots, held)
        self._law = law
        self._instances = instances
        self._sealed = sealed
        of_reports = f" in each of {law.reports} reports" if law.reports > 1 else ""
        self.cells = f"a bit for each of {law.items:,} items{of_reports}"
        self.reports_per_user = np.full(last_epoch, law.messages_per_user)
        self.constants: tuple[Mapping[str, int | float], ...] = tuple(
            _exposures(law) if instances == 1 else _exposures_to_instance(law, instances)
        )
        self.notes = _notes(law, instances, sealed)

    def like(self, held: NDArray[np.float64]) -> FragmentsForecast:
        """Return an equally accurate forecast, because reversals do not depend on users' items."""
        instances, sealed = self._instances, self._sealed
        return FragmentsForecast(self._law, self._last_epoch, held, instances, sealed)

    def among(self, instances: int, *, sealed: bool) -> FragmentsForecast:
        return FragmentsForecast(self._law, self._last_epoch, self._held, instances, sealed)

    def _deviation(self, users: int) -> float:
        return math.sqrt(noise_variance(self._law, users))


def _exposures(law: FragmentsLaw) -> Iterator[Mapping[str, int | float]]:
    """Yield the privacy loss to an observer who links several reports of a device."""
    for seen in law.reports_seen:
        yield {
            "reports_seen": seen,
            "epsilon_of_a_bit": law.exposure(seen),
            "epsilon_of_a_user": law.exposed_epsilon(seen),
        }


def _exposures_to_instance(
    law: FragmentsLaw, instances: int
) -> Iterator[Mapping[str, int | float]]:
    """Yield the possible numbers of reports that one shuffler sees, with probability and loss."""
    for seen, chance in enumerate(chances_of_one_instance(law.reports, instances)):
        if law.reports <= _ALL_SHOWN or seen in (0, *law.reports_seen):
            yield {
                "reports_seen": seen,
                "probability": float(chance),
                "epsilon_of_a_bit": law.exposure_to_instance(seen, instances),
            }


def _notes(law: FragmentsLaw, instances: int, sealed: bool) -> tuple[str, ...]:
    who, captured = "the shuffler keeps", "a captured instance sees"
    if instances > 1:
        adding = " and the aggregator" if sealed else ""
        who = f"all {instances} shufflers{adding} together keep"
    if sealed:
        captured = (
            "a captured instance alone cannot read the messages drawn for it, which are sealed to "
            "the aggregator; together with the aggregator, it sees"
        )
    apart = f"if {who} the messages of a device together, "
    if law.permanent:
        alone = _of_permanence(law, apart)
    else:
        alone = (f"{apart}epsilon is {rounded_up(law.local_epsilon, 4)} at every epoch",)
    if instances > 1:
        at_one = " at one epoch" if law.permanent else ""
        return (
            *alone,
            f"{captured} t of the {law.reports} messages of a bit that every report of a device "
            f"sets, where t is distributed as Bin({law.reports}, 1/{instances}); the epsilon of a "
            f"bit above covers these and the absent messages{at_one}; neighbors differ in up to "
            f"{law.differing_bits} bits",
        )
    if law.reports == 1:
        return alone
    return (
        *alone,
        f"a single shuffler sees all {law.reports} reports: the smaller epsilons apply to an "
        "observer of fewer reports; see shuffle.instances",
    )


def _of_permanence(law: FragmentsLaw, apart: str) -> tuple[str, ...]:
    """Describe how epsilon depends on changes of a value, and the variance left by averaging."""
    lasting = lasting_variance(law, 1) / noise_variance(law, 1)
    return (
        f"{apart}a value that stays the same costs epsilon {rounded_up(law.unchanged_epsilon, 4)} "
        f"over all {law.last_epoch:,} epochs of a horizon, and less than "
        f"{rounded_up(law.limit_epsilon, 4)} for any number of epochs; a value that differs at "
        f"one epoch costs {rounded_up(law.local_epsilon, 4)}, and one that changes repeatedly "
        f"{rounded_up(law.changing_epsilon, 4)} in total; each horizon draws new keys and costs "
        "the same again",
        "the epsilons of shuffled reports, for one epoch and for all epochs, rely only on the "
        "fresh randomness of each report, because other epochs reveal the permanent backstop",
        "estimates of different epochs depend on the same reversed bits: averaging over epochs "
        f"leaves {lasting:.0%} of the variance where values stay the same, and the intervals of "
        "sums over epochs include it",
    )


@alternatives.register
def _instead(requested: FragmentsParameters, last_epoch: int) -> Iterable[Alternative]:
    """Return no alternatives for jobs that hide whether users have any items."""
    if requested.neighbors == "removal":
        return ()
    return alternatives.dispatch(CountMinParameters)(requested, last_epoch)


PROTOCOL = Protocol(
    name="fragments",
    parameters=FragmentsParameters,
    law=lambda requested: FragmentsLaw,
    calibrate=calibrate,
    randomizer=Fragments,
    aggregation=Aggregation.of(FragmentsAggregator),
    shuffling=Shuffling(
        epsilon_with,
        distinct_reports=True,
        without_shuffling=lambda law: Fragments(law).without_shuffling,
    ),
    planning=Planning.of(FragmentsForecast),
    values=lambda requested: SetDomain(requested.domain, requested.items),
    per_epoch=True,
    lasting_noise=lambda law: law.permanent,
    examples=(
        Example(FragmentsParameters(2.0, 0.05, ("a", "b")), 1, minimum=4),
        Example(FragmentsParameters(1.5, 0.05, ("a",)), 2, minimum=3),
        Example(FragmentsParameters(2.0, 0.05, ("a", "b"), neighbors="removal"), 1, minimum=4),
        Example(FragmentsParameters(3.0, 0.05, ("a", "b"), items=2), 1, minimum=3),
        Example(FragmentsParameters(2.0, 0.05, ("a", "b"), reports=2), 1, minimum=3),
        Example(FragmentsParameters(2.0, 0.05, ("a", "b"), permanent=True), 2, minimum=2),
        Example(FragmentsParameters(2.0, 0.05, ("a",), reports=2, permanent=True), 2, minimum=3),
    ),
)
