"""What was published, read again: estimates, the counts behind them, questions to them.

`read` gives programs and notebooks all that was published of a job, as a table. Begin with
`follow`, which reads estimates as they come, and `questions`: each reads its answers from any
counts, with the truth beside them. `asked` makes questions of what people write. `kinds` has what
a job may publish: each kind knows its headline, its sentence, its curves and what is asked of it
when nothing is. `epoch_counts` has the windows to be asked, `smoothing` looks back over a horizon,
`published_rows` has the columns of files and tables, `curves` the plots, and `expected_errors` what
is known of errors beforehand. Nothing here writes to Kafka.
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
    """All that was published of a job.

    Args:
        source: the name of a deployed job, or a Parquet file that ``dpstream estimates --parquet``
            has written: its name ends with ``.parquet``.
        bootstrap_servers: the Kafka cluster, as of the commands; by default the local broker.
        kafka_config: a client.properties, as of the commands.

    Raises:
        ReadError: there is no such job or file; the message says what there is.
        DpstreamError: there is no such cluster.
        KafkaError: it does not answer.
    """
    # Not at the top: importing a module of this package is not to load all of them.
    from dpstream.pipeline.results.reading import read_file, read_job

    path = Path(source)
    if path.suffix == ".parquet":
        return read_file(path)
    return read_job(str(source), bootstrap_servers, kafka_config)
