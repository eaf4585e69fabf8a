"""The smallest budget ever stated for people binds every job about them, whatever its file says."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import cast

import pytest

from dpstream.pipeline.actions import LogRecord
from dpstream.pipeline.jobs.budgets import BudgetError, Charge, accounts_of, check_budget
from dpstream.pipeline.jobs.deployed_job import Origin, deploy_job
from dpstream.pipeline.jobs.job_files import Job
from dpstream.pipeline.jobs.stated_budgets import StatedBudget
from dpstream.pipeline.kafka.cluster import Cluster
from dpstream.pipeline.ledger.entries import Kind
from dpstream.pipeline.operations.deployed_jobs import read_jobs
from dpstream.pipeline.operations.deployments import carry_out, charges, plan_on
from dpstream.pipeline.operations.ledger_topic import read_spending
from dpstream.topics.frames import CodecError
from dpstream.topics.names import JOBS_TOPIC
from tests.support import budgeted_jobs
from tests.support.commands import Commands
from tests.support.memory_cluster import MemoryCluster

job_about = partial(budgeted_jobs.job_about, epsilon=4)


def job_file(folder: Path, name: str, budget: float | None = None, more: str = "") -> Path:
    path = folder / f"{name}.yaml"
    stated = "" if budget is None else f"budget: {{epsilon: {budget}}}\n"
    path.write_text(
        f"name: {name}\nprotocol: future_rand\nparameters: {{epsilon: 4, changes: 2}}\n"
        f"epochs: {{count: 8}}\npopulation: students\n{stated}{more}"
    )
    return path


def stating(
    epsilon: float, *, at: int = 5, operator: bool = False, job: str = "first"
) -> StatedBudget:
    return StatedBudget("students", epsilon, 0.0, job, "ab" * 16, at, operator)


@pytest.fixture
def dpstream(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Commands:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DPSTREAM_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return Commands(capsys)


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    return lambda text: monkeypatch.setattr("sys.stdin", Terminal(text))


@pytest.mark.parametrize("undeployed", [False, True])
@pytest.mark.parametrize("budget", [None, 8.0, 4.0])
def test_a_second_job_of_the_same_people_is_bound_by_the_first_ones_budget(
    dpstream: Commands,
    cluster: MemoryCluster,
    tmp_path: Path,
    budget: float | None,
    undeployed: bool,
) -> None:
    """Without a budget of its own, with a larger one, and when the first job is gone."""
    assert dpstream("deploy", job_file(tmp_path, "first", 4)).code == 0
    first = read_jobs(cast(Cluster, cluster)).jobs["first"].deployment.hex()[:8]
    if undeployed:
        assert dpstream("undeploy", "first", "--yes").code == 0
    before = len(cluster.records[JOBS_TOPIC, 0])
    for option, code in (("--dry-run", 1), ("--json", 1)):
        said = dpstream("deploy", job_file(tmp_path, "second", budget), option)
        assert said.code == code
        assert "population students may be charged epsilon 4" in said.errors
        assert f"as job first stated it (deployment {first}, " in said.errors
        assert "1 earlier deployment took 4 and this one would take 4" in said.errors
        assert "--set-budget students=" in said.errors
    assert len(cluster.records[JOBS_TOPIC, 0]) == before, "nothing is written"


def test_people_of_a_job_without_a_population_are_its_own(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    path = job_file(tmp_path, "alone", 4)
    path.write_text(path.read_text().replace("population: students\n", ""))
    assert dpstream("deploy", path).code == 0
    assert dpstream("undeploy", "alone", "--yes").code == 0
    path.write_text(path.read_text().replace("budget: {epsilon: 4}\n", ""))
    said = dpstream("deploy", path)
    assert (said.code, said.errors.count("\n")) == (1, 1)
    assert "population alone may be charged epsilon 4 in all, as job alone" in said.errors
    assert dpstream("deploy", job_file(tmp_path, "other")).code == 0, "other people"


def test_epsilon_and_delta_are_bound_by_whoever_states_least_of_each() -> None:
    job = deploy_job(job_about("third"), deployed_at=5)
    stated = [
        replace(stating(4), delta=0.1, job="a"),
        replace(stating(9), delta=1e-6, job="b"),
        replace(stating(6), delta=0.01, job="c"),
        replace(stating(1), population="teachers"),
    ]
    found = {account.quantity: account for account in accounts_of(job, [], stated)}
    assert [found[name].allowed for name in ("epsilon", "delta")] == [4, 1e-6]
    assert [found[name].binding for name in ("epsilon", "delta")] == stated[:2]


def test_what_an_operator_sets_ends_what_was_stated_before_and_not_what_comes_later() -> None:
    job = deploy_job(job_about("next"), deployed_at=5)
    earlier = [Charge("students", "first", "ab" * 16, 4.0, 0.0, 5)]
    raised = [stating(4), stating(8, operator=True)]
    assert check_budget(job, earlier, raised).epsilon == 4
    with pytest.raises(BudgetError, match="may be charged epsilon 7 in all, as job late stated"):
        check_budget(job, earlier, [*raised, stating(7, job="late")])
    with pytest.raises(BudgetError, match="as an operator set it with job first"):
        check_budget(job, earlier, [stating(99), stating(7, operator=True)])


def test_a_job_that_renews_is_bound_by_what_others_stated(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    assert dpstream("deploy", job_file(tmp_path, "first", 14)).code == 0
    path = job_file(tmp_path, "second")
    path.write_text(path.read_text().replace("count: 8", "count: 8, renew: true"))
    said = dpstream("deploy", path, "--yes")
    assert (said.code, said.errors) == (0, ""), "and not said to be without end"
    assert read_jobs(cast(Cluster, cluster)).jobs["second"].horizons == 2


def test_a_budget_is_set_in_words_after_a_yes(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path, typing: Callable[[str], None]
) -> None:
    assert dpstream("deploy", job_file(tmp_path, "first", 4)).code == 0
    second = job_file(tmp_path, "second")
    before = len(cluster.records[JOBS_TOPIC, 0])

    shown = dpstream("deploy", second, "--set-budget", "students=9", "--dry-run")
    assert shown.code == 0, shown.errors
    assert "would set the budget of population students, for all jobs: epsilon 4 (job" in (
        shown.output
    )
    assert " -> 9" in shown.output
    assert "the budget is 9, 1 of it remain, as an operator set it with job second" in shown.output
    body = dpstream("deploy", second, "--set-budget", "students=9", "--dry-run", "--json").json
    assert body["budget"]["epsilon"]["allowed_before"] == 4
    assert body["budget"]["epsilon"]["allowed"] == 9
    assert body["budget"]["epsilon"]["stated_by"]["operator"] is True

    typing("n\n")
    said = dpstream("deploy", second, "--set-budget", "students=9")
    assert said.code == 1
    assert "set the budget of population students, for all jobs: epsilon 4 (job first" in (
        said.errors
    )
    assert "nothing is set, and nothing is deployed" in said.errors
    assert len(cluster.records[JOBS_TOPIC, 0]) == before
    typing("y\ny\n")
    said = dpstream("deploy", second, "--set-budget", "students=9")
    assert said.code == 0
    assert "population students would be charged again: epsilon 4, 8 in all" in said.errors
    assert (
        "as an operator set it with job second"
        in dpstream("deploy", job_file(tmp_path, "third"), "--dry-run").errors
    )


def test_without_a_terminal_a_budget_is_set_by_an_option(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert dpstream("deploy", job_file(tmp_path, "first", 4)).code == 0
    second = job_file(tmp_path, "second")
    said = dpstream("deploy", second, "--set-budget", "students=8")
    assert (said.code, said.errors.count("\n")) == (2, 1)
    assert "add --yes" in said.errors
    assert dpstream("deploy", second, "--set-budget", "students=8", "--yes").code == 0


def test_the_budget_of_a_running_job_is_raised_in_words_and_its_file_may_stay(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    first = job_file(tmp_path, "first", 4)
    assert dpstream("deploy", first).code == 0
    larger = job_file(tmp_path, "first", 8)
    said = dpstream("deploy", larger)
    assert said.code == 0
    assert "epsilon 4 binds population students, as job first stated it" in said.errors
    assert dpstream("deploy", job_file(tmp_path, "second")).code == 1
    said = dpstream("deploy", larger, "--set-budget", "students=8", "--yes")
    assert said.code == 0, said.errors
    assert "goes on as deployment" in said.output
    assert "budget of population students, for all jobs: epsilon 4 (" in said.output
    again = dpstream("deploy", larger)
    assert "nothing to do" in again.output
    assert dpstream("deploy", job_file(tmp_path, "second"), "--yes").code == 0


@pytest.mark.parametrize(
    ("option", "code", "message"),
    [
        ("teachers=9", 1, "--set-budget is about population teachers, and job second is about"),
        ("students=3", 1, "may be charged epsilon 3 in all, as an operator set it"),
        ("students", 2, "give POPULATION=EPSILON"),
        ("=9", 2, "give POPULATION=EPSILON"),
        ("students=0", 2, "give POPULATION=EPSILON"),
        ("students=inf", 2, "give POPULATION=EPSILON"),
        ("students=nan", 2, "give POPULATION=EPSILON"),
        ("students=9,1", 2, "give POPULATION=EPSILON"),
        ("students=9,0,0", 2, "give POPULATION=EPSILON"),
        ("students=many", 2, "give POPULATION=EPSILON"),
    ],
)
def test_a_budget_that_cannot_be_set_is_refused_and_nothing_is_written(
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


def test_a_file_that_would_bind_again_at_once_is_refused(
    dpstream: Commands, cluster: MemoryCluster, tmp_path: Path
) -> None:
    assert dpstream("deploy", job_file(tmp_path, "first", 4)).code == 0
    second = job_file(tmp_path, "second", 5)
    said = dpstream("deploy", second, "--set-budget", "students=9", "--yes")
    assert said.code == 1
    assert "states budget.epsilon 5, less than --set-budget does" in said.errors


def test_a_stated_budget_travels_as_it_is() -> None:
    golden = (
        b'{"at": 5, "composed": false, "delta": 0.0, '
        b'"deployment": "abababababababababababababababab", "epsilon": 4, "job": "first", '
        b'"operator": false, "population": "students", "reason": ""}'
    )
    assert stating(4).to_bytes() == golden
    assert stating(4).key == b"budget/ac44f4384b855246342dac926cc58dbe"
    for stated in (stating(4), stating(2.5, operator=True)):
        assert StatedBudget.from_bytes(stated.to_bytes()) == stated
    lifted = replace(stating(4, operator=True), epsilon=None, delta=None)
    assert StatedBudget.from_bytes(lifted.to_bytes()) == lifted


@pytest.mark.parametrize(
    "wrong",
    [
        {"population": None},
        {"job": ""},
        {"epsilon": None, "delta": None},
        {"epsilon": -1},
        {"delta": None},
        {"delta": True},
        {"epsilon": "4"},
        {"epsilon": float("nan")},
        {"at": -1},
        {"at": 1.5},
        {"operator": 1},
    ],
)
def test_a_damaged_stated_budget_is_none(wrong: dict[str, object]) -> None:
    damaged = json.dumps(json.loads(stating(4).to_bytes()) | wrong).encode()
    with pytest.raises(CodecError, match="not a stated budget"):
        StatedBudget.from_bytes(damaged)
    for garbage in (b"", b"[]", b"{}", b"4", b"[" * 9_999):
        with pytest.raises(CodecError, match="not a stated budget"):
            StatedBudget.from_bytes(garbage)


def test_a_replay_states_nothing() -> None:
    job = deploy_job(job_about("replayed", 4), deployed_at=5)
    assert StatedBudget.of(job, 5) is not None
    replay = job.model_copy(
        update={"replay_of": Origin.model_validate({"job": "a", "deployment": "00" * 16})}
    )
    assert StatedBudget.of(replay, 5) is None


class _Turns:
    """Lets two threads do one thing each at a time, in an order that is given."""

    def __init__(self, first: frozenset[int], length: int) -> None:
        self._order = [0 if place in first else 1 for place in range(length)]
        self._changed = threading.Condition()
        self._ended: set[int] = set()

    def _next(self) -> int | None:
        while self._order and self._order[0] in self._ended:
            self._order.pop(0)
        return self._order[0] if self._order else None

    def take(self, who: int, act: Callable[[], object]) -> object:
        with self._changed:
            assert self._changed.wait_for(lambda: self._next() in (who, None), timeout=60)
            if self._order:
                self._order.pop(0)
            done = act()
            self._changed.notify_all()
            return done

    def end(self, who: int) -> None:
        with self._changed:
            self._ended.add(who)
            self._changed.notify_all()


class _InTurns(MemoryCluster):
    """A cluster whose jobs topic is read and written only when it is one's turn."""

    def __init__(self, shared: MemoryCluster, turns: _Turns, who: int) -> None:
        super().__init__(shared.records, shared.partitions, shared.settings)
        self._turns, self._who = turns, who

    def read(
        self, topic: str, partition: int = 0, start: int = 0, stop: int | None = None
    ) -> Iterator[LogRecord]:
        held = self._turns.take(
            self._who, lambda: list(MemoryCluster.read(self, topic, partition, start, stop))
        )
        yield from cast(list[LogRecord], held)

    def append(self, topic: str, value: bytes | None, key: bytes | None = None) -> int:
        return cast(
            int,
            self._turns.take(self._who, lambda: MemoryCluster.append(self, topic, value, key)),
        )


def deploy_in_turns(jobs: list[Job], first: frozenset[int], steps: int, *, running: bool) -> None:
    """Deploy two jobs at once, and see that what was stated bears what is charged.

    Both have made their plan when neither has written anything. `first` are the turns of the first
    of them, of which with `running` an earlier deployment runs that states nothing yet.
    """
    cluster = MemoryCluster()
    whole = cast(Cluster, cluster)
    if running:
        carry_out(whole, plan_on(whole, job_about("a"), deployment=b"r" * 16, now=5))
    turns = _Turns(first, steps)
    plans = [plan_on(whole, job, deployment=job.name.encode() * 16, now=5) for job in jobs]
    done: set[str] = set()

    def run(who: int) -> None:
        try:
            with suppress(BudgetError):
                carry_out(cast(Cluster, _InTurns(cluster, turns, who)), plans[who])
                done.add(jobs[who].name)
        finally:
            turns.end(who)

    threads = [threading.Thread(target=run, args=(who,)) for who in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    state = read_jobs(whole)
    stated = [each.epsilon for each in state.stated if each.epsilon is not None]
    charged = sum(charge.epsilon for charge in charges(whole))
    assert charged <= min(stated, default=99), (first, done)
    assert set(state.jobs) == done | ({"a"} if running else set()), first
    assert charged == 4 * len(state.jobs), "who is refused is charged nothing"
    assert len(done) == 1, "the ledger lets one of them go on"
    kinds = {entry.said.kind for entry in read_spending(whole).chain.entries}
    assert kinds <= {Kind.CHARGE, Kind.BUDGET}, "and who loses has written nothing"


@pytest.mark.parametrize(
    ("budgets", "running"),
    [
        pytest.param((4, None), False, id="no budget", marks=pytest.mark.verify),
        pytest.param((4, None), True, id="stated over a running job"),
        pytest.param((4, 4), False, id="the same budget", marks=pytest.mark.verify),
    ],
)
def test_two_who_deploy_at_once_cannot_get_round_a_budget_in_any_order(
    budgets: tuple[float, float | None], running: bool
) -> None:
    jobs = [job_about(name, budget) for name, budget in zip("ab", budgets, strict=True)]
    steps = 7
    for first in combinations(range(steps), steps // 2):
        deploy_in_turns(jobs, frozenset(first), steps, running=running)
