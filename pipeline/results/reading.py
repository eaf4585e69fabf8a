"""A job's published data as a table, for programs and notebooks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.listed_jobs import ListedJobs
from dpstream.pipeline.jobs.wording import KEYS as WORDS
from dpstream.pipeline.jobs.wording import Wording
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.connection import find_cluster
from dpstream.pipeline.results.file_formats import table_of
from dpstream.pipeline.results.follow import EstimateReader
from dpstream.pipeline.results.published_rows import PublishedRows
from dpstream.topics.names import JOBS_TOPIC

if TYPE_CHECKING:
    import pandas
    import pyarrow


class ReadError(DpstreamError):
    """Published data cannot be read; the message states the fix."""


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """All data that a job has published, with one row per epoch and number.

    The columns of `table` are those of `PublishedRows`.
    """

    table: pyarrow.Table

    @property
    def job(self) -> str:
        """Name of the job."""
        return self._metadata("job").decode()

    @property
    def deployment(self) -> str:
        """ID of the deployment: 16 bytes in hexadecimal."""
        return self._metadata("deployment").decode()

    @property
    def guarantee(self) -> Mapping[str, Any]:
        """Guarantee for every device, as JSON values."""
        found: Mapping[str, Any] = json.loads(self._metadata("guarantee"))
        return found

    @property
    def title(self) -> str | None:
        """Counted quantity, such as "Students enrolled"; None if the job file has no title."""
        return self._words.title

    @property
    def description(self) -> str | None:
        """One or two sentences about the counted quantity; None if the job file has none."""
        return self._words.description

    @property
    def unit(self) -> str:
        """Noun for the users, in the plural."""
        return self._words.people

    @property
    def labels(self) -> Mapping[str, str]:
        """Display texts for items or values, by name."""
        return self._words.labels or {}

    def to_arrow(self) -> pyarrow.Table:
        """Return the table; times are in the job's zone, names and statuses dictionary-encoded."""
        return self.table

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame: names and statuses are categories.

        Raises `ReadError` if pandas is not installed.
        """
        try:
            import pandas  # noqa: F401 - pyarrow's own error is less specific
        except ImportError:
            raise ReadError(
                "pandas is not installed. Install it ('pip install pandas'), or use to_arrow()"
            ) from None
        frame: pandas.DataFrame = self.table.to_pandas()
        return frame

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        return f"Results(job {self.job}, {len(self):,} rows)"

    @property
    def _words(self) -> Wording:
        found = json.loads(self._metadata("wording"))
        return Wording.model_validate({key: found.get(key) for key in WORDS})

    def _metadata(self, key: str) -> bytes:
        stored: bytes = self.table.schema.metadata[key.encode()]
        return stored


def read_job(name: str, bootstrap_servers: str | None, kafka_config: Path | None) -> Results:
    """Read the results of a deployed job; see `dpstream.pipeline.results.read`."""
    with Cluster(find_cluster(bootstrap_servers, kafka_config)) as cluster:
        state = ListedJobs()
        if cluster.exists(JOBS_TOPIC):
            for record in cluster.read(JOBS_TOPIC):
                state.apply(record.key, record.value)
        job = state.jobs.get(name)
        if job is None:
            known = ", ".join(sorted(state.jobs)) or "none"
            raise ReadError(f"job {name} is not deployed (deployed: {known})")
        records = EstimateReader(cluster, job).read()
        return Results(table_of(PublishedRows.of(job), records))


def read_file(path: Path) -> Results:
    """Read the results in a file written by ``dpstream estimates --parquet``."""
    from pyarrow import ArrowInvalid, parquet

    try:
        table = parquet.read_table(path)
    except (OSError, ArrowInvalid):
        reason = "not a Parquet file" if path.exists() else "no such file"
        raise ReadError(
            f"{path}: {reason}. To write one: 'dpstream estimates JOB --parquet FILE'"
        ) from None
    if not {b"job", b"deployment", b"guarantee", b"wording"} <= set(table.schema.metadata or ()):
        raise ReadError(f"{path}: not a file written by 'dpstream estimates JOB --parquet FILE'")
    return Results(table)
