"""Resolve Kafka and its dependencies again, after a maintainer changed a version below.

``python -m tests.support.lock_jars`` downloads every jar, writes
``jars.lock.toml`` (jgo's lock format: coordinates and sha256 sums) and prints the number of jars.
No other module uses this one: a running broker reads the lock file and resolves nothing.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from dpstream.pipeline.kafka import local_kafka

KAFKA_VERSION = "4.3.1"
LOGGING_VERSION = "2.25.5"

# kafka-clients is listed because an older dependency would determine its version otherwise.
ENDPOINT = "+".join(
    [
        f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
        f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}",
        f"org.apache.logging.log4j:log4j-slf4j-impl:{LOGGING_VERSION}",
        f"org.apache.logging.log4j:log4j-core:{LOGGING_VERSION}",
        f"org.apache.logging.log4j:log4j-1.2-api:{LOGGING_VERSION}",
    ]
)


def lock_file() -> str:
    import jgo
    from jgo.maven import MavenContext

    entries = ["# Written by tests/support/lock_jars.py; do not edit."]
    with tempfile.TemporaryDirectory() as folder:
        context = MavenContext(repo_cache=Path(folder))
        for artifact in jgo.resolve(ENDPOINT):
            component = context.project(artifact.groupId, artifact.artifactId)
            jar = component.at_version(artifact.version).artifact().resolve()
            entries.append(
                "[[dependencies]]\n"
                f'groupId = "{artifact.groupId}"\n'
                f'artifactId = "{artifact.artifactId}"\n'
                f'version = "{artifact.version}"\n'
                f'packaging = "{artifact.packaging}"\n'
                f'sha256 = "{hashlib.sha256(jar.read_bytes()).hexdigest()}"'
            )
    return "\n\n".join(entries) + "\n"


if __name__ == "__main__":
    target = Path(local_kafka.__file__).with_name("jars.lock.toml")
    target.write_text(lock_file())
    print(f"{target}: {target.read_text().count('[[dependencies]]')} jars")
