"""Test invalid domains, and items in crowds."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpstream.pipeline.devices.item_log import load_item_log
from dpstream.pipeline.devices.live import Held, LiveSource
from dpstream.pipeline.devices.producer import Producer, ProducerError
from dpstream.pipeline.devices.rows import BadRowsError, InputError
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job, fingerprint_of
from dpstream.pipeline.jobs.job_files import make_job, parse_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.kafka.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.results.counts_queries import Items, Top
from dpstream.pipeline.results.query_options import QueryOptions
from dpstream.pipeline.values.boxes import QueryError
from dpstream.pipeline.values.crowds import CrowdDomain
from dpstream.pipeline.values.durations import parse_duration
from dpstream.pipeline.values.sets import SetDomain
from dpstream.pipeline.values.times import EpochCalendar
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.batches import decode_batch
from dpstream.topics.names import Role
from tests.support.new_jobs import hidden_sizes
from tests.support.set_jobs import job_text


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        ("{bits: 99}", "'bits' is 99; expected 1 to 61"),
        ("{bitz: 9}", "is not allowed; expected a list of labels, {file: NAME}, {bits: b}"),
    ],
)
def test_invalid_domain_gives_a_one_line_error(domain: str, message: str) -> None:
    with pytest.raises(JobError) as rejected:
        parse_job(job_text("count_min", f"domain: {domain}", minimum=1_000))
    assert message in str(rejected.value)
    assert str(rejected.value).startswith("job:3: parameters.domain")
    assert "\n" not in str(rejected.value)


DOMAIN = CrowdDomain(SetDomain(("dark", "light"), slots=2), "version", ("1.0", "2.0"))
JOB: dict[str, Any] = {
    "name": "crowds",
    "protocol": "single_message",
    "parameters": {"epsilon": 1, "delta": 1e-3, "domain": ["dark", "light"]},
    "epochs": {"count": 2},
    "shuffle": {"minimum": 10},
    **hidden_sizes(["1.0", "2.0"], 0.5, 1e-3, "Version"),
}


def written(folder: Path, text: str) -> Path:
    path = folder / "input.csv"
    path.write_text(text)
    return path


def test_crowd_of_a_row_in_a_file_is_read_from_its_column(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "version,user,epoch,value\n"
        "1.0,ann,1,light\n1.0,ann,1,dark\n2.0,bob,1,dark\n2.0,cid,1,\n,dan,1,\n2.0,ann,2,dark\n",
    )
    log = load_item_log(path, domain=DOMAIN, last_epoch=2)
    first, second = (values.copy() for values in log.values_by_epoch())
    assert first.tolist() == [[1, 3, 2], [4, 5, 0], [4, 0, 0], [0, 0, 0]]
    assert second[0].tolist() == [4, 5, 0]
    ground_truth = log.ground_truth(DOMAIN)
    assert ground_truth[0].tolist() == [1, 1, 1, 2, 1, 0]


def test_first_row_of_a_user_in_an_epoch_determines_the_crowd(tmp_path: Path) -> None:
    path = written(
        tmp_path, "user,epoch,value,version\nann,1,dark,2.0\nann,1,light,1.0\nann,2,light,1.0\n"
    )
    log = load_item_log(path, domain=DOMAIN, last_epoch=2)
    assert [values[0].tolist() for values in map(np.copy, log.values_by_epoch())] == [
        [4, 5, 0],
        [1, 3, 0],
    ]
    assert any("in a version other than" in notice for notice in log.warnings)


def test_invalid_rows_are_rejected_with_the_reason(tmp_path: Path) -> None:
    path = written(
        tmp_path, "user,epoch,value,version\nann,1,dark,3.0\nbob,1,blue,2.0\ncid,1,dark,\n"
    )
    with pytest.raises(BadRowsError) as caught:
        load_item_log(path, domain=DOMAIN, last_epoch=2)
    said = str(caught.value)
    assert "version '3.0' is not in the attribute's values" in said
    assert "value 'blue' is not in the domain" in said
    assert "value 'dark' has no crowd: version is empty" in said
    with pytest.raises(InputError, match="expected a column version"):
        load_item_log(written(tmp_path, "user,epoch,value\n"), domain=DOMAIN, last_epoch=2)


def test_crowd_of_a_live_row_is_read_from_its_column() -> None:
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    calendar = EpochCalendar(noon, parse_duration("PT1M"))
    source = LiveSource(calendar, first_epoch=1, domain=DOMAIN)
    events = source.receive(b"user,value,version\nann,light,2.0\nbob,,1.0\n", noon)
    assert events == [Held(1, "ann", (4, 6)), Held(1, "bob", (1,))]


def test_query_can_be_limited_to_a_crowd() -> None:
    assert QueryOptions(crowd="2.0").counts_query(DOMAIN) == Items((4, 5, 6))
    assert QueryOptions(["light"], crowd="2.0").counts_query(DOMAIN) == Items((6,))
    assert QueryOptions(["1.0: light", "2.0"]).counts_query(DOMAIN) == Items((3, 4))
    assert QueryOptions(top=2, crowd="1.0").counts_query(DOMAIN) == Top(2, range(1, 4))
    with pytest.raises(QueryError, match=r"did you mean|not in the domain"):
        QueryOptions(crowd="2").counts_query(DOMAIN)
    with pytest.raises(QueryError, match="this job has no crowds"):
        QueryOptions(crowd="2.0").counts_query(SetDomain(("dark",), slots=1))


def deployed(**changes: Any) -> DeployedJob:
    return deploy_job(make_job({**JOB, **changes}), deployed_at=0, deployment=bytes(16))


def test_producer_accepts_crowds_and_items() -> None:
    job, log = deployed(), MemoryLog(lambda: 0)
    producer = Producer(
        job,
        None,
        name="p",
        transport=MemoryDriver(log),
        generators=lambda purpose, number: seeded_generator(number),
    )
    producer.enroll(["ann", "bob", "cid"])
    producer.report(1, {"ann": "2.0: dark", "bob": "1.0", "cid": ""})
    producer.close(1)
    batch = decode_batch(log.values(Role.REPORTS, 1)[0])
    law = job.crowds_law
    assert law is not None
    assert sorted(law.crowds_of(batch.words.values).tolist()) == [0, 1, 2]
    with pytest.raises(ProducerError, match="Version '9' is not in the attribute's values"):
        producer.report(2, {"ann": "9: dark"})


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"column": "value"}, "in column value; expected a public column other than user, epoch,"),
        ({"column": " User "}, "expected a public column other than user"),
        ({"public": False}, "version.hide_sizes: requires a public attribute"),
        ({"values": ["a", "a"]}, "version.values: must be distinct"),
        ({"values": ["a: b"]}, "without '=', ',' and ':'"),
        ({"values": {"file": "not there.txt"}}, "version.values.file"),
        ({"hide_sizes": {"epsilon": 0, "delta": 0.1}}, "hide_sizes.epsilon"),
        ({"hide_sizes": {"epsilon": 1, "delta": 0}}, "hide_sizes.delta"),
    ],
)
def test_invalid_crowds_are_rejected(keys: dict[str, Any], problem: str) -> None:
    version = {**JOB["attributes"]["version"], **keys}
    with pytest.raises(JobError) as caught:
        make_job({**JOB, "attributes": {"version": version}})
    assert problem in str(caught.value)


def test_crowds_require_one_message_per_device() -> None:
    for protocol, parameters in (
        ("count_min", {"epsilon": 1, "delta": 1e-3, "domain": ["a"]}),
        ("fragments", {"epsilon": 1, "delta": 1e-3, "domain": ["a", "b"]}),
        ("future_rand", {"epsilon": 1, "max_changes": 1}),
    ):
        with pytest.raises(JobError, match=r"one message per device.*single_message"):
            make_job({**JOB, "protocol": protocol, "parameters": parameters})
    many = {**JOB["parameters"], "domain": [str(item) for item in range(20_000)]}
    with pytest.raises(JobError, match="Use fewer groups or items"):
        make_job({**JOB, "parameters": many})


def test_crowds_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "versions.txt").write_text("1.0\n\n 2.0 \n")
    text = """
name: crowds
protocol: single_message
parameters: {epsilon: 1, delta: 1.0e-3, domain: [dark, light]}
epochs: {count: 2}
shuffle: {minimum: 10}
attributes:
  version:
    column: Version
    values: {file: versions.txt}
    public: true
    hide_sizes: {epsilon: 0.5, delta: 1.0e-3}
by: [version]
"""
    assert parse_job(text, folder=tmp_path) == make_job(JOB)


def test_deployed_job_stores_its_crowds() -> None:
    job = deployed()
    again = DeployedJob.from_bytes(job.to_bytes())
    assert again == job
    assert again.needs_noise_key
    assert again.guarantee.epsilon == 1.5
    assert again.guarantee.delta == 2e-3
    plain = {key: value for key, value in JOB.items() if key not in ("attributes", "by")}
    alone = deploy_job(make_job(plain), deployed_at=0, deployment=bytes(16))
    assert b'"attributes":' not in alone.to_bytes()
    assert not alone.needs_noise_key
    assert alone.fingerprint != job.fingerprint
    values = job.to_json() | {"constants": job.constants}
    other = values | hidden_sizes(["2.0", "1.0"], 0.5, 1e-3, "Version")
    assert fingerprint_of(other) != fingerprint_of(values)
    altered = hidden_sizes(["1.0", "2.0"], 0.1, 1e-3, "Version")
    body = {**make_job({**JOB, **altered}).to_json(), "constants": job.constants}
    allowed = r"parameters\.epsilon and attributes\.version\.hide_sizes\.epsilon allow only"
    with pytest.raises(JobError, match=allowed):
        DeployedJob.from_bytes(
            job.model_copy(
                update={
                    "attributes": make_job({**JOB, **altered}).attributes,
                    "fingerprint": fingerprint_of(body),
                }
            ).to_bytes()
        )
