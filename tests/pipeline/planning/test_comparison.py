"""Test the comparison of protocols, the recommended one, and fewer honest contributors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, get_args

import pytest

from dpstream.pipeline.jobs.job_files import Job, make_job
from dpstream.pipeline.planning import recommendation
from dpstream.pipeline.planning.outlook import outlook
from dpstream.pipeline.planning.recommendation import Compared, Trust, compare, recommend
from dpstream.pipeline.protocols.protocol import Law
from dpstream.pipeline.protocols.registry import PROTOCOLS
from dpstream.pipeline.results.compared_protocols import Alternative, alternatives
from dpstream.randomizers.accounting.whole_streams import epsilon_of_streams
from tests.conformance.cases import CASES, Case
from tests.conformance.jobs import case_job_file
from tests.support.new_jobs import new_job


def job_of(protocol: str = "value_stream", minimum: int = 1_000, **more: Any) -> Job:
    return new_job(
        "compared",
        protocol,
        {"epsilon": 1, **more.pop("parameters", {"max_changes": 2})},
        count=8,
        minimum=minimum,
        **more,
    )


def test_equivalent_protocols_are_listed_together() -> None:
    job = job_of()
    law = job.calibrate()
    found = compare(job, law, 2_000)
    assert [each.expected for each in found] == list(alternatives(job, law, 2_000))
    assert {"value_stream", "future_rand", "sampled_response", "shuffled_counts"} == {
        each.expected.protocol for each in found
    }
    for each in found:
        entry = PROTOCOLS[each.expected.protocol]
        assert (each.local_epsilon is None) == (entry.shuffling is not None)
        assert each.central_epsilon == pytest.approx(1, rel=1e-5)
        assert each.bytes_per_user >= each.expected.messages_per_user
        assert 0 < each.cpu_seconds < 100_000


NO_TRUST, STAGE = "none; it holds against everyone", "the shuffler to shuffle, and"


def compared(protocol: str, rmse: float, bytes_: float, trust: str = NO_TRUST) -> Compared:
    expected = Alternative(protocol, 2, None, rmse, bytes_, trust, 1.0, 0.0)
    return Compared(expected, 1.0, 0.0, 1.0, bytes_, 1.0)


FOUND = (
    compared("small", 90.0, 10),
    compared("accurate", 50.0, 100),
    compared("shuffled", 5.0, 700, STAGE),
    compared("lean", 9.0, 50, STAGE),
)


@pytest.mark.parametrize(
    ("trust", "error", "chosen", "second"),
    [
        ("none", None, "accurate", "small"),
        ("none", 100.0, "small", "accurate"),
        ("none", 60.0, "accurate", "small"),
        ("none", 1.0, "accurate", "small"),
        ("shuffle", None, "shuffled", "lean"),
        ("shuffle", 100.0, "small", "accurate"),  # requires no trusted party
        ("shuffle", 10.0, "lean", "shuffled"),
        ("shuffle", 1.0, "shuffled", "lean"),
    ],
)
def test_recommended_protocol_requires_the_least_trust(
    trust: Any, error: float | None, chosen: str, second: str
) -> None:
    found = recommend(FOUND, trust, error)
    assert found.chosen is not None
    assert FOUND[found.chosen].expected.protocol == chosen
    others = [FOUND[place].expected.protocol for place, _ in found.why_not]
    assert others[0] == second
    assert {*others, chosen} == {each.expected.protocol for each in FOUND}
    if error == 1.0:
        assert found.why.startswith("no protocol has an RMSE of at most 1.0 users;")
    if trust == "none":
        assert dict(found.why_not)[2] == "requires trusting the shuffler to shuffle, and"


def test_recommendation_is_empty_if_all_protocols_require_trust() -> None:
    found = recommend(FOUND[2:], "none")
    assert found.chosen is None
    assert (
        "every protocol for this job requires a trusted party. Allow trust in the shuffler, or"
    ) in found.why


@pytest.mark.parametrize("case", CASES, ids=str)
def test_recommendation_is_empty_if_no_other_protocol_is_compared(
    monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    monkeypatch.setattr(recommendation, "cpu_seconds", lambda *_: 1.0)
    job = make_job(case_job_file(case))
    found = compare(job, job.calibrate(), 1_000)
    others = {each.expected.protocol for each in found} - {job.protocol}
    for trust, error in product(get_args(Trust), (None, 1e-9, 1e9)):
        made = recommend(found, trust, error)
        assert ("no other protocol was compared" in made.why) == (not others)
        if not others:
            assert (made.chosen, made.why_not) == (None, ())
        assert "least" not in made.why or _may_be_trusted(found, trust) > 1


def _may_be_trusted(found: Sequence[Compared], trust: Trust) -> int:
    return sum(trust == "shuffle" or each.expected.needs_no_trust for each in found)


def counted(minimum: int = 1_000, **more: Any) -> tuple[Job, Law]:
    requested = {"delta": 1e-6, "domain": ["a", "b"], **more}
    job = job_of("count_min", minimum, parameters=requested)
    return job, job.calibrate()


def test_guarantee_is_weaker_with_fewer_honest_users() -> None:
    job, law = counted()
    seen = outlook(job, law, 2_000, colluding=0.1, dropout=0.3)
    assert (seen.present, seen.released, seen.honest, seen.honest_at_least) == (
        1_400,
        True,
        1_260,
        900,
    )
    shuffling = PROTOCOLS["count_min"].shuffling
    assert shuffling is not None
    assert seen.epsilon == shuffling.epsilon_with(law, 1_260)
    assert seen.epsilon_at_least == shuffling.epsilon_with(law, 900)
    assert seen.epsilon is not None
    assert seen.epsilon_at_least is not None
    assert seen.epsilon < 1 < seen.epsilon_at_least
    assert seen.rests_on_them


def test_window_with_too_few_users_is_suppressed() -> None:
    job, law = counted()
    seen = outlook(job, law, 2_000, colluding=0.0, dropout=0.51)
    assert (seen.present, seen.released, seen.epsilon) == (980, False, None)
    assert outlook(job, law, 2_000, colluding=0.0, dropout=0.5).released


def test_guarantee_from_noise_of_a_shuffler_or_a_device_needs_no_honest_users() -> None:
    stage, law = counted(dummies="shuffle")
    alone = job_of()
    for job, constants in ((stage, law), (alone, alone.calibrate())):
        seen = outlook(job, constants, 2_000, colluding=0.9, dropout=0.3)
        assert not seen.rests_on_them
        assert seen.epsilon_at_least == job.guarantee_of(constants).epsilon


def test_stream_guarantee_depends_on_honest_users() -> None:
    job = make_job(
        {
            **job_of(minimum=10_000).to_json(),
            "parameters": {"max_changes": 2},
            "central": {"epsilon": 0.5, "delta": 1e-6},
        }
    )
    law = job.calibrate()
    local = job.guarantee_of(law).epsilon
    seen = outlook(job, law, 10_000, colluding=0.5, dropout=0.0)
    assert seen.rests_on_them
    assert seen.epsilon_at_least == epsilon_of_streams(local, 5_000, 1e-6)
    assert seen.epsilon_at_least is not None
    assert 0.5 < seen.epsilon_at_least < local
