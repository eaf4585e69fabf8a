"""For comparison: permanent and instantaneous randomized response. Its entry and its forecast."""

from __future__ import annotations

from dpstream.pipeline.protocols.epoch_responses import EpochResponsesForecast, epoch_responses
from dpstream.pipeline.protocols.protocol import Example
from dpstream.randomizers.memoized_response import (
    MemoizedResponse,
    MemoizedResponseLaw,
    MemoizedResponseParameters,
)


class MemoizedResponseForecast(EpochResponsesForecast):
    """The two responses and what a whole stream loses."""

    caveats = (
        "estimates of different epochs rest on the same permanent responses: averaging over epochs "
        "does not take their error away",
        "the guarantee is for values that never change; whole streams lose what stream_epsilon "
        "says, and budgets are charged with that",
    )

    def __init__(self, law: MemoizedResponseLaw, last_epoch: int) -> None:
        super().__init__(law, last_epoch)
        self.constants = (
            {
                **self.constants[0],
                "permanent_epsilon": law.permanent.loss,
                "instantaneous_epsilon": law.instantaneous.loss,
                "stream_epsilon": law.stream_loss,
            },
        )


PROTOCOL = epoch_responses(
    "memoized_response",
    MemoizedResponseParameters,
    MemoizedResponseLaw,
    MemoizedResponse,
    MemoizedResponseForecast,
    (
        Example(MemoizedResponseParameters(2.0), 4),
        Example(MemoizedResponseParameters(2.0, 0.3, "full"), 3),
    ),
)
