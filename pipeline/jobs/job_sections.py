"""Short sections of a job file: topics and budget."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from dpstream.pipeline.jobs.epochs import CalendarDuration
from dpstream.pipeline.jobs.shuffle import DURATION, FIXED_DURATION, Seconds
from dpstream.pipeline.jobs.wording import Section


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
