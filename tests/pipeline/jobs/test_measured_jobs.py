"""Jobs with measures: the protocol that is chosen, the cells of questions, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job
from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.jobs.job_problems import JobError
from dpstream.pipeline.jobs.measured_jobs import PREFERENCE, choices, reason
from dpstream.pipeline.planning.job_plan import plan

WEEKS = {"count": 52, "start": "2026-01-05", "length": "P1W"}
MONTHS = {"count": 12, "start": "2026-01-01", "length": "P1M"}
SINCE = {"since": {"enrolled": "P1W"}}
WAU = {"wau": {"type": "active"}}
VISITS = {"visits": {"type": "count", "buckets": [0, 1, 2, 5]}}
SHUFFLED = {"trust": "shuffle", "parameters": {"epsilon": 1, "delta": 1e-6}}
SHUFFLED |= {"shuffle": {"minimum": 1_000}}


def measured(**keys: Any) -> dict[str, Any]:
    given = {"name": "app", "epochs": WEEKS, "parameters": {"epsilon": 4}, "measures": WAU}
    return given | keys


def made(**keys: Any) -> Job:
    return make_job(measured(**keys))


def problem_of(**keys: Any) -> str:
    with pytest.raises(JobError) as raised:
        made(**keys)
    return str(raised.value)


@pytest.mark.parametrize(
    ("keys", "protocol", "parameters"),
    [
        ({}, "value_stream", {"max_changes": 2}),
        ({"parameters": {"epsilon": 4, "max_changes": 8}}, "sampled_response", {}),
        ({"parameters": {"epsilon": 1, "max_changes": 4}}, "value_stream", {"max_changes": 4}),
        (
            {"measures": VISITS},
            "sampled_response",
            {"domain": ("0", "1", "2 to 4", "5 and more"), "complete": True},
        ),
        # Of the default of 3 changes, the first label is one, which is free in hadamard_values.
        (
            {"measures": VISITS, "protocol": "hadamard_values"},
            "hadamard_values",
            {"max_changes": 2},
        ),
        ({"measures": VISITS, **SHUFFLED}, "shuffled_counts", {"max_changes": 3}),
        (
            {"measures": {"visits": {"type": "count", "at_least": 5}}},
            "value_stream",
            {"max_changes": 2},
        ),
        (SHUFFLED, "shuffled_counts", {"max_changes": 2, "dummies": "shuffle"}),
        (
            {**SHUFFLED, "measures": {"n": {"type": "count", "mean": {"low": 0, "high": 9}}}},
            "shuffled_panels",
            {"max_changes": 52, "delta": 1e-6},
        ),
    ],
)
def test_measures_and_trust_choose_the_protocol(
    keys: dict[str, Any], protocol: str, parameters: dict[str, Any]
) -> None:
    job = made(**keys)
    assert job.protocol == protocol
    assert {name: getattr(job.parameters, name) for name in parameters} == parameters


@pytest.mark.parametrize("epsilon", [1, 4])
@pytest.mark.parametrize("changes", [2, 4, 8, 16])
def test_the_chosen_protocol_has_the_smallest_error_up_to_the_preference(
    epsilon: int, changes: int
) -> None:
    values = measured(parameters={"epsilon": epsilon, "max_changes": changes})
    found = choices(values, made())
    assert make_job(values).protocol == found[0].protocol
    assert found[0].error <= PREFERENCE * min(each.error for each in found)
    if found[0].assumes_changes:
        assert found[0].error * PREFERENCE < found[1].error


def test_a_named_protocol_is_kept_if_it_fits() -> None:
    assert made(protocol="sampled_response").protocol == "sampled_response"
    assert "protocol" in problem_of(protocol="count_min")
    assert "sampled_response or value_stream" in problem_of(protocol="count_min")


@pytest.mark.parametrize("keys", [{}, {"parameters": {"epsilon": 4, "max_changes": 8}}, SHUFFLED])
def test_a_deployed_job_reads_back_as_it_was(keys: dict[str, Any]) -> None:
    job = made(**keys)
    assert make_job(job.to_json()) == job
    deployed = deploy_job(job, deployed_at=0)
    assert DeployedJob.from_bytes(deployed.to_bytes()) == deployed


def test_questions_keep_their_order_in_a_record() -> None:
    """Values have one answer per question: another order would exchange the measures."""
    measures = {"wau": {"type": "active"}, "mau": {"type": "active", "within": 4}}
    job = deploy_job(made(measures=measures), deployed_at=0)
    read = DeployedJob.from_bytes(job.to_bytes())
    assert [each.name for each in read.questions] == ["wau", "mau"]
    assert list(read.measures or {}) == ["wau", "mau"]
    assert read == job


def test_another_measure_is_another_deployment() -> None:
    def fingerprint(**keys: Any) -> bytes:
        return deploy_job(made(**keys), deployed_at=0, deployment=bytes(16)).fingerprint

    assert fingerprint() == fingerprint(title="Active users")
    assert fingerprint() != fingerprint(measures={"wau": {"type": "active", "within": 2}})


def test_private_attributes_are_cells_and_public_ones_are_groups() -> None:
    job = made(
        **SHUFFLED,
        attributes={"plan": {"values": ["free", "pro"]}},
        by=["plan"],
    )
    (question,) = job.questions
    assert question.labels[0] == "wau=no,plan=none"
    assert question.labels[6] == "wau=yes,plan=free"
    assert len(question.labels) == question.cells == 2 * 4


def test_first_seen_has_the_periods_of_the_horizon() -> None:
    job = made(
        **SHUFFLED,
        epochs=MONTHS,
        attributes={"cohort": {"first_seen": "P1M"}},
        by=["cohort"],
    )
    assert job.values_of("cohort")[:3] == ("never", "earlier", "2026-01")
    assert job.values_of("cohort")[-1] == "2026-12"
    assert job.questions[0].cells == 2 * 14


def test_enrolled_is_a_public_attribute_with_the_periods_of_the_horizon() -> None:
    job = made(epochs=MONTHS, attributes={"joined": {"enrolled": "P3M"}}, by=["joined"])
    assert job.all_values_of("joined") == (
        *("earlier", "2026-01", "2026-04", "2026-07", "2026-10"),
    )
    assert job.public_attributes == ("joined",)
    assert len(job.groups) == 5
    assert [len(question.attributes) for question in job.questions] == [0]
    assert job.enrolled_in(6) == {"joined": "2026-04"}
    assert make_job(job.to_json()).groups == job.groups


def test_keys_of_measures_require_measures() -> None:
    values = {"name": "a", "protocol": "sampled_response", "parameters": {"epsilon": 1}}
    with pytest.raises(JobError, match="trust: requires 'measures'"):
        make_job(values | {"epochs": WEEKS, "trust": "shuffle"})


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({"parameters": {"epsilon": 4, "max_changes": 1}}, "expected at least 2"),
        ({"measures": {"n": {"type": "count"}}}, "measures.n: "),
        ({"measures": {"time": {"type": "active"}}}, "cannot be called time"),
        ({"by": ["plan"]}, "declare them under attributes"),
        (
            {"attributes": {"cohort": {"first_seen": "P1M", "public": True}}},
            "cohort.public: is true",
        ),
        ({"attributes": {"plan": {"values": ["a=b"]}}}, "values"),
        ({"attributes": {"since": {"enrolled": "P1M", "public": False}}}, "everyone can see"),
        ({"attributes": {"since": {"enrolled": "P1M", "values": ["a"]}}}, "exactly one of"),
        (
            {"attributes": {"since": {"enrolled": "P1M", "event": "x"}}},
            "since.event: requires first_seen",
        ),
        (
            {"attributes": SINCE, "by": ["since"], "epochs": {"count": 9}},
            "since has enrolled, which requires a calendar",
        ),
        (
            {"attributes": SINCE, "by": ["since"], "epochs": {**WEEKS, "renew": True}},
            "a recurring job has no last period. Remove enrolled or epochs.renew",
        ),
        (
            {"attributes": SINCE, "by": ["since"], "epochs": {**WEEKS, "count": 300}},
            "by: gives 301 panels (301 public groups times 1 questions)",
        ),
        (
            {"attributes": SINCE, "by": ["since"], "devices": {}, "background": True},
            "devices: cannot be combined with attributes.since, because they enroll themselves",
        ),
        ({"ratios": {"r": {"numerator": "wau", "denominator": "mau"}}}, "expected one of: wau"),
        ({"devices": {}}, "background: true"),
        ({"devices": {}, "background": True}, "devices.late to at least one epoch (7 days"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(keys: dict[str, Any], part: str) -> None:
    assert part in problem_of(**keys)


def test_the_plan_says_why_measures_chose_the_protocol() -> None:
    (why,) = (note for note in plan(made(), 1_000).notes if note.startswith("measures"))
    best, other = choices(measured(parameters={"epsilon": 4, "max_changes": 2}), made())
    assert f"{best.error:,.0f} users for value_stream (max_changes: 2), which this job uses" in why
    assert f"{other.error:,.0f} users for sampled_response (any number of changes" in why
    assert reason(made(**SHUFFLED)) is None
    sampled = reason(made(parameters={"epsilon": 4, "max_changes": 8})) or ""
    assert "for sampled_response (any number of changes; max_changes has no effect)" in sampled


PLAN = {"plan": {"values": ["free", "pro"]}}
TWO = {"wau": {"type": "active"}, "mau": {"type": "active", "within": 4}}
MINUTES = {"n": {"type": "count", "mean": {"low": 0, "high": 9}}}


@pytest.mark.parametrize(
    ("keys", "protocol"),
    [
        # Private cells: hadamard_values errs by twice as much.
        ({"attributes": PLAN, "by": ["plan"]}, "sampled_panels"),
        ({"measures": TWO}, "panels"),
        ({"measures": MINUTES}, "panels"),
        # More than T / 6 flips.
        ({"measures": MINUTES, "epochs": {**WEEKS, "count": 8}}, "sampled_panels"),
    ],
)
def test_panels_answer_once_where_their_error_is_smaller(
    keys: dict[str, Any], protocol: str
) -> None:
    job = made(parameters={"epsilon": 4, "max_changes": 4}, **keys)
    assert job.protocol == protocol
    assert hasattr(job.parameters, "max_changes") == (protocol == "panels")
    assert make_job(job.to_json()) == job
    why = reason(job) or ""
    # The default, because max_changes is no parameter of sampled_panels.
    fewest = 3 if "by" in keys else 2
    best, other = choices(measured(**keys, parameters={"epsilon": 4, "max_changes": fewest}), job)
    if protocol == "sampled_panels":
        assert best.protocol == protocol
        assert f"{best.error:,.0f} users for sampled_panels (any number of changes" in why
        assert f"and {other.error:,.0f} users for panels (max_changes: {fewest})" in why
    assert "for panels (max_changes: " in why
    for named in ("panels", "sampled_panels"):
        assert made(**keys, protocol=named).protocol == named


def test_recurring_panels_answer_once_in_a_horizon() -> None:
    epochs = {**WEEKS, "count": 12, "renew": True}
    job = made(epochs=epochs, attributes=PLAN, by=["plan"])
    law: Any = job.calibrate()
    assert {question.law.reports for question in law.questions} == {1}
    assert job.guarantee_of(law).rolling is not None
