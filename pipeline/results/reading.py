"""What was published of a job as a table, for programs and notebooks."""

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
    """What was published cannot be read; the message says what to do."""


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """All that was published of a job, a row for every epoch and number.

    Attributes:
        table: its columns are those of `PublishedRows`.
    """

    table: pyarrow.Table

    @property
    def job(self) -> str:
        """The name of the job."""
        return self._told("job").decode()

    @property
    def deployment(self) -> str:
        """16 bytes in hexadecimal; a job that is deployed anew has another one."""
        return self._told("deployment").decode()

    @property
    def guarantee(self) -> Mapping[str, Any]:
        """What is promised to every device, as JSON values."""
        found: Mapping[str, Any] = json.loads(self._told("guarantee"))
        return found

    @property
    def title(self) -> str | None:
        """What is counted, such as "Students enrolled"; None where the job file does not say."""
        return self._words.title

    @property
    def description(self) -> str | None:
        """A sentence or two about it; None where the job file does not say."""
        return self._words.description

    @property
    def unit(self) -> str:
        """What people are called, in the plural."""
        return self._words.people

    @property
    def labels(self) -> Mapping[str, str]:
        """What people read instead of an item or value, by its name."""
        return self._words.labels or {}

    def to_arrow(self) -> pyarrow.Table:
        """The table: timestamps with the job's zone, names and fates dictionary-encoded."""
        return self.table

    def to_pandas(self) -> pandas.DataFrame:
        """The same as a data frame: names and fates are categories.

        Raises:
            ReadError: pandas is not installed.
        """
        try:
            import pandas  # noqa: F401 - pyarrow would say less of what is missing
        except ImportError:
            raise ReadError(
                "pandas is not installed: install it (pip install pandas), or take to_arrow()"
            ) from None
        frame: pandas.DataFrame = self.table.to_pandas()
        return frame

    def __len__(self) -> int:
        """How many rows there are."""
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        """What it is, in a line."""
        return f"Results(job {self.job}, {len(self):,} rows)"

    @property
    def _words(self) -> Wording:
        found = json.loads(self._told("words"))
        return Wording.model_validate({key: found.get(key) for key in WORDS})

    def _told(self, key: str) -> bytes:
        told: bytes = self.table.schema.metadata[key.encode()]
        return told


def read_job(name: str, bootstrap_servers: str | None, kafka_config: Path | None) -> Results:
    """The results of a deployed job; see `dpstream.pipeline.results.read`."""
    with Cluster(find_cluster(bootstrap_servers, kafka_config)) as cluster:
        state = ListedJobs()
        if cluster.exists(JOBS_TOPIC):
            for record in cluster.read(JOBS_TOPIC):
                state.apply(record.key, record.value)
        job = state.jobs.get(name)
        if job is None:
            known = ", ".join(sorted(state.jobs)) or "none at all"
            raise ReadError(f"job {name} is not deployed (deployed: {known})")
        records = EstimateReader(cluster, job).read()
        return Results(table_of(PublishedRows.of(job), records))


def read_file(path: Path) -> Results:
    """The results in a file of ``dpstream estimates --parquet``."""
    from pyarrow import ArrowInvalid, parquet

    try:
        table = parquet.read_table(path)
    except (OSError, ArrowInvalid):
        reason = "no Parquet file" if path.exists() else "no such file"
        raise ReadError(f"{path}: {reason}: dpstream estimates JOB --parquet writes one") from None
    if not {b"job", b"deployment", b"guarantee", b"words"} <= set(table.schema.metadata or ()):
        raise ReadError(f"{path}: not written by dpstream estimates JOB --parquet")
    return Results(table)
