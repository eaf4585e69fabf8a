"""Jobs over projective geometry: what is planned, published and answered."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.planning.plan import Plan, plan
from tests.support.commands import Commands
from tests.support.memory_cluster import use_memory_cluster
from tests.support.set_jobs import Run, job_text

USERS = 1_000
DRINKS = ["tea"] * 700 + ["milk"] * 300


def planned(users: int = 100_000, epochs: int = 1, **parameters: Any) -> Plan:
    values = {
        "name": "drinks",
        "protocol": "projective_geometry",
        "parameters": {"epsilon": 1, **parameters},
        "epochs": {"count": epochs},
        "shuffle": {"minimum": users},
    }
    return plan(make_job(values), users)


@pytest.mark.parametrize("domain", [{"bits": 10}, {"low": 0, "high": 1, "buckets": 1024}])
def test_the_error_planned_is_that_of_the_best_local_protocol(domain: dict[str, Any]) -> None:
    made = planned(domain=domain)
    least = math.sqrt(100_000 * 4 * math.e) / math.expm1(1)
    assert least < made.rmse < 1.025 * least
    assert made.cells is not None
    assert made.cells.startswith("1,093 points of a projective space of 7 coordinates")
    assert made.guarantee.delta == 0
    assert made.bytes_per_user == 2


def test_sets_are_planned_to_be_worse_in_proportion_to_their_places() -> None:
    domain = [f"item {number}" for number in range(1000)]
    one, three = planned(domain=domain), planned(domain=domain, items=3)
    assert three.rmse == pytest.approx(3 * one.rmse)
    assert any("one of 3 places" in caveat for caveat in three.caveats)
    assert three.guarantee.basis == "bound"


def test_every_epoch_is_charged() -> None:
    guarantee = planned(epochs=4, domain=["tea", "milk"]).guarantee
    assert (guarantee.epsilon, guarantee.stream_epsilon, guarantee.unit) == (1.0, 4.0, "epoch")


def test_an_open_domain_is_planned_by_what_can_be_found() -> None:
    made = planned(domain={"bits": 24}, epsilon=4, users=1_000_000)
    assert made.cells is not None
    assert made.cells.startswith("prefixes of 19 bits in 524,288 cells, 24 bits in 524,288 hashed")
    (found,) = (caveat for caveat in made.caveats if "to be found reliably" in caveat)
    assert found.startswith("of shuffle.minimum users, 1,000,000, about ")
    none = planned(domain={"bits": 24}, users=100)
    assert any("no item is reliably found" in caveat for caveat in none.caveats)


@pytest.mark.parametrize("domain", ["[tea, milk, beer]", "{strings: {bytes: 4}}"])
def test_what_is_published_can_be_asked(
    domain: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    cluster, dpstream = use_memory_cluster(monkeypatch), Commands(capsys)
    path = tmp_path / "sets.yaml"
    text = job_text("projective_geometry", f"domain: {domain}", minimum=USERS)
    path.write_text(text.replace("epsilon: 1,", "epsilon: 6,"))
    assert dpstream("deploy", path).code == 0
    run = Run(cluster, "sets")
    for epoch in (1, 2):
        run.report(epoch, DRINKS)
    for options, times in ((["--epoch", 2], 1), (["--epochs", "1..2"], 2)):
        answers = dpstream("query", "sets", *options, "--top", 2, "--json").json["items"]
        assert [answer["name"] for answer in answers] == ["tea", "milk"]
        for answer, held in zip(answers, (700, 300), strict=True):
            error = answer["estimate"] - times * held
            assert abs(error) < 6 * answer["standard_deviation"]
            assert answer["standard_deviation"] < 40 * times
    (one,) = dpstream("query", "sets", "--item", "beer", "--json").json["items"]
    assert abs(one["estimate"]) < 6 * one["standard_deviation"]
    line = dpstream("estimates", "sets", "--top", 1, "--json").output.splitlines()[0]
    assert json.loads(line)["items"][0]["name"] == "tea"
