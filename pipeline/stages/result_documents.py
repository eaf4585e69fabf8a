"""Documents of ``<job>.results``: the published result of an epoch, as JSON for other software.

A document that is written again has the same bytes and key, except for descriptions that were
changed while the job ran. Its schema is ``result_document.schema.json`` in this folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpstream.aggregators.counts import NoValuesError, UnsupportedQueryError
from dpstream.aggregators.estimate import Published
from dpstream.pipeline.actions import Append, LogCursor, Steps, places_near
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_times import EpochSpans
from dpstream.pipeline.jobs.job_range import epoch_problem
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.times import iso
from dpstream.topics.names import Role

DOCUMENT_VERSION = 1
"""Version of the schema; within a version, keys can be added but never change in meaning."""
MOST_ESTIMATES = 1_000
LARGEST_DOCUMENT = 256 * 1024

_SCHEMA = Path(__file__).with_name("result_document.schema.json")
_QUARTILES = (0.25, 0.5, 0.75)


class ResultDocuments:
    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self._spans = EpochSpans(job)

    def append(self, record: EstimateRecord) -> Append:
        return Append(Role.RESULTS, 0, self.document(record), document_key(record))

    def document(self, record: EstimateRecord) -> bytes:
        """Encode the document as JSON with sorted keys, at most `LARGEST_DOCUMENT` bytes.

        It has the largest estimates, at most `MOST_ESTIMATES`, and fewer if names are long.
        """
        estimate = record.estimate
        if estimate is not None and not estimate.may_be_of(self._job.domain.size - 1):
            estimate = None
        most = MOST_ESTIMATES
        with suppress(ValueError):
            while most:
                document = _dumped(self._body(record, estimate, most))
                if len(document) <= LARGEST_DOCUMENT:
                    return document
                most //= 2
        # Numbers are invalid or texts too long: another program might have written the record.
        return _dumped(self._body(replace(record, guarantee={}, reason=None), None, 0))

    def _body(
        self, record: EstimateRecord, estimate: Published | None, most: int
    ) -> dict[str, Any]:
        job, domain, guarantee = self._job, self._job.domain, record.guarantee
        averaged = None if estimate is None else estimate.averaged
        return {
            "version": DOCUMENT_VERSION,
            "job": job.name,
            **job.given_texts("title", "unit"),
            "deployment": job.deployment.hex(),
            "epoch": record.epoch,
            "start": self._spans.begins(record.epoch),
            "end": self._spans.begins(record.epoch + 1),
            "closed_at": iso(record.closed_at),
            "window_status": record.window_status.value,
            "reason": record.reason,
            "kind": domain.kind,
            "population": record.population,
            "contributors": record.contributors,
            "reports": 0 if estimate is None else estimate.reports,
            **({} if averaged is None else {"averaged_epochs": averaged}),
            "flags": [] if estimate is None else list(estimate.flags),
            "assumes_changes": record.assumes_changes,
            "guarantee": {name: guarantee.get(name) for name in ("epsilon", "delta", "unit")},
            "published": 0 if estimate is None else len(estimate.numbers),
            "estimates": [] if estimate is None else list(self._estimates(estimate, most)),
            "quantiles": [] if estimate is None else list(self._quantiles(estimate)),
            "detection_threshold": None if estimate is None else estimate.detection_threshold,
            "suppressed": [] if estimate is None else self._labels(estimate.suppressed)[:most],
        }

    def _estimates(self, estimate: Published, most: int) -> Iterator[dict[str, Any]]:
        """Yield the largest estimates in domain order; detected items by decreasing estimate."""
        numbers, values = estimate.numbers, estimate.intervals[0]
        if len(numbers) > most:
            largest = np.argsort(-values, kind="stable")[:most]
            numbers = numbers[np.sort(largest)]
        if not len(numbers):
            return
        for item, each in estimate.of_items(numbers.tolist()):
            name = self._job.domain.label(item)
            yield {
                "item": name or None,
                **self._job.shown_as(name),
                "estimate": each.value,
                "standard_error": each.standard_error,
                "ci95_low": each.ci95_low,
                "ci95_high": each.ci95_high,
            }

    def _quantiles(self, estimate: Published) -> Iterator[dict[str, Any]]:
        domain = self._job.domain
        if domain.kind != "numbers" or not estimate.population:
            return
        for share in _QUARTILES:
            try:
                quantile = estimate.quantile(share)
            except (NoValuesError, UnsupportedQueryError):
                return
            value, low, high = domain.quantile(
                quantile.value, quantile.ci95_low, quantile.ci95_high
            )
            yield {
                "share": share,
                "value": float(value),
                "ci95_low": float(low),
                "ci95_high": float(high),
            }

    def _labels(self, items: Sequence[int]) -> list[str]:
        return [self._job.domain.label(item) for item in items]


class WrittenDocuments:
    """Find a deployment's latest epoch that has a document, from the keys of records.

    All earlier published epochs then have one, too: each writer continues after the latest
    document. `latest` is 0 without documents.
    """

    def __init__(self, job: DeployedJob) -> None:
        self._job = job
        self._deployment = job.deployment.hex()
        self.latest = 0

    def note(self, key: bytes | None) -> None:
        try:
            body = json.loads(key or b"")
            deployment, epoch = body["deployment"], body["epoch"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return
        known = deployment == self._deployment and type(epoch) is int
        if known and epoch_problem(self._job, epoch) is None:
            self.latest = max(epoch, self.latest)

    def near_the_end(self) -> Steps[LogCursor]:
        cursor: LogCursor = self._job.cursor(Role.RESULTS, lambda record: self.note(record.key))
        begin = cursor.position
        yield from cursor.find_end()
        for start in places_near(begin, cursor.end):
            cursor.position = start
            yield from cursor.read()
            if self.latest:
                break
        return cursor


def document_schema() -> str:
    return _SCHEMA.read_text()


def document_key(record: EstimateRecord) -> bytes:
    """Return the key of a document: JSON with the deployment and the epoch.

    Compaction keeps one document per key, so earlier deployments never replace later documents.
    """
    return _dumped({"deployment": record.deployment.hex(), "epoch": record.epoch})


def _dumped(body: dict[str, Any]) -> bytes:
    text = json.dumps(
        body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()
