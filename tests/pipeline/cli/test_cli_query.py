"""Test window queries on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dpstream.aggregators.estimate import Participation
from dpstream.aggregators.item_estimates import ItemEstimates
from dpstream.pipeline.jobs.job_files import parse_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import find_deployed
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.randomizers.counted_messages import written_out
from dpstream.randomizers.guarantee import rounded_up
from dpstream.randomizers.randomness import seeded_generator
from dpstream.topics.manifests import WindowStatus
from dpstream.topics.names import Role
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster
from tests.support.set_jobs import Run, held_by, job_text, within

USERS = 1_000
MODES = held_by([("walk", 700), ("bus", 300)])
NUMBERS = held_by([("3.5", 700), ("40", 300)])
POINTS = held_by([("3;4", 700), ("15;0", 300)])
Start = Callable[..., Run]


@pytest.fixture
def start(dpstream: Commands, cluster: MemoryCluster, tmp_path: Path) -> Start:
    def start_job(protocol: str, parameters: str, **options: Any) -> Run:
        path = tmp_path / "sets.yaml"
        path.write_text(job_text(protocol, parameters, **{"minimum": USERS, **options}))
        deployed = dpstream("deploy", path)
        assert deployed.code == 0, deployed.errors
        return Run(cluster, "sets")

    return start_job


def answers(body: dict[str, Any], kind: str = "items") -> dict[str, dict[str, Any]]:
    return {answer["name"]: answer for answer in body[kind]}


COMPARED = ("laplace_histogram", "jl_hh", "bucket", "sparse_recovery", "count_mean_sketch")
"""Comparison protocols, which are inaccurate with this few users."""
PER_EPOCH = tuple(
    name for name, entry in PROTOCOLS.items() if entry.per_epoch and name not in COMPARED
)


@pytest.mark.parametrize("protocol", PER_EPOCH)
def test_query_returns_items_for_every_protocol_with_independent_epochs(
    start: Start, dpstream: Commands, protocol: str, tmp_path: Path
) -> None:
    run = start(protocol, "domain: [walk, bus, car]")
    run.report(1, MODES)
    listed = tmp_path / "some.txt"
    listed.write_text("bus\n\n car \n")
    requested: list[tuple[list[object], list[str]]] = [
        (["--item", "bus"], ["bus"]),
        (["--item", f"@{listed}"], ["bus", "car"]),
        (["--item", "car", "--item", " walk"], ["car", "walk"]),
        (["--top", 2], ["walk", "bus"]),
        ([], ["walk", "bus", "car"]),
    ]
    for options, names in requested:
        found = answers(dpstream("query", "sets", "--epoch", 1, *options, "--json").json)
        # With much noise, the order of the top three is random.
        noisy = max(answer["standard_error"] for answer in found.values()) > 60
        assert len(found) == len(names)
        assert list(found) == names or (noisy and "--top" in options)
        for name, held in (("walk", 700), ("bus", 300), ("car", 0)):
            if name in found:
                answer = found[name]
                assert within(answer["estimate"], held, answer["standard_error"])
                assert answer["ci95_low"] < answer["estimate"] < answer["ci95_high"]


def test_query_returns_ranges_and_quantiles_of_numbers(start: Start, dpstream: Commands) -> None:
    run = start("count_min", "domain: {low: 0, high: 64, buckets: 32}")
    run.report(1, NUMBERS)
    body = dpstream("query", "sets", "--range", "2:10", "--json").json
    (low,) = body["ranges"]
    assert low["name"] == "2:10"
    assert within(low["estimate"], 700, low["standard_error"])
    shares = ["--quantile", 0.9, "--quantile", 0.5]
    found = answers(dpstream("query", "sets", *shares, "--json").json, "quantiles")
    assert [(name, each["estimate"]) for name, each in found.items()] == [("0.9", 40), ("0.5", 2)]
    assert (found["0.5"]["ci95_low"], found["0.5"]["ci95_high"]) == (2, 4)
    usual = dpstream("query", "sets").output
    assert [line.split()[0] for line in usual.splitlines()[1:5]] == [
        *("quantile", "0.25", "0.5", "0.75")
    ]
    assert "a quantile is the start of its bucket, which is 2 wide" in usual


def test_query_returns_boxes_of_points(start: Start, dpstream: Commands) -> None:
    run = start("count_min", "domain: {grid: [16, 8]}")
    run.report(1, POINTS)
    requested = ["--box", "0:3,4:4", "--box", "15,0", "--box", ":,5:"]
    found = answers(dpstream("query", "sets", *requested, "--json").json, "boxes")
    for name, held in (("0:3,4:4", 700), ("15,0", 300), (":,5:", 0)):
        assert within(found[name]["estimate"], held, found[name]["standard_error"])


def test_query_returns_heavy_hitters_in_an_open_domain(start: Start, dpstream: Commands) -> None:
    run = start("count_min", "domain: {strings: {bytes: 4}}, items: 2, messages_per_user: 4000")
    run.report(1, [["tea", "milk"]] * 600 + [["tea"]] * 400)
    body = dpstream("query", "sets", "--top", 5, "--json").json
    assert list(answers(body)) == ["tea", "milk"]
    assert 0 < body["detection_threshold"] < 500
    (one,) = dpstream("query", "sets", "--item", "milk", "--json").json["items"]
    assert within(one["estimate"], 600, one["standard_error"])
    (other,) = dpstream("query", "sets", "--item", "wine", "--json").json["items"]
    assert within(other["estimate"], 0, other["standard_error"])


class TestSeveralEpochs:
    def test_sum_of_epochs_states_its_standard_error_and_privacy_loss(
        self, start: Start, dpstream: Commands
    ) -> None:
        run = start("count_min", "domain: [walk, bus, car]", epochs=4)
        for epoch in (1, 2, 3):
            run.report(epoch, MODES)
        one = dpstream("query", "sets", "--epoch", 2, "--json").json
        body = dpstream("query", "sets", "--epochs", "1..3", "--json").json
        assert (one["epoch"], body["epochs"]) == (2, [1, 2, 3])
        assert body["population"] == 3 * USERS
        walk, single = answers(body)["walk"], answers(one)["walk"]
        assert walk["standard_error"] == pytest.approx(3**0.5 * single["standard_error"])
        assert within(walk["estimate"], 2_100, walk["standard_error"])
        # The loss of three epochs equals that of a three-epoch job, and is less than that of the
        # four.
        text = job_text("count_min", "domain: [walk, bus, car]", minimum=USERS, epochs=3)
        law: Any = parse_job(text).calibrate()
        composed = body["composed"]
        assert composed["exact"]
        assert composed["epsilon"] == pytest.approx(law.stream_epsilon, rel=1e-9)
        assert one["composed"]["epsilon"] == 1 < composed["epsilon"]
        assert composed["epsilon"] < body["guarantee"]["stream_epsilon"]
        output = " ".join(dpstream("query", "sets", "--epochs", "1..3").output.split())
        assert "sum of epochs 1 to 3: 3,000 of 3,000 users contributed" in output
        assert f"{rounded_up(composed['epsilon'])} for these 3 epochs together" in output

    def test_sum_of_epochs_lists_suppressed_epochs_as_omitted(
        self, start: Start, dpstream: Commands
    ) -> None:
        run = start("count_min", "domain: [walk, bus, car]", minimum=100)
        run.report(1, MODES[:40])
        alone = dpstream("query", "sets", "--epoch", 1)
        assert (alone.code, alone.output) == (1, "")
        suppressed = "epoch 1 is suppressed (fewer than 100 devices): 40 contributors"
        assert alone.errors == f"error: {suppressed}\n"
        assert dpstream("query", "sets").errors == f"error: {suppressed}\n"
        run.report(2, MODES)
        body = dpstream("query", "sets", "--epochs", "1..2", "--json").json
        assert body["epochs"] == [2]
        assert body["suppressed"] == [
            {"epoch": 1, "window_status": "suppressed", "contributors": 40, "minimum": 100}
        ]
        assert suppressed in " ".join(dpstream("query", "sets", "--epochs", "1..2").output.split())
        assert dpstream("query", "sets", "--json").json["epochs"] == [2]


class TestRejections:
    def rejected(self, dpstream: Commands, *options: object, code: int = 2) -> str:
        result = dpstream("query", "sets", *options)
        assert (result.code, result.output, result.errors.count("\n")) == (code, "", 1)
        return result.errors

    def test_invalid_item_queries_are_rejected(self, start: Start, dpstream: Commands) -> None:
        start("count_min", "domain: [walk, bus, car]").report(1, MODES)
        wrong: list[tuple[list[object], str]] = [
            (["--item", "buss"], "'buss' is not in the domain; did you mean 'bus'?"),
            (["--item", "@none.txt"], "--item: none.txt cannot be read: No such file or directory"),
            (["--item", ""], "--item is empty"),
            (["--range", "walk:bus"], "require protocol count_min with 'queries: ranges'"),
            (["--quantile", 0.5], "--quantile requires a job over numbers; use --item,"),
            (["--box", "0:1"], "--box requires a job over points of a grid"),
            (["--item", "bus", "--top", 2], "--item and --top are mutually exclusive"),
            (["--epoch", 1, "--epochs", "1..2"], "--epoch and --epochs are mutually exclusive"),
            (["--epochs", "1..2", "--follow"], "remove --follow"),
            (["--epochs", "1-2"], "such as 3..7"),
        ]
        for options, message in wrong:
            assert message in self.rejected(dpstream, *options)
        missing: list[tuple[list[object], str]] = [
            (["--epoch", 2], "epoch 2 of job sets is not published yet"),
            (["--epochs", "1..3"], "epoch 2 of job sets is not published yet"),
            (["--epoch", 9], "epoch 9 is out of range: the last epoch of job sets is 3"),
            (["--epochs", "3..1"], "epochs 3 to 1: expected 1 <= first <= last"),
        ]
        for options, message in missing:
            assert message in self.rejected(dpstream, *options, code=1)

    def test_invalid_boxes_are_rejected(self, start: Start, dpstream: Commands) -> None:
        start("count_min", "domain: {grid: [16, 8]}").report(1, POINTS)
        for box, message in (
            ("0:3", "'0:3' has 1 range; expected 2 for the grid 16 x 8"),
            ("0:3,0:8", "is out of range; expected 0 to"),
            ("3:0,0:7", "is empty; expected the lower end first"),
            ("0:3,", "has an empty range; use ':' for a full axis"),
        ):
            assert message in self.rejected(dpstream, "--box", box)

    def test_query_rejects_jobs_that_it_cannot_answer(
        self, start: Start, dpstream: Commands, tmp_path: Path
    ) -> None:
        assert "job sets is not deployed" in self.rejected(dpstream, code=1)
        start("count_min", "domain: [walk, bus, car]")
        assert "has no finished epoch yet" in self.rejected(dpstream, code=1)
        other = tmp_path / "other.yaml"
        other.write_text(
            "name: other\nprotocol: future_rand\nparameters: {epsilon: 1, max_changes: 1}\n"
            "epochs: {count: 4}\n"
        )
        assert dpstream("deploy", other).code == 0
        result = dpstream("query", "other")
        assert (result.code, result.errors.count("\n")) == (1, 1)
        assert "Use 'dpstream estimates other'" in result.errors


EPOCHS = 4


@pytest.fixture
def hours(tmp_path: Path) -> Path:
    path = tmp_path / "hours.yaml"
    path.write_text(
        "name: hours\nprotocol: range_values\n"
        "parameters: {epsilon: 8, max_changes: 1, low: 0, high: 80, buckets: 8}\n"
        f"epochs: {{count: {EPOCHS}}}\n"
    )
    return path


@pytest.fixture
def modes(tmp_path: Path) -> Path:
    path = tmp_path / "modes.yaml"
    path.write_text(
        "name: modes\nprotocol: hadamard_values\n"
        "parameters: {epsilon: 8, max_changes: 0, domain: [walk, bus, car]}\n"
        f"epochs: {{count: {EPOCHS}}}\n"
    )
    return path


def test_estimates_command_accepts_the_query_options(
    dpstream: Commands, cluster: MemoryCluster, modes: Path, tmp_path: Path
) -> None:
    assert dpstream("deploy", modes).code == 0
    deployed = find_deployed(cast(Cluster, cluster), "modes")
    for epoch, values in enumerate([[10.0, 60.0, 30.0], [20.0, -5.0, 85.0]], start=1):
        estimate = ItemEstimates(np.array(values), 5.0, 9.8, 70, 100)
        published = EstimateRecord(
            deployed.deployment,
            epoch,
            WindowStatus.RELEASED,
            0,
            90,
            100,
            estimate,
            {"epsilon": 8.0},
        )
        cluster.append(deployed.topic(Role.ESTIMATES), published.to_bytes())
    result = dpstream("estimates", "modes", "--top", 1, "--norm-sub", "--json")
    bodies = [json.loads(line) for line in result.output.splitlines()]
    assert [[each["name"] for each in body["items"]] for body in bodies] == [["bus"], ["car"]]
    assert [body["items"][0]["norm_sub"] for body in bodies] == [60, 82.5]
    assert (
        len(dpstream("estimates", modes, "--item", "walk", "--item", "car").output.splitlines())
        == 5
    )
    picture = tmp_path / "modes.png"
    drawn = dpstream("estimates", "modes", "--plot", picture).errors
    assert f"wrote {picture}" in drawn
    assert "assumes at most 0 changes per user after the first value" in drawn
    assert picture.read_bytes().startswith(b"\x89PNG")
    wrong = dpstream("estimates", "modes", "--plot", picture, "--follow")
    assert (wrong.code, wrong.errors.count("\n")) == (2, 1)
    assert "remove --follow" in wrong.errors


def test_bucket_count_must_be_a_power_of_two(dpstream: Commands, hours: Path) -> None:
    """Rounded buckets would have unintended edges."""
    assert (
        "values are in 8 buckets, each 10 wide" in dpstream("plan", hours, "--json").json["notes"]
    )
    hours.write_text(hours.read_text().replace("buckets: 8", "buckets: 24"))
    result = dpstream("plan", hours)
    assert (result.code, result.output) == (2, "")
    wrong = "parameters.buckets: is 24; expected a power of two, such as 16 or 32"
    assert result.errors == f"error: {hours}:3: {wrong}\n"


def test_query_of_a_sampled_numeric_job_returns_ranges_and_changes_and_means(
    dpstream: Commands, cluster: MemoryCluster, hours: Path
) -> None:
    text = hours.read_text().replace("range_values", "sampled_response")
    hours.write_text(text.replace("max_changes: 1, ", "").replace("buckets: 8", "buckets: 32"))
    assert dpstream("deploy", hours).code == 0
    job = find_deployed(cast(Cluster, cluster), "hours")
    devices, aggregator, rng = job.randomizer(), job.aggregator(), seeded_generator(1)
    devices.enroll(8_000, rng)
    values = np.repeat([4, 30], 4_000)
    for epoch in (1, 2):
        aggregator.add(epoch, written_out(devices.report(epoch, values, None, rng)), None)
        published = EstimateRecord(
            job.deployment,
            epoch,
            WindowStatus.RELEASED,
            0,
            2_000,
            8_000,
            aggregator.estimate(epoch, Participation.constant(EPOCHS, 8_000)),
            {"epsilon": 8.0},
        )
        cluster.append(job.topic(Role.ESTIMATES), published.to_bytes())

    def printed(*arguments: object) -> dict[str, Any]:
        found = dpstream(*arguments, "--range", "0:40", "--json")
        assert found.code == 0, found.errors
        return answers(json.loads(found.output.splitlines()[-1]), "ranges")["0:40"]

    single = printed("estimates", "hours")
    mean = printed("estimates", "hours", "--interval", 2)
    change = printed("estimates", "hours", "--change", 1)
    for found, truth in ((single, 4_000), (mean, 4_000), (change, 0)):
        assert found["ci95_low"] < truth < found["ci95_high"]
    assert mean["standard_error"] < 0.8 * single["standard_error"] < change["standard_error"]
    assert printed("query", "hours", "--epochs", "1..2") == mean
    shown = dpstream("estimates", "hours", "--quantile", 0.25, "--json").output.splitlines()
    assert 7 <= json.loads(shown[0])["quantiles"][0]["estimate"] <= 10.5
    wrong = dpstream("estimates", "hours", "--change", 1)
    assert (wrong.code, wrong.errors.count("\n")) == (2, 1)
    assert "--change of numbers requires --range" in wrong.errors
