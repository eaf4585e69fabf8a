"""Test that every deployment charges its population, and never beyond the budget."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from dpstream.pipeline.jobs.budget_declarations import BY_COMMAND, BudgetDeclaration, binding_budget
from dpstream.pipeline.jobs.budgets import (
    BudgetError,
    Charge,
    accounts_for,
    accounts_of,
    check_budget,
    filter_of,
    horizons_within_budget,
    period_budgets,
    spent_by,
)
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import make_job
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.kafka.deployed_jobs import read_jobs
from dpstream.pipeline.operations.deployments import charges, deploy
from dpstream.randomizers.accounting.charges import MechanismCost
from dpstream.topics.frames import CodecError
from dpstream.topics.names import JOBS_TOPIC
from tests.support import budgeted_jobs
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster
from tests.support.new_jobs import new_job


def deployed(name: str = "job", epsilon: float = 4.0, **keys: object) -> DeployedJob:
    job = new_job(name, "future_rand", {"epsilon": epsilon, "max_changes": 2}, count=8, **keys)
    return deploy_job(job, deployed_at=5)


def test_deployment_charges_a_whole_stream_once() -> None:
    charge = Charge.of(deployed(population="students"))
    assert (charge.population, charge.job, charge.at) == ("students", "job", 5)
    assert charge.epsilon == 4.0
    assert charge.delta == 0.0


def test_charges_up_to_the_budget_are_accepted() -> None:
    """Users of a replaced deployment have still been charged."""
    job = deployed(population="students", budget={"epsilon": 8})
    charges: list[Charge] = []
    for _ in range(2):
        charges.append(check_budget(job, charges))
    with pytest.raises(BudgetError, match=("if the users agree, raise the budget: --set-budget")):
        check_budget(job, charges)
    others = [Charge.of(deployed(population="teachers"))] * 5
    check_budget(job, others)
    check_budget(deployed(population="students"), charges)


def test_charge_round_trips_and_malformed_bytes_are_rejected() -> None:
    charge = Charge.of(deployed())
    assert Charge.from_bytes(charge.to_bytes()) == charge
    for data in (b"", b"[]", b"{}", b'{"population": "a"}'):
        with pytest.raises(CodecError):
            Charge.from_bytes(data)


def renewing(
    name: str = "job", epsilon: float = 4.0, budget: dict[str, float] | None = None
) -> DeployedJob:
    keys = {} if budget is None else {"budget": budget}
    epochs = {"count": 8, "renew": True}
    return deployed(name, epsilon, epochs=epochs, population="students", **keys)


def test_number_of_horizons_is_limited_by_the_budget() -> None:
    job = renewing(budget={"epsilon": 14})
    assert horizons_within_budget(job, []) == 3
    earlier = [Charge.of(deployed(population="students"))]
    assert horizons_within_budget(job, earlier) == 2
    fitted = job.model_copy(update={"horizons": 2})
    charge = check_budget(fitted, earlier)
    assert (charge.epsilon, charge.horizons) == (4.0, 2)
    assert fitted.last_epoch == 16
    with pytest.raises(BudgetError, match=("if the users agree, raise the budget: --set-budget")):
        check_budget(job.model_copy(update={"horizons": 1}), [*earlier, charge])
    one_more = renewing(budget={"epsilon": 16}).model_copy(update={"horizons": 1})
    check_budget(one_more, [*earlier, charge])


def test_all_horizons_of_a_job_must_fit_its_budget() -> None:
    job = renewing(budget={"epsilon": 14})
    earlier = [Charge.of(deployed(population="students"))]
    check_budget(job.model_copy(update={"horizons": 2}), earlier)
    with pytest.raises(BudgetError, match=("if the users agree, raise the budget: --set-budget")):
        check_budget(job.model_copy(update={"horizons": 3}), earlier)


def test_budget_below_the_charge_of_one_horizon_is_rejected() -> None:
    job = renewing(budget={"epsilon": 3.9})
    assert horizons_within_budget(job, []) == 1
    with pytest.raises(BudgetError, match=("if the users agree, raise the budget: --set-budget")):
        check_budget(job.model_copy(update={"horizons": 1}), [])


def test_unlimited_horizons_make_a_budget_unenforceable() -> None:
    endless = renewing(name="endless")
    assert horizons_within_budget(endless, []) is None
    charge = check_budget(endless, [])
    assert charge.horizons is None
    assert Charge.from_bytes(charge.to_bytes()) == charge
    for job in (
        deployed(population="students", budget={"epsilon": 99}),
        renewing(budget={"epsilon": 99}),
    ):
        with pytest.raises(
            BudgetError,
            match=("is charged without limit by job endless, a recurring job"),
        ):
            check_budget(job, [charge])
    check_budget(deployed(population="teachers", budget={"epsilon": 4}), [charge])
    check_budget(deployed(population="students"), [charge])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("population", None),
        ("job", ""),
        ("epsilon", -1.0),
        ("epsilon", "4"),
        ("epsilon", float("nan")),
        ("delta", float("inf")),
        ("at", 1.5),
        ("horizons", 0),
        ("horizons", -3),
        ("horizons", True),
    ],
)
def test_damaged_charge_is_rejected(field: str, value: object) -> None:
    record = json.loads(Charge.of(deployed()).to_bytes())
    damaged = json.dumps({**record, field: value}).encode()
    with pytest.raises(CodecError, match="not a charge"):
        Charge.from_bytes(damaged)


def test_deployment_charges_all_horizons_that_fit_its_budget() -> None:
    cluster = cast(Cluster, MemoryCluster())

    def begin(name: str, budget: float | None) -> DeployedJob:
        job = renewing(name=name, budget=None if budget is None else {"epsilon": budget})
        values = {key: value for key, value in job.to_json().items() if value is not None}
        return deploy(cluster, make_job(values), deployment=name.encode() * 16, now=5)

    assert begin("a", 21).horizons == 5
    assert [charge.horizons for charge in charges(cluster)] == [5]
    assert read_jobs(cluster).jobs["a"].last_epoch == 40
    for budget in (21, 99, None):
        with pytest.raises(
            BudgetError,
            match=("if the users agree, raise the budget: --set-budget"),
        ):
            begin("b", budget)


def counted(*, renew: bool = False, **keys: object) -> DeployedJob:
    job = new_job(
        "items",
        "count_min",
        {"epsilon": 1, "delta": 1e-6, "domain": ["a", "b"]},
        epochs={"count": 20, "renew": renew},
        shuffle={"minimum": 1000},
        **keys,
    )
    return deploy_job(job, deployed_at=5)


def test_independent_epochs_are_charged_their_total_loss() -> None:
    """The loss of all epochs is composed with the delta of one epoch, and charged once."""
    job = counted()
    guarantee, charge = job.guarantee, Charge.of(job)
    assert (guarantee.unit, guarantee.epsilon) == ("epoch", 1)
    assert guarantee.stream_epsilon is not None
    assert 3 < guarantee.stream_epsilon < 20
    assert (charge.epsilon, charge.delta) == (guarantee.stream_epsilon, 1e-6)
    check_budget(counted(budget={"epsilon": charge.epsilon, "delta": 1e-6}), [])
    for little in ({"epsilon": 3.0, "delta": 1e-6}, {"epsilon": 20, "delta": 1e-7}):
        with pytest.raises(
            BudgetError,
            match=("if the users agree, raise the budget: --set-budget"),
        ):
            check_budget(counted(budget=little), [])


COMPOSED = BudgetDeclaration(
    "students", 17.0, 1e-6, "dpstream budget", BY_COMMAND, 5, True, "ticket 12", composed=True
)


def job(epsilon: float = 1.0) -> DeployedJob:
    made = new_job(
        "last",
        "future_rand",
        {"epsilon": epsilon, "max_changes": 2},
        count=8,
        population="students",
    )
    return deploy_job(made, deployed_at=5)


def small(count: int, delta: float = 0.0, epsilon: float = 0.25) -> list[Charge]:
    return [
        Charge("students", "weekly", f"{each:032x}", epsilon, delta, 5) for each in range(count)
    ]


def declared_by_a_job(epsilon: float, delta: float) -> BudgetDeclaration:
    return BudgetDeclaration("students", epsilon, delta, "first", "ab" * 16, 6)


def test_privacy_filter_admits_small_charges_whose_sum_exceeds_the_budget() -> None:
    """A hundred charges of 1/4 and one of 1 sum to 26, but to less than 17 by the filter."""
    check_budget(job(), small(100), [COMPOSED])
    with pytest.raises(BudgetError, match=r"17, as .* would charge 1 \(composed: 19"):
        check_budget(job(), small(140), [COMPOSED])
    with pytest.raises(BudgetError, match=("if the users agree, raise the budget: --set-budget")):
        check_budget(job(), small(100), [replace(COMPOSED, composed=False)])
    (epsilon, _) = accounts_of(job(), small(100), [COMPOSED])
    assert epsilon.filtered is not None
    assert 15 < epsilon.filtered < 17
    assert epsilon.remaining == pytest.approx(17 - epsilon.filtered)


def test_privacy_filter_counts_a_charge_once_per_horizon() -> None:
    """Many horizons in one deployment cost as much as that many deployments with one horizon."""
    one = small(1)[0]
    for horizons in (1, 7, 100):
        renewed = [replace(one, horizons=horizons)]
        assert spent_by(renewed) == [MechanismCost(one.epsilon, one.delta, horizons)]
        together, apart = (
            accounts_for("students", charges, [COMPOSED])[0]
            for charges in (renewed, small(horizons))
        )
        assert together.filtered == pytest.approx(apart.filtered, rel=1e-12)
        assert together.earlier == apart.earlier == horizons * one.epsilon


def test_privacy_filter_limits_delta_charges_to_half_the_budget() -> None:
    """The other half is reserved for the filter, whichever rule admits the charges."""
    check_budget(job(), small(5, delta=1e-7), [COMPOSED])
    with pytest.raises(BudgetError, match="is delta 5e-07, as an operator"):
        check_budget(job(), small(6, delta=1e-7), [COMPOSED])
    check_budget(job(), small(6, delta=1e-7), [replace(COMPOSED, composed=False)])
    binding = binding_budget("students", [COMPOSED, declared_by_a_job(20, 7e-7)])
    assert binding["delta"] is COMPOSED, "half of its delta is less"


def test_charges_must_fit_every_budget_that_applies() -> None:
    """Passing one budget's filter does not satisfy a larger budget that sums charges."""
    charges = small(100)
    check_budget(job(), charges, [COMPOSED, declared_by_a_job(26, 1e-6)])
    adding = [COMPOSED, declared_by_a_job(25, 1e-6)]
    with pytest.raises(BudgetError, match="is epsilon 25, as job first"):
        check_budget(job(), charges, adding)
    (epsilon, _) = accounts_of(job(), charges, adding)
    assert (epsilon.allowed, epsilon.remaining, epsilon.filtered) == (25, -1, None)
    with pytest.raises(BudgetError, match="is epsilon 9, as job first"):
        check_budget(job(), charges, [COMPOSED, declared_by_a_job(9, 1e-6)])
    set_again = replace(COMPOSED, at=9, reason="again")
    check_budget(job(), charges, [declared_by_a_job(9, 1e-6), set_again])


def test_budget_with_composition_rejects_jobs_after_an_unlimited_charge() -> None:
    endless = replace(small(1)[0], horizons=None)
    with pytest.raises(
        BudgetError, match=("a recurring job deployed without a budget: no budget can be enforced")
    ):
        check_budget(job(), [endless], [COMPOSED])


def test_budget_with_composition_requires_delta() -> None:
    assert filter_of(COMPOSED) is not None
    for other in (replace(COMPOSED, composed=False), replace(COMPOSED, delta=0.0)):
        assert filter_of(other) is None


def test_budget_with_composition_round_trips() -> None:
    assert BudgetDeclaration.from_bytes(COMPOSED.to_bytes()) == COMPOSED
    summed = replace(COMPOSED, composed=False)
    assert BudgetDeclaration.from_bytes(summed.to_bytes()) == summed
    for wrong in (b'"composed": 1', b'"composed": null'):
        with pytest.raises(CodecError):
            BudgetDeclaration.from_bytes(COMPOSED.to_bytes().replace(b'"composed": true', wrong))
    with pytest.raises(CodecError):
        BudgetDeclaration.from_bytes(COMPOSED.to_bytes().replace(b'"ticket 12"', b"7"))
    assert COMPOSED.who == "an operator set it with 'dpstream budget' (1970-01-01: ticket 12)"
    lifted = replace(COMPOSED, epsilon=None, delta=None)
    assert "an operator removed it" in lifted.who


def weekly(
    count: int = 52, name: str = "weekly", epsilon: float = 2.0, per: str = "P1Y", **keys: Any
) -> DeployedJob:
    """Return a recurring job whose year overlaps up to 54 epochs."""
    epochs = {"count": count, "renew": True, "start": "2024-01-01", "length": "P1W"}
    keys = {"epochs": epochs, "budget": {"epsilon": 4, "per": per}, **keys}
    job = new_job(name, "sampled_response", {"epsilon": epsilon}, population="students", **keys)
    return deploy_job(job, deployed_at=5)


@pytest.mark.parametrize(
    ("count", "per", "horizons"),
    [(52, "P1Y", 2), (53, "P1Y", 2), (54, "P1Y", 1), (13, "P1Y", 5), (52, "P2Y", 3)],
)
def test_budget_for_a_year_counts_all_horizons_that_a_year_can_overlap(
    count: int, per: str, horizons: int
) -> None:
    assert Charge.of(weekly(count)).horizons_in(per) == horizons
    assert Charge.of(weekly(count)).horizons_in(None) is None


def test_rolling_guarantee_within_the_budget_for_a_year_fits_it_forever() -> None:
    job = weekly()
    assert horizons_within_budget(job, []) is None
    charge = check_budget(job, [])
    assert charge.horizons is None
    assert Charge.from_bytes(charge.to_bytes()) == charge
    check_budget(weekly(54, "other", 4.0, budget=None), [])
    with pytest.raises(BudgetError, match=re.escape(
        "the budget of population students is epsilon 4 in any year; 1 earlier deployment "
        "used 4 and this one would use 0.5: epsilon 0.25 in each of the 2 horizons "
        "that can count toward a period. Lower epsilon, use longer horizons, or, if the users "
        "agree, raise the budget: dpstream budget students --epsilon EPSILON --per P1Y"
    )):  # fmt: skip
        check_budget(weekly(name="more", epsilon=0.25), [charge])
    own = [BudgetDeclaration.of(job, 5)]
    with pytest.raises(BudgetError, match="as job weekly declared it"):
        check_budget(weekly(name="bare", epsilon=0.25, budget=None), [charge], cast(Any, own))


def test_charges_without_a_rolling_guarantee_are_counted_in_full() -> None:
    per = {"epsilon": 14, "per": "P1Y"}
    job = renewing(budget=cast(Any, per))
    assert horizons_within_budget(job, []) == 3
    once = Charge.of(deployed(population="students"))
    assert horizons_within_budget(job, [once]) == 2
    limited = replace(Charge.of(weekly(13)), horizons=3)
    assert (limited.horizons_in("P1Y"), once.horizons_in("P1Y")) == (3, 1)
    without_calendar = weekly(epochs={"count": 52, "renew": True})
    for endless in (without_calendar, renewing(name="endless")):
        charge = Charge.of(endless)
        assert charge.horizons_in("P1Y") is None
        with pytest.raises(BudgetError, match=f"job {endless.name} charges it without limit"):
            check_budget(weekly(name="next"), [charge])
    with pytest.raises(BudgetError, match=r"with epochs.start and epochs.length are counted by"):
        check_budget(without_calendar, [])


def test_charges_must_fit_the_budget_for_a_period_and_the_budget_for_all_time() -> None:
    declared = BudgetDeclaration("students", 9.0, 0.0, "a", "0" * 32, 1)
    job = weekly(epsilon=2.0)
    assert horizons_within_budget(job, [], [declared]) == 4
    with pytest.raises(BudgetError, match="epsilon 4 in any year"):
        check_budget(weekly(epsilon=2.1).model_copy(update={"horizons": 4}), [], [declared])
    with pytest.raises(BudgetError, match="the budget of population students is epsilon 9"):
        check_budget(job.model_copy(update={"horizons": 5}), [], [declared])
    (shown,) = period_budgets([cast(Any, BudgetDeclaration.of(job, 5))], [Charge.of(job)])
    assert shown[0] == "epsilon 4 in any year"
    assert shown[1].startswith("charges count as 4; 0 remaining; job weekly declared it")


def test_period_of_a_budget_is_stored_only_if_it_is_set() -> None:
    for job, stored in ((weekly(), True), (deployed(budget={"epsilon": 8}), False)):
        declared = BudgetDeclaration.of(job, 5)
        assert declared is not None
        assert BudgetDeclaration.from_bytes(declared.to_bytes()) == declared
        assert (b'"per"' in declared.to_bytes()) == (b'"per"' in job.to_bytes()) == stored
        assert (b'"rolling_epochs"' in Charge.of(job).to_bytes()) == stored
        assert DeployedJob.from_bytes(job.to_bytes()) == job
    bad = json.loads(cast(BudgetDeclaration, BudgetDeclaration.of(weekly(), 5)).to_bytes())
    with pytest.raises(CodecError, match="'per' must be a duration"):
        BudgetDeclaration.from_bytes(json.dumps({**bad, "per": "often"}).encode())
    charge = json.loads(Charge.of(weekly()).to_bytes())
    for wrong in ({"epoch_length": "often"}, {"epoch_length": None}, {"rolling_epochs": 0}):
        with pytest.raises(CodecError, match="not a charge"):
            Charge.from_bytes(json.dumps({**charge, **wrong}).encode())


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
def test_second_job_must_fit_the_budget_of_the_first_job(
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


def test_budget_set_by_an_operator_overrides_only_earlier_declarations() -> None:
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
