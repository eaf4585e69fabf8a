"""Section of a job file for the shuffler and its parallel instances."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from dpstream.pipeline.jobs.wording import Section
from dpstream.pipeline.values.durations import FORMS, Duration, parse_duration
from dpstream.topics.names import FURTHER_REPORTS

DURATION: Final = f"a duration above 0, at most 1000 years: {FORMS}"
MOST_INSTANCES: Final = 1 + len(FURTHER_REPORTS)
FIXED_DURATION: Final = f"{DURATION}, without months or years"


def _seconds(value: object) -> float:
    if not isinstance(value, str):
        raise ValueError("not text")
    return parse_duration(value).timedelta().total_seconds()


Seconds = Annotated[
    float,
    PlainValidator(_seconds),
    PlainSerializer(lambda seconds: str(Duration(exact=timedelta(seconds=seconds))), str),
]


class Shuffle(Section):
    order: Literal["sorted", "random"] = Field(default="sorted", description="sorted or random")
    minimum: int = Field(
        default=100,
        ge=1,
        description="the minimum number of devices to release a window, an integer of at least 1",
    )
    producers: int = Field(
        default=1,
        ge=1,
        description=(
            "the number of registered producers required before a window closes as complete, an "
            "integer of at least 1"
        ),
    )
    grace: Seconds = Field(default=60.0, description=FIXED_DURATION)
    instances: int = Field(
        default=1,
        ge=1,
        le=MOST_INSTANCES,
        description=(
            f"an integer from 1 to {MOST_INSTANCES}: parallel shufflers, each of which sees a "
            "random part of the messages"
        ),
    )

    @model_serializer(mode="wrap")
    def _without_one_instance(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = write(self)
        if self.instances == 1:
            del values["instances"]
        return values

    def trust(self, *, sealed: bool) -> str:
        divided = (
            f"{self.instances} shufflers work in parallel, and each message goes to one of them "
            "at random"
        )
        if sealed:
            return divided
        return (
            f"{divided}: an observer of one of them sees 1/{self.instances} of a device's "
            "messages on average"
        )

    def spared(self, parameters: Any, epochs: int) -> Any:
        """Return parameters whose delta is reduced to allow for divisions that are drawn twice.

        The required reduction is the probability that any producer draws its division of messages
        twice at any epoch of a horizon, times 1 + exp(epsilon), because both compared output
        distributions change. Delta is reduced by one unit in its last place; raises `ValueError` if
        that is not enough.
        """
        delta = getattr(parameters, "delta", None)
        if self.instances == 1 or not delta:
            return parameters
        from dpstream.randomizers.division import REDRAW_PROBABILITY
        from dpstream.topics.manifests import PRODUCERS_OF_INSTANCES_MAX

        spared = math.nextafter(delta, 0)
        divisions = PRODUCERS_OF_INSTANCES_MAX * epochs
        epsilon = min(parameters.epsilon, 600.0)
        if (1 + math.exp(epsilon)) * divisions * REDRAW_PROBABILITY >= delta - spared:
            raise ValueError(
                f"epsilon {epsilon:g} with delta {delta:g} leaves no delta for dividing "
                f"messages among {self.instances} instances. Use a smaller epsilon or larger delta"
            )
        return replace(parameters, delta=spared)


class SizedShuffle(Shuffle):
    minimum: int = Field(
        ge=1,
        description=(
            "the minimum number of devices to release a window, an integer of at least 1; the "
            "noise is calibrated to it"
        ),
    )
