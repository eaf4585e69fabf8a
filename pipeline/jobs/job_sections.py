"""Short sections of a job file: topics, budget, crowds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from dpstream.pipeline.jobs.epochs import CalendarDuration
from dpstream.pipeline.jobs.job_problems import (
    shown,
)
from dpstream.pipeline.jobs.shuffle import DURATION, FIXED_DURATION, Seconds
from dpstream.pipeline.jobs.wording import Section
from dpstream.pipeline.values.value_domains import BETWEEN
from dpstream.randomizers.parameter_checks import LEAST_DELTA, MOST_CROWDS


class Topics(Section):
    partitions: int = Field(default=4, ge=1, le=1024, description="an integer from 1 to 1024")
    replication: int | None = Field(
        default=None,
        ge=1,
        le=32,
        description=(
            "copies of every record, an integer from 1 to 32. Default: 1 on the local broker, "
            "otherwise the cluster's default"
        ),
    )
    retention: Seconds = Field(
        default=timedelta(days=7).total_seconds(),
        description=FIXED_DURATION,
    )

    @property
    def retention_ms(self) -> int:
        return round(self.retention * 1000)

    def partition_of(self, epoch: int) -> int:
        return epoch % self.partitions


class Budget(Section):
    epsilon: float = Field(gt=0, description="a number above 0")
    delta: float = Field(0.0, ge=0, lt=1, description="a number of at least 0 and below 1")
    per: CalendarDuration | None = Field(
        None, description=f"the period in which charges are limited, such as P1Y; {DURATION}"
    )

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = write(self)
        return {key: value for key, value in values.items() if (key, value) != ("per", None)}


class Crowds(Section):
    by: str = Field(
        pattern=r"^\s*\S.{0,99}$",
        description="the name of a public column of the input, such as app_version",
    )
    values: tuple[str, ...] = Field(
        min_length=1,
        max_length=MOST_CROWDS,
        description=(
            f"a list of up to {MOST_CROWDS:,} labels, or {{file: NAME}} for a file with one per "
            "line"
        ),
    )
    epsilon: float = Field(
        gt=0,
        description="a number above 0: the privacy loss from the sizes of all crowds together",
    )
    delta: float = Field(
        ge=LEAST_DELTA, lt=1, description=f"a number of at least {LEAST_DELTA:g} and below 1"
    )

    @model_validator(mode="after")
    def _public_and_distinct(self) -> Self:
        name = self.by.strip().casefold()
        if name in ("user", "epoch", "time", "value"):
            raise ValueError(
                f"by is {self.by}; expected a public column other than user, epoch, time and value"
            )
        if len(set(self.values)) < len(self.values) or "" in self.values:
            raise ValueError("values must be distinct, non-empty labels")
        for label in self.values:
            if BETWEEN.strip() in label:
                raise ValueError(
                    f"values has label {shown(label)}; expected no colon in labels, because a "
                    "colon separates crowd and item"
                )
        return self
