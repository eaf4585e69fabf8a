"""Test that the smallest budget ever declared for a population binds every job about it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from dpstream.pipeline.jobs.budget_declarations import BudgetDeclaration
from dpstream.pipeline.jobs.budgets import BudgetError, Charge, accounts_of, check_budget
from dpstream.pipeline.jobs.deployed_job import deploy_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.topics.frames import CodecError
from dpstream.topics.names import JOBS_TOPIC
from tests.support import budgeted_jobs
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster

job_about = partial(budgeted_jobs.job_about, epsilon=4)


def job_file(folder: Path, name: str, budget: float | None = None, more: str = "") -> Path:
    path = folder / f"{name}.yaml"
    declared = "" if budget is None else f"budget: {{epsilon: {budget}}}\n"
    path.write_text(
        f"name: {name}\nprotocol: future_rand\nparameters: {{epsilon: 4, max_changes: 2}}\n"
        f"epochs: {{count: 8}}\npopulation: students\n{declared}{more}"
    )
    return path


def stating(
    epsilon: float, *, at: int = 5, operator: bool = False, job: str = "first"
) -> BudgetDeclaration:
    return BudgetDeclaration("students", epsilon, 0.0, job, "ab" * 16, at, operator)


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    return lambda text: monkeypatch.setattr("sys.stdin", Terminal(text))


@pytest.mark.parametrize("undeployed", [False, True])
@pytest.mark.parametrize("budget", [None, 8.0])
def test_second_job_is_bound_by_the_budget_of_the_first(
    dpstream: Commands,
    cluster: MemoryCluster,
    tmp_path: Path,
    budget: float | None,
    undeployed: bool,
) -> None:
    """The second job has no budget or a larger one; the first job can be undeployed."""
    assert dpstream("deploy", job_file(tmp_path, "first", 4)).code == 0
    first = read_jobs(cast(Cluster, cluster)).jobs["first"].deployment.hex()[:8]
    if undeployed:
        assert dpstream("undeploy", "first", "--yes").code == 0
    before = len(cluster.records[JOBS_TOPIC, 0])
    for option, code in (("--dry-run", 1), ("--json", 1)):
        said = dpstream("deploy", job_file(tmp_path, "second", budget), option)
        assert said.code == code
        assert "budget of population students is epsilon 4" in said.errors
        assert f"as job first declared it (deployment {first}, " in said.errors
        assert "if the users agree, raise the budget: --set-budget" in said.errors
        assert "--set-budget students=" in said.errors
    assert len(cluster.records[JOBS_TOPIC, 0]) == before, "nothing is written"


def test_smallest_declared_epsilon_and_delta_are_binding() -> None:
    job = deploy_job(job_about("third"), deployed_at=5)
    declared = [
        replace(stating(4), delta=0.1, job="a"),
        replace(stating(9), delta=1e-6, job="b"),
        replace(stating(6), delta=0.01, job="c"),
        replace(stating(1), population="teachers"),
    ]
    found = {account.quantity: account for account in accounts_of(job, [], declared)}
    assert [found[name].allowed for name in ("epsilon", "delta")] == [4, 1e-6]
    assert [found[name].binding for name in ("epsilon", "delta")] == declared[:2]


def test_operator_budget_overrides_only_earlier_declarations() -> None:
    job = deploy_job(job_about("next"), deployed_at=5)
    earlier = [Charge("students", "first", "ab" * 16, 4.0, 0.0, 5)]
    raised = [stating(4), stating(8, operator=True)]
    assert check_budget(job, earlier, raised).epsilon == 4
    with pytest.raises(BudgetError, match="is epsilon 7, as job late declared"):
        check_budget(job, earlier, [*raised, stating(7, job="late")])
    with pytest.raises(BudgetError, match="as an operator set it with job first"):
        check_budget(job, earlier, [stating(99), stating(7, operator=True)])


def test_recurring_job_is_bound_by_budgets_of_other_jobs(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    assert dpstream("deploy", job_file(tmp_path, "first", 14)).code == 0
    path = job_file(tmp_path, "second")
    path.write_text(path.read_text().replace("count: 8", "count: 8, renew: true"))
    said = dpstream("deploy", path, "--yes")
    assert said.code == 0, said.errors
    assert "unlimited horizons" not in said.output
    assert read_jobs(cast(Cluster, cluster)).jobs["second"].horizons == 2


def test_budget_is_set_after_confirmation(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path, typing: Callable[[str], None]
) -> None:
    assert dpstream("deploy", job_file(tmp_path, "first", 4)).code == 0
    second = job_file(tmp_path, "second")
    before = len(cluster.records[JOBS_TOPIC, 0])

    typing("n\n")
    said = dpstream("deploy", second, "--set-budget", "students=9")
    assert said.code == 1
    assert "set the budget of population students, for all jobs: epsilon 4 (job first" in (
        said.errors
    )
    assert "nothing is changed or deployed" in said.errors
    assert len(cluster.records[JOBS_TOPIC, 0]) == before
    typing("y\ny\n")
    said = dpstream("deploy", second, "--set-budget", "students=9")
    assert said.code == 0
    assert "population students would be charged again: epsilon 4, 8 in total" in said.errors
    assert (
        "as an operator set it with job second"
        in dpstream("deploy", job_file(tmp_path, "third"), "--dry-run").errors
    )


def test_budget_of_a_running_job_can_be_raised(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    first = job_file(tmp_path, "first", 4)
    assert dpstream("deploy", first).code == 0
    larger = job_file(tmp_path, "first", 8)
    said = dpstream("deploy", larger)
    assert said.code == 0
    assert (
        "still limited to 4 for population students, because job first declared it" in said.errors
    )
    assert dpstream("deploy", job_file(tmp_path, "second")).code == 1
    said = dpstream("deploy", larger, "--set-budget", "students=8", "--yes")
    assert said.code == 0, said.errors
    assert "continues as deployment" in said.output
    assert "budget of population students, for all jobs: epsilon 4 (" in said.output
    again = dpstream("deploy", larger)
    assert "nothing to do" in again.output
    assert dpstream("deploy", job_file(tmp_path, "second"), "--yes").code == 0


@pytest.mark.parametrize(
    ("option", "code", "message"),
    [
        ("teachers=9", 1, "--set-budget: population is teachers; expected students, the"),
        ("students=3", 1, "is epsilon 3, as an operator set it"),
        ("students", 2, "expected POPULATION=EPSILON"),
        ("students=inf", 2, "expected POPULATION=EPSILON"),
        ("students=9,1", 2, "expected POPULATION=EPSILON"),
    ],
)
def test_invalid_budget_is_rejected_without_writing(
    dpstream: Commands,
    cluster: MemoryCluster,
    tmp_path: Path,
    option: str,
    code: int,
    message: str,
) -> None:
    assert dpstream("deploy", job_file(tmp_path, "first", 4)).code == 0
    before = len(cluster.records[JOBS_TOPIC, 0])
    second = job_file(tmp_path, "second")
    said = dpstream("deploy", second, "--set-budget", option, "--yes")
    assert (said.code, said.errors.count("\n")) == (code, 1)
    assert message in said.errors
    assert len(cluster.records[JOBS_TOPIC, 0]) == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"job": ""},
        {"epsilon": None, "delta": None},
        {"epsilon": -1},
        {"delta": None},
        {"epsilon": float("nan")},
        {"at": -1},
        {"operator": 1},
    ],
)
def test_damaged_budget_declaration_is_rejected(wrong: dict[str, object]) -> None:
    damaged = json.dumps(json.loads(stating(4).to_bytes()) | wrong).encode()
    with pytest.raises(CodecError, match="not a budget declaration:"):
        BudgetDeclaration.from_bytes(damaged)
    for garbage in (b"", b"[]", b"{}", b"4", b"[" * 9_999):
        with pytest.raises(CodecError, match="not a budget declaration:"):
            BudgetDeclaration.from_bytes(garbage)
