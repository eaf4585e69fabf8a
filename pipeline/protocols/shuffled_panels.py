"""Registry entry for shuffled_panels: panels whose answers the shuffler sums, with noise."""

from __future__ import annotations

from dpstream.aggregators.panel_changes import PanelChanges, PanelWindows
from dpstream.aggregators.shuffled_panels import ShuffledPanelsAggregator
from dpstream.pipeline.protocols.change_limits import ChangeLimit, change_limit
from dpstream.pipeline.protocols.late_calibration import late
from dpstream.pipeline.protocols.panels import ACTIVE, SPENT, PanelsForecast, panel_domain
from dpstream.pipeline.protocols.protocol import (
    Aggregation,
    Example,
    Planning,
    Protocol,
    Shuffling,
    StageSum,
)
from dpstream.randomizers.panels import (
    PanelDevices,
    PanelsLaw,
    ShuffledPanelsParameters,
)


def _change_limit(
    law: PanelsLaw, requested: ShuffledPanelsParameters, epochs: int
) -> ChangeLimit | None:
    boost = max(each.boost for each in law.summed_laws)
    return change_limit(requested.max_changes, epochs, "delayed", boost=boost)


PROTOCOL = Protocol(
    name="shuffled_panels",
    parameters=ShuffledPanelsParameters,
    law=lambda requested: PanelsLaw,
    calibrate=late("panels", "calibrate_shuffled"),
    randomizer=PanelDevices,
    aggregation=Aggregation(
        ShuffledPanelsAggregator,
        ShuffledPanelsAggregator.from_bytes,
        changes=PanelChanges,
        window_errors=PanelWindows,
        change_limit=_change_limit,
    ),
    shuffling=Shuffling(
        # The shuffler adds all noise: the guarantee does not depend on honest users.
        lambda law, honest: law.questions[0].law.epsilon,
        contributors=lambda law: None,
        stage_sum=lambda law: StageSum(law.sum_form, law.check_messages, law.noisy_sums),
    ),
    planning=Planning(PanelsForecast),
    values=panel_domain,
    examples=tuple(
        Example(ShuffledPanelsParameters(4.0, 1, (question,), delta=0.1), 1, minimum=2)
        for question in (ACTIVE, SPENT)
    ),
)
