"""Compute a job's maximum record sizes in advance, and reject jobs with oversized records.

An oversized record blocks its writer and all later epochs permanently. Most records are split when
they are written; a single report, an estimate, a model and the deployed job are not.
"""

from __future__ import annotations

import json
from typing import Final

from dpstream.aggregators.cell_window import FOUND
from dpstream.pipeline.errors import WRONG_INPUT, DpstreamError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.protocols.protocol import Law
from dpstream.pipeline.stages.result_documents import LARGEST_DOCUMENT
from dpstream.pipeline.values.panels import PanelDomain
from dpstream.topics.frames import RECORD_CAP, RECORD_TARGET
from dpstream.topics.names import JOBS_TOPIC, Role, TopicSettings, jobs_topic

REQUEST_BYTES_MAX: Final = 1 << 20
"""Maximum bytes of a request with one record that all clients accept; aiokafka sets the limit."""

# Overhead of a record: headers of request, batch and record, and a key.
_AROUND = 1024
# Overhead in bytes per record of shuffled reports, in addition to one report.
_HEADERS = 512
# Bytes of an estimate's field names, scalars, variances per level, flags and reason.
_FEW_NUMBERS = 8192
# Bytes per crowd, in addition to its items.
_OF_A_CROWD = 1024
# Maximum ratio of an estimate to its user count, whatever the noise.
_TIMES_USERS = 1000
# Bytes that deployment adds to a job: digests, signatures and other fields.
_FILLED_IN = 4096
_OFFSET_DIGITS = 20


class RecordSizeError(DpstreamError):
    exit_code = WRONG_INPUT


def check_record_sizes(job: DeployedJob) -> None:
    users = max(1, job.shuffle.minimum)
    sizes = largest_records(job, users)
    topics = [*job.topic_settings().values(), jobs_topic(job.topics.replication)]
    for topic in topics:
        size, room = sizes[topic.name], _room(topic)
        if size > room:
            raise RecordSizeError(
                f"job {job.name} cannot run: a record in {topic.name} can reach {size:,} bytes "
                f"with as few as {users:,} users, but the limit is {room:,} bytes. "
                f"{_advice(job, topic)}"
            )


def most_users(job: Job, law: Law) -> int | None:
    """Return the maximum number of users that can be estimated; None without a practical limit."""
    room = _room(job.topic_settings()[Role.ESTIMATES])
    users = 1
    while users < 1 << 53:
        if largest_estimate(job, law, users) > room:
            return users // 10
        users *= 10
    return None


def largest_records(job: DeployedJob, users: int) -> dict[str, int]:
    topics = job.topic_settings()
    largest = {topic.name: _largest(job, role, users) for role, topic in topics.items()}
    offsets = sum(topic.partitions for topic in topics.values())
    largest[JOBS_TOPIC] = len(job.to_bytes()) + _FILLED_IN + _OFFSET_DIGITS * offsets
    return largest


def _largest(job: DeployedJob, role: Role, users: int) -> int:
    match role:
        case Role.ESTIMATES:
            return largest_estimate(job, job.law, users)
        case Role.RESULTS:
            return LARGEST_DOCUMENT
        case Role.SHUFFLED | Role.HOP_1 | Role.HOP_2:
            return max(RECORD_TARGET, job.format_of(role).report_bytes + _HEADERS)
        case Role.PARTIALS | Role.PARTIALS_A | Role.PARTIALS_B:
            return RECORD_TARGET
        case _:
            return RECORD_CAP


def largest_estimate(job: Job, law: Law, users: int) -> int:
    domain, crowds = job.domain, job.protocol_entry.crowds(law)
    # Sign, digits, decimal point, one decimal, and a comma.
    number = len(str(_TIMES_USERS * users)) + 4
    if isinstance(domain, PanelDomain):
        # Of each row: value, standard error and size, with 9 digits and exponent; devices.
        number += 3 * len("-1.23456789e-300,")
    match domain.kind:
        case "value":
            numbers = 0
        case "found":
            # Including the items' own numbers.
            numbers = FOUND * (number + len(str(domain.size)) + 1)
        case _:
            numbers = (domain.size - 1) * number
    guarantee = len(json.dumps(job.guarantee_of(law).to_json(), separators=(",", ":")))
    return (
        numbers + guarantee + _FEW_NUMBERS + (0 if crowds is None else crowds.crowds * _OF_A_CROWD)
    )


def _room(topic: TopicSettings) -> int:
    return min(int(topic.configs["max.message.bytes"]), REQUEST_BYTES_MAX) - _AROUND


def _advice(job: DeployedJob, topic: TopicSettings) -> str:
    if topic.name == JOBS_TOPIC:
        return "It contains the whole job file. Use fewer or shorter labels"
    if topic.name == job.topic(Role.ESTIMATES):
        return (
            f"It contains an estimate for each of {job.domain.size - 1:,} items. Use fewer "
            f"items, or use a domain {{bits: b}} with a protocol that publishes the largest "
            "items, such as count_min"
        )
    return "A single report is too large for a record. Use fewer rows or messages per report"
