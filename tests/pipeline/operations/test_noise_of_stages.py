"""Noise of the stage: what a window's words say of it, without the noise key and with it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pipeline.devices.producer import Producer
from pipeline.jobs.deployed_job import DeployedJob, deploy_job
from pipeline.jobs.job_files import make_job
from pipeline.jobs.noise_keys import NoiseKey, NoiseKeyError
from pipeline.operations.stage_verification.evidence import Attempt, Evidence
from pipeline.operations.stage_verification.noise import (
    FALSE_CONVICTION,
    Sent,
    count_test,
    noise,
    tally,
)
from pipeline.operations.stage_verification.verify_stage import Verification, verify_stages
from pipeline.protocols.protocol import StageDummies
from pipeline.protocols.registry import PROTOCOLS
from pipeline.simulation.memory import MemoryDriver
from pipeline.simulation.simulate import SimulatedCluster
from pipeline.stages.shuffle_stage import ShuffleStage
from pipeline.stages.stage import Stage
from pipeline.stages.stage_noise import StageNoise
from randomizers.randomness import seeded_generator
from tests.support.signed_stages import (
    evidence_of,
    finding,
    signed,
    signer_of,
    verified,
    violated,
)
from topics.names import Role
from topics.words import Words

KEY, OTHER_KEY = NoiseKey(bytes(range(32))), NoiseKey(bytes(32))
EPOCHS, USERS = 8, 40


def deployed(protocol: str = "shuffled_counts", **parameters: Any) -> DeployedJob:
    values = {
        "name": "noise",
        "protocol": protocol,
        "parameters": {"epsilon": 0.2, "delta": 1e-6, **parameters},
        "epochs": {"count": EPOCHS},
        "shuffle": {"minimum": USERS},
        "topics": {"partitions": 1},
    }
    return deploy_job(make_job(values), deployed_at=0, deployment=bytes(16))


JOB = deployed(dummies="shuffle")


def windows(
    changed: Callable[[ShuffleStage], None] = lambda stage: None,
    *,
    job: DeployedJob = JOB,
    value: int = 0,
) -> tuple[DeployedJob, SimulatedCluster]:
    """A job that has run, of devices that all hold a value; `changed` alters the shuffle stage."""

    def around(job: DeployedJob, name: str, stage: Stage) -> Stage:
        if name == "shuffle":
            assert isinstance(stage, ShuffleStage)
            changed(stage)
        return signed(job, name, stage)

    cluster = SimulatedCluster(job, generators, KEY, around=around)
    producer = Producer(
        cluster.job, None, name="one", transport=MemoryDriver(cluster.log), generators=generators
    )
    producer.enrol([f"u{number}" for number in range(USERS)])
    for epoch in range(1, EPOCHS + 1):
        producer.report_all(epoch, np.full((USERS, *job.domain.shape), value))
        producer.close(epoch)
        cluster.settle()
    producer.shut()
    return cluster.job, cluster


def generators(purpose: str, number: int) -> np.random.Generator:
    return seeded_generator(6, len(purpose), number)


def look(run: tuple[DeployedJob, SimulatedCluster], key: NoiseKey | None = None) -> Verification:
    job, cluster = run
    return verify_stages(evidence_of(job, cluster.log), noise_key=key)


def noise_of(stage: ShuffleStage) -> StageNoise:
    return stage._writer._noise


def with_half_of_it(stage: ShuffleStage) -> None:
    """Every second dummy is left out."""
    drawn = noise_of(stage)

    class Half(StageNoise):
        def dummies(self, epoch: int, lane: int | None = None) -> Words | None:
            dummies = drawn.dummies(epoch)
            assert dummies is not None
            _, (counts,) = tally(dummies)
            half = (counts // 2).astype(np.uint32)
            return Words(dummies.values[half > 0], half[half > 0])

    stage._writer._noise = Half(stage._job, KEY)


def with_another_key(stage: ShuffleStage) -> None:
    """As much noise, that somebody else knows."""
    own = stage._job.model_copy(update={"noise_key": OTHER_KEY.digest})
    stage._writer._noise = StageNoise(own, OTHER_KEY)


def with_twice_as_much(stage: ShuffleStage) -> None:
    drawn = noise_of(stage)

    class Twice(StageNoise):
        def dummies(self, epoch: int, lane: int | None = None) -> Words | None:
            dummies = drawn.dummies(epoch)
            assert dummies is not None
            assert dummies.counts is not None
            return Words(dummies.values, 9 * dummies.counts)

    stage._writer._noise = Twice(stage._job, KEY)


def test_the_whole_noise_is_verified_and_what_the_test_can_see_is_said() -> None:
    found = look(windows())
    assert violated(found) == set()
    assert {"noise", "noise key"} <= verified(found)
    said = finding(found, "noise")
    assert said.checked == EPOCHS
    assert "a stage with half the noise is convicted with probability 1.0000" in said.notes[0]
    assert "--noise-key" in said.missing


@pytest.mark.parametrize("change", [with_half_of_it, with_twice_as_much])
def test_a_stage_that_adds_less_or_more_is_convicted_without_its_key(
    change: Callable[[ShuffleStage], None],
) -> None:
    assert violated(look(windows(change))) == {"noise"}


def test_no_noise_key_is_needed_where_devices_add_the_noise() -> None:
    found = look(windows(job=deployed()))
    assert violated(found) == set()
    assert finding(found, "noise").checked == 0
    assert finding(found, "noise key").checked == 0
    assert "amount" in verified(found)


@pytest.mark.parametrize("change", [with_half_of_it, with_another_key, with_twice_as_much])
def test_with_the_key_every_window_shows_that_its_noise_is_another(
    change: Callable[[ShuffleStage], None],
) -> None:
    found = look(windows(change), KEY)
    assert violated(found) == {"noise"}
    assert len(finding(found, "noise").violations) >= EPOCHS - 2


def test_with_the_key_honest_windows_are_made_again() -> None:
    found = look(windows(value=1), KEY)
    assert violated(found) == set()
    assert finding(found, "noise").missing == ""
    with pytest.raises(NoiseKeyError, match="not the noise key"):
        look(windows(), OTHER_KEY)


def test_noise_of_another_key_cannot_be_told_without_the_key() -> None:
    assert violated(look(windows(with_another_key))) == set()


def test_a_worker_that_holds_another_noise_key_says_so() -> None:
    job, cluster = windows()
    other = job.model_copy(update={"noise_key": OTHER_KEY.digest})
    assert signer_of(job, "shuffle").noise_key == KEY.digest
    found = verify_stages(replace(evidence_of(job, cluster.log), job=other))
    assert violated(found) == {"noise key"}


def test_with_reports_the_noise_is_what_is_beside_them() -> None:
    """Where devices send much, too little noise shows when it is known how much they sent."""
    job, cluster = windows(with_half_of_it)
    evidence = evidence_of(job, cluster.log)
    reports = Words(np.zeros((1, 1), job.word_form.dtype), np.array([10_000], np.uint32))

    def with_reports(words: Words) -> Words:
        rows, counts = tally(words, reports)
        return Words(rows, counts.sum(axis=0).astype(np.uint64))

    attempts = tuple(replace(each, messages=each.messages + 10_000) for each in evidence.attempts)
    held = {
        epoch: (replace(decision, manifest=replace(decision.manifest, **_MANY)), record)
        for epoch, (decision, record) in evidence.decisions.items()
    }
    evidence = with_words(replace(evidence, attempts=attempts, decisions=held), with_reports)
    assert not noise(evidence, None, {}).violations
    assert noise(
        evidence, None, dict.fromkeys(range(1, EPOCHS + 1), Sent(10_000, reports))
    ).violations


def test_reports_that_look_like_noise_are_none_where_they_are_known() -> None:
    """All that is released is what devices sent: neither all words nor single ones have noise."""
    job, cluster = windows()
    evidence = evidence_of(job, cluster.log)
    draw = job.stage_dummies
    assert draw is not None
    drawn = {epoch: draw(epoch, seeded_generator(9, epoch)) for epoch in range(1, EPOCHS + 1)}
    sent = {epoch: Words(each.values, each.counts) for epoch, each in drawn.items()}

    def words(wanted: Iterable[Attempt]) -> Iterator[tuple[Attempt, Words]]:
        return ((each, sent[each.epoch]) for each, _ in evidence.words(wanted))

    looking = replace(evidence, words=words)
    assert not noise(looking, None, {}).violations
    known = {epoch: Sent(each.messages, each) for epoch, each in sent.items()}
    why = [each.why for each in noise(looking, None, known).violations]
    assert any("0 of all words in" in each for each in why)
    assert any("0 of a word in" in each for each in why)


def with_words(evidence: Evidence, change: Callable[[Words], Words]) -> Evidence:
    """As if windows held other words."""

    def words(windows: Iterable[Attempt]) -> Iterator[tuple[Attempt, Words]]:
        return ((each, change(held)) for each, held in evidence.words(windows))

    return replace(evidence, words=words)


_MANY: dict[str, Any] = {"contributors": 10_000, "populations": (10_000,), "population": 10_000}


@pytest.mark.parametrize("found", [0, 1, 10, 200])
def test_what_convicts_is_as_rare_as_it_says(found: int) -> None:
    """The threshold is the largest count of that probability: no larger one convicts."""
    test = count_test(found, 16 * 150, 1e-9)
    chances = stats.binom.cdf(
        [test.threshold, test.threshold + 1],
        [
            test.threshold + 2400,
            test.threshold + 2401,
        ],
        1 / 17,
    )
    assert chances[0] <= 1e-9 < chances[1]
    assert test.convicts == (found <= test.threshold)
    # Of counts that keep to the law, for any that is drawn beside them.
    assert test.power(1.0) <= 1e-7
    assert test.power(0.5) > 0.5 > test.power(0.5, reports=100)


def test_no_count_convicts_where_there_is_little_noise() -> None:
    test = count_test(0, 16, FALSE_CONVICTION)
    assert (test.threshold, test.convicts, test.power(0.0)) == (-1, False, 0.0)


def dummies_of(name: str) -> tuple[StageDummies, int] | None:
    protocol = PROTOCOLS[name]
    parameters = protocol.examples[0].parameters
    try:
        law = protocol.calibrate(replace(parameters, dummies="shuffle"), 4, 20)
    except (TypeError, ValueError):
        return None
    draw = protocol.stage_dummies(law)
    return None if draw is None else (draw, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PROTOCOLS if dummies_of(name) is not None])
def test_dummies_of_a_word_are_poisson_distributed(name: str) -> None:
    """The test above rests on it: their variance is their mean, and words are independent."""
    found = dummies_of(name)
    assert found is not None
    draw, epoch = found
    trials = 1_000
    drawn = [draw(epoch, seeded_generator(7, trial)) for trial in range(trials)]
    totals = np.array([int(each.counts.sum()) for each in drawn])
    assert totals.mean() > 1
    # Dispersion: chi-square with trials - 1 degrees of freedom.
    statistic = float(((totals - totals.mean()) ** 2).sum() / totals.mean())
    for tail in (stats.chi2.cdf, stats.chi2.sf):
        assert tail(statistic, trials - 1) > 1e-9
        assert min(tail(2 * statistic, trials - 1), tail(statistic / 2, trials - 1)) < 1e-9


def test_more_words_than_contributors_can_send() -> None:
    job, cluster = windows(job=deployed())
    evidence = evidence_of(job, cluster.log)
    more = tuple(replace(each, messages=10**6) for each in evidence.attempts)
    assert violated(verify_stages(replace(evidence, attempts=more))) == {"amount"}


def test_one_message_of_each_device_is_exactly_that() -> None:
    values = {
        "name": "noise",
        "protocol": "single_message",
        "parameters": {"epsilon": 1.0, "delta": 1e-6, "domain": ["a", "b", "c", "d"]},
        "epochs": {"count": EPOCHS},
        "shuffle": {"minimum": USERS},
        "topics": {"partitions": 1},
    }
    job = deploy_job(make_job(values), deployed_at=0, deployment=bytes(16))
    job, cluster = windows(job=job)
    evidence: Evidence = evidence_of(job, cluster.log)
    assert violated(verify_stages(evidence)) == set()
    fewer = tuple(replace(each, messages=USERS - 1) for each in evidence.attempts)
    found = verify_stages(replace(evidence, attempts=fewer))
    assert violated(found) == {"amount"}
    assert f"exactly {USERS}" in finding(found, "amount").violations[0].why
    assert Role.STAGES in job.start_offsets


def test_with_the_key_every_word_of_a_window_has_its_noise() -> None:
    """As many words as there should be, some of them in the place of others."""
    job = deployed(
        "count_min", epsilon=0.5, domain=["a", "b", "c"], rows=2, buckets=8, dummies="shuffle"
    )
    run = windows(job=job)
    assert violated(look(run, KEY)) == set()
    job, cluster = run
    evidence = evidence_of(job, cluster.log)

    def moved(words: Words) -> Words:
        rows, (counts,) = tally(words)
        counts[-1] += counts[0]
        return Words(rows[1:], counts[1:].astype(np.uint32))

    found = verify_stages(with_words(evidence, moved), noise_key=KEY)
    assert violated(found) == {"noise"}
    assert len(finding(found, "noise").violations) == EPOCHS


@pytest.mark.parametrize("key", [None, KEY])
def test_the_words_of_one_window_are_held_at_a_time(key: NoiseKey | None) -> None:
    job, cluster = windows(value=1)
    evidence = evidence_of(job, cluster.log)
    held: list[weakref.ref[Any]] = []

    def words(wanted: Iterable[Attempt]) -> Iterator[tuple[Attempt, Words]]:
        for attempt, found in evidence.words(wanted):
            # By now, whoever was given the one before has let go of it.
            assert [each() for each in held[:-1]] == [None] * len(held[:-1])
            mine = Words(found.values.copy(), found.counts)
            held.append(weakref.ref(mine.values))
            yield attempt, mine

    assert violated(verify_stages(replace(evidence, words=words), noise_key=key)) == set()
    assert len(held) == EPOCHS


def test_windows_that_retention_takes_meanwhile_are_not_missed() -> None:
    """Their noise is not expected any more, and what is left is tested for itself."""
    for change, expected in (
        (lambda stage: None, set[str]()),
        (with_half_of_it, {"noise"}),
    ):
        job, cluster = windows(change)
        evidence = evidence_of(job, cluster.log)

        def words(
            wanted: Iterable[Attempt], evidence: Evidence = evidence
        ) -> Iterator[tuple[Attempt, Words]]:
            return (each for each in evidence.words(wanted) if each[0].epoch > EPOCHS // 2)

        found = verify_stages(replace(evidence, words=words))
        assert violated(found) == expected
        assert finding(found, "noise").checked == EPOCHS - EPOCHS // 2
    nothing = replace(evidence, words=lambda wanted: iter(()))
    assert "deleted after retention" in finding(verify_stages(nothing), "noise").missing
