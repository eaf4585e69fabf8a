"""Read published data: estimates, the counts behind estimates, and queries.

- `read` returns everything that a job published as a table, for programs and notebooks.
- `follow` reads estimates as they arrive; `epoch_counts` reads the windows for queries.
- `counts_queries` answers queries from any counts; `query_options` parses queries.
- `kinds` has the kinds of publication, each with its headline, sentence, curves and default query.
- `smoothing` smooths a horizon retrospectively; `roll_ups` averages windows of epochs.
- `expected_errors` predicts errors; `compared_protocols` predicts them for other protocols, too.
- `published_rows` has the columns of files and tables, and `curves` has the plots.
- Nothing here writes to Kafka.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpstream.pipeline.results.reading import Results


def read(
    source: str | Path,
    *,
    bootstrap_servers: str | None = None,
    kafka_config: Path | None = None,
) -> Results:
    """Read everything that a job has published.

    Args:
        source: Name of a deployed job, or a Parquet file from ``dpstream estimates --parquet``
            whose name ends with ``.parquet``.
        bootstrap_servers: Kafka cluster, as in commands; by default, the local broker.
        kafka_config: A client.properties file, as in commands.

    Raises:
        ReadError: If there is no such job or file; the message lists what exists.
        DpstreamError: If there is no such cluster.
        KafkaError: If the cluster does not respond.
    """
    # Imported here: importing a module of this package must not load all of them.
    from dpstream.pipeline.results.reading import read_file, read_job

    path = Path(source)
    if path.suffix == ".parquet":
        return read_file(path)
    return read_job(str(source), bootstrap_servers, kafka_config)
