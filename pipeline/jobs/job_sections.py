"""Short sections of a job file: topics, budget, crowds."""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from pydantic import (
    Field,
    model_validator,
)

from dpstream.pipeline.jobs.job_problems import (
    shown,
)
from dpstream.pipeline.jobs.shuffle import FIXED_DURATION, Seconds
from dpstream.pipeline.jobs.wording import Section
from dpstream.pipeline.values.value_domains import BETWEEN
from dpstream.randomizers.parameter_checks import LEAST_DELTA, MOST_CROWDS


class Topics(Section):
    partitions: int = Field(default=4, ge=1, le=1024, description="a whole number from 1 to 1024")
    replication: int | None = Field(
        default=None,
        ge=1,
        le=32,
        description=(
            "copies of every record, a whole number from 1 to 32. Default: 1 on the local broker, "
            "otherwise the cluster's default"
        ),
    )
    retention: Seconds = Field(
        default=timedelta(days=7).total_seconds(),
        description=FIXED_DURATION,
    )

    @property
    def retention_ms(self) -> int:
        """Retention of raw and shuffled records, in milliseconds."""
        return round(self.retention * 1000)

    def partition_of(self, epoch: int) -> int:
        return epoch % self.partitions


class Budget(Section):
    """Budget limit of the users a job is about, over all deployments together."""

    epsilon: float = Field(gt=0, description="a number above 0")
    delta: float = Field(0.0, ge=0, lt=1, description="a number from 0 to below 1")


class Crowds(Section):
    """Crowds: parts of the users by a public column, counted separately."""

    by: str = Field(
        pattern=r"^\s*\S.{0,99}$",
        description="the name of a column of the input, which is public, such as app_version",
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
        gt=0, description="a number above 0, the loss for the numbers of all crowds"
    )
    delta: float = Field(
        ge=LEAST_DELTA, lt=1, description=f"a number from {LEAST_DELTA:g} to below 1"
    )

    @model_validator(mode="after")
    def _public_and_distinct(self) -> Self:
        name = self.by.strip().casefold()
        if name in ("user", "epoch", "time", "value"):
            raise ValueError(
                f"by is {self.by}; expected a public column, different from those of the value "
                "and the user"
            )
        if len(set(self.values)) < len(self.values) or "" in self.values:
            raise ValueError("values must be distinct and not empty")
        for label in self.values:
            if BETWEEN.strip() in label:
                raise ValueError(
                    f"values has {shown(label)}; expected labels without a colon, which separates "
                    "crowd and item"
                )
        return self
