"""Values with a crowd: rows of files, names in questions, and what producers are told."""

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
from dpstream.pipeline.results.asked import Asked
from dpstream.pipeline.results.questions import Items, Top
from dpstream.pipeline.simulation.memory import MemoryDriver, MemoryLog
from dpstream.pipeline.values.boxes import QueryError
from dpstream.pipeline.values.crowds import CrowdDomain
from dpstream.pipeline.values.durations import parse_duration
from dpstream.pipeline.values.sets import SetDomain
from dpstream.pipeline.values.times import EpochCalendar
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.batches import decode_batch
from dpstream.topics.names import Role

DOMAIN = CrowdDomain(SetDomain(("dark", "light"), slots=2), "version", ("1.0", "2.0"))
JOB: dict[str, Any] = {
    "name": "crowds",
    "protocol": "single_message",
    "parameters": {"epsilon": 1, "delta": 1e-3, "domain": ["dark", "light"]},
    "epochs": {"count": 2},
    "shuffle": {"minimum": 10},
    "crowds": {"by": "Version", "values": ["1.0", "2.0"], "epsilon": 0.5, "delta": 1e-3},
}


def written(folder: Path, text: str) -> Path:
    path = folder / "input.csv"
    path.write_text(text)
    return path


def test_a_row_is_of_a_crowd(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "version,user,epoch,value\n"
        "1.0,ann,1,light\n1.0,ann,1,dark\n2.0,bob,1,dark\n2.0,cid,1,\n,dan,1,\n2.0,ann,2,dark\n",
    )
    log = load_item_log(path, domain=DOMAIN, last_epoch=2)
    first, second = (values.copy() for values in log.values_by_epoch())
    assert first.tolist() == [[1, 3, 2], [4, 5, 0], [4, 0, 0], [0, 0, 0]]
    assert second[0].tolist() == [4, 5, 0]
    truth = log.truth(DOMAIN)
    assert truth[0].tolist() == [1, 1, 1, 2, 1, 0]


def test_a_user_is_in_the_crowd_of_its_first_row_of_an_epoch(tmp_path: Path) -> None:
    path = written(
        tmp_path, "user,epoch,value,version\nann,1,dark,2.0\nann,1,light,1.0\nann,2,light,1.0\n"
    )
    log = load_item_log(path, domain=DOMAIN, last_epoch=2)
    assert [values[0].tolist() for values in map(np.copy, log.values_by_epoch())] == [
        [4, 5, 0],
        [1, 3, 0],
    ]
    assert any("in another version" in notice for notice in log.notices)


def test_rows_that_cannot_be_say_why(tmp_path: Path) -> None:
    path = written(
        tmp_path, "user,epoch,value,version\nann,1,dark,3.0\nbob,1,blue,2.0\ncid,1,dark,\n"
    )
    with pytest.raises(BadRowsError) as caught:
        load_item_log(path, domain=DOMAIN, last_epoch=2)
    said = str(caught.value)
    assert "version '3.0' is not in crowds.values" in said
    assert "value 'blue' is not in the domain" in said
    assert "value 'dark' is of no crowd: version is empty" in said
    with pytest.raises(InputError, match="must name the column version"):
        load_item_log(written(tmp_path, "user,epoch,value\n"), domain=DOMAIN, last_epoch=2)


def test_rows_as_they_come_are_of_a_crowd() -> None:
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    calendar = EpochCalendar(noon, parse_duration("PT1M"))
    source = LiveSource(calendar, first_epoch=1, domain=DOMAIN)
    events = source.receive(b"user,value,version\nann,light,2.0\nbob,,1.0\n", noon)
    assert events == [Held(1, "ann", (4, 6)), Held(1, "bob", (1,))]


def test_names_of_crowds_and_of_items_in_them() -> None:
    assert DOMAIN.numbers_of(["2.0", "1.0: light"]) == (4, 3)
    assert DOMAIN.labels(np.arange(1, 7)) == list(DOMAIN.items)
    for name in ("3.0: dark", "1.0: blue", ""):
        with pytest.raises(QueryError):
            DOMAIN.numbers_of([name])


def test_questions_of_a_crowd() -> None:
    assert Asked(crowd="2.0").question(DOMAIN) == Items((4, 5, 6))
    assert Asked(["light"], crowd="2.0").question(DOMAIN) == Items((6,))
    assert Asked(["1.0: light", "2.0"]).question(DOMAIN) == Items((3, 4))
    assert Asked(top=2, crowd="1.0").question(DOMAIN) == Top(2, range(1, 4))
    with pytest.raises(QueryError, match=r"did you mean|not in the domain"):
        Asked(crowd="2").question(DOMAIN)
    with pytest.raises(QueryError, match="this one has none"):
        Asked(crowd="2.0").question(SetDomain(("dark",), slots=1))


def deployed(**changes: Any) -> DeployedJob:
    return deploy_job(make_job({**JOB, **changes}), deployed_at=0, deployment=bytes(16))


def test_producers_are_told_crowds_and_items() -> None:
    job, log = deployed(), MemoryLog(lambda: 0)
    producer = Producer(
        job,
        None,
        name="p",
        transport=MemoryDriver(log),
        generators=lambda purpose, number: seeded_generator(number),
    )
    producer.enrol(["ann", "bob", "cid"])
    producer.report(1, {"ann": "2.0: dark", "bob": "1.0", "cid": ""})
    producer.close(1)
    batch = decode_batch(log.values(Role.REPORTS, 1)[0])
    law = job.crowds_law
    assert law is not None
    assert sorted(law.crowds_of(batch.words.values).tolist()) == [0, 1, 2]
    with pytest.raises(ProducerError, match=r"Version '9' is not in crowds\.values"):
        producer.report(2, {"ann": "9: dark"})


@pytest.mark.parametrize(
    ("crowds", "problem"),
    [
        ({"by": "value"}, "crowds.by: is value: crowds are of a column that is public, and never"),
        ({"by": " User "}, "crowds.by"),
        ({"values": ["a", "a"]}, "crowds.values: must be distinct"),
        ({"values": ["a: b"]}, "give labels without"),
        ({"values": {"file": "not there.txt"}}, "crowds.values.file"),
        ({"epsilon": 0}, "crowds.epsilon"),
        ({"delta": 0}, "crowds.delta"),
    ],
)
def test_crowds_that_cannot_be_are_refused(crowds: dict[str, Any], problem: str) -> None:
    with pytest.raises(JobError) as caught:
        make_job({**JOB, "crowds": {**JOB["crowds"], **crowds}})
    assert problem in str(caught.value)


def test_only_protocols_with_one_message_a_device_have_crowds() -> None:
    for protocol, parameters in (
        ("count_min", {"epsilon": 1, "delta": 1e-3, "domain": ["a"]}),
        ("fragments", {"epsilon": 1, "delta": 1e-3, "domain": ["a", "b"]}),
        ("future_rand", {"epsilon": 1, "changes": 1}),
    ):
        with pytest.raises(JobError, match=r"one message of each device.*single_message"):
            make_job({**JOB, "protocol": protocol, "parameters": parameters})
    many = {**JOB["parameters"], "domain": [str(item) for item in range(20_000)]}
    with pytest.raises(JobError, match="give fewer crowds or items"):
        make_job({**JOB, "parameters": many})


def test_crowds_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "versions.txt").write_text("1.0\n\n 2.0 \n")
    text = """
name: crowds
protocol: single_message
parameters: {epsilon: 1, delta: 1.0e-3, domain: [dark, light]}
epochs: {count: 2}
shuffle: {minimum: 10}
crowds: {by: Version, values: {file: versions.txt}, epsilon: 0.5, delta: 1.0e-3}
"""
    assert parse_job(text, folder=tmp_path) == make_job(JOB)


def test_deployed_jobs_hold_their_crowds_and_others_know_of_none() -> None:
    job = deployed()
    again = DeployedJob.from_bytes(job.to_bytes())
    assert again == job
    assert again.needs_noise_key
    assert again.guarantee().epsilon == 1.5
    assert again.guarantee().delta == 2e-3
    plain = {key: value for key, value in JOB.items() if key != "crowds"}
    alone = deploy_job(make_job(plain), deployed_at=0, deployment=bytes(16))
    assert b'"crowds":' not in alone.to_bytes()
    assert "crowds" not in alone.to_json()
    assert not alone.needs_noise_key
    assert alone.fingerprint != job.fingerprint
    values = job.to_json() | {"constants": job.constants}
    other = {**values, "crowds": {**values["crowds"], "values": ["2.0", "1.0"]}}
    assert fingerprint_of(other) != fingerprint_of(values)
    altered = {**JOB["crowds"], "epsilon": 0.1}
    body = {**job.to_json(), "crowds": altered, "constants": job.constants}
    with pytest.raises(JobError, match=r"parameters\.epsilon and crowds\.epsilon are together"):
        DeployedJob.from_bytes(
            job.model_copy(
                update={
                    "crowds": make_job({**JOB, "crowds": altered}).crowds,
                    "fingerprint": fingerprint_of(body),
                }
            ).to_bytes()
        )
