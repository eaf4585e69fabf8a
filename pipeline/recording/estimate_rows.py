"""Estimates as a recording holds them, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dpstream.pipeline.recording.recording_tables import Numbers
from dpstream.pipeline.recording.recordings import RecordedEstimate
from dpstream.pipeline.stages.estimate_records import VERSION, EstimateRecord


def recorded_estimate(record: EstimateRecord) -> RecordedEstimate:
    """The row of a published estimate; it holds all of the record but the deployment."""
    body, single = record.to_json(), None if record.estimate is None else record.estimate.single
    numbers: Numbers = (None, None, None, None)
    if single is not None:
        numbers = (single.value, single.low, single.high, single.standard_deviation)
    return RecordedEstimate(
        epoch=record.epoch,
        fate=record.fate,
        closed_at=record.closed_at,
        contributors=record.contributors,
        population=record.population,
        estimate=_text(body["estimate"]),
        guarantee=_text(body["guarantee"]),
        numbers=numbers,
        reason=record.reason,
        assumes_changes=record.assumes_changes,
    )


def published_estimate(row: RecordedEstimate, deployment: bytes) -> EstimateRecord:
    """The published record of a row.

    Raises:
        CodecError: the row holds none.
    """
    body = {
        "version": VERSION,
        "deployment": deployment.hex(),
        "epoch": row.epoch,
        "fate": row.fate.value,
        "closed_at": row.closed_at,
        "contributors": row.contributors,
        "population": row.population,
        **({} if row.reason is None else {"reason": row.reason}),
        **({} if row.assumes_changes is None else {"assumes_changes": row.assumes_changes}),
    }
    head = json.dumps(body)[:-1]
    text = f'{head}, "estimate": {row.estimate}, "guarantee": {row.guarantee}}}'
    return EstimateRecord.from_bytes(text.encode())


def _text(body: Mapping[str, Any] | None) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
