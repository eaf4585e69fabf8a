"""For comparison: the budget divided among all epochs. Its entry and its forecast."""

from __future__ import annotations

from dpstream.pipeline.protocols.epoch_responses import EpochResponsesForecast, epoch_responses
from dpstream.pipeline.protocols.protocol import Example
from dpstream.randomizers.split_budget import SplitBudget, SplitBudgetLaw, SplitBudgetParameters


class SplitBudgetForecast(EpochResponsesForecast):
    """What an epoch has of the budget, beside what all have."""

    def __init__(self, law: SplitBudgetLaw, last_epoch: int) -> None:
        super().__init__(law, last_epoch)
        self.constants = ({**self.constants[0], "epsilon": law.response.loss},)


PROTOCOL = epoch_responses(
    "split_budget",
    SplitBudgetParameters,
    SplitBudgetLaw,
    SplitBudget,
    SplitBudgetForecast,
    (
        Example(SplitBudgetParameters(1.0), 1),
        Example(SplitBudgetParameters(4.0), 4),
    ),
    loss_of_streams=True,
)
