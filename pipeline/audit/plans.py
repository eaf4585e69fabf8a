"""Which attacks there are on a protocol, a job, or all that is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pipeline.audit.audits import Attack, Coins
from pipeline.audit.collected_reports import attack_collector
from pipeline.audit.deployed_laws import attack_law, with_constants_of
from pipeline.audit.device_clients import attack_client
from pipeline.audit.drawn.attacks import attacks_on_draws
from pipeline.audit.draws import compare_draws
from pipeline.audit.exact import enumerate_losses
from pipeline.audit.findings import Finding
from pipeline.audit.interrupted_producers import attack_interrupted, attack_renewal
from pipeline.audit.kept_files import attack_files
from pipeline.audit.linkage import Linkage
from pipeline.audit.presence import attack_presence
from pipeline.audit.randomness import attack_generators, attack_randomness
from pipeline.audit.recomputed.attacks import attacks_on_accounting
from pipeline.audit.record_sizes import attack_boxes, attack_sizes
from pipeline.audit.sampling import Sample
from pipeline.audit.side_channels import compare_neighbours
from pipeline.audit.subjects import job_of
from pipeline.audit.targets import History, Target, Windows
from pipeline.conformance.cases import Case
from pipeline.conformance.finding import find_cases
from pipeline.jobs.deployed_job import DeployedJob, deploy_job
from pipeline.jobs.job_files import Job, make_job
from pipeline.protocols.protocol import Example
from pipeline.protocols.registry import PROTOCOLS

LONG_TO_ENUMERATE = frozenset(
    {
        "bucket-1",
        "count_min-3",
        "hadamard_values-1",
        "jl_hh-1",
        "laplace_histogram-1",
        "range_stream-2",
        "range_values-1",
        "shuffled_counts-5",
        "shuffled_counts-6",
        "sparse_recovery-1",
        "value_stream-1",
    }
)
"""Larger examples of what smaller ones show too: a quick audit leaves them out."""


# What every producer does, in few protocols: those that use something up, and that refuse nothing
# by themselves; and those whose messages stand in tables, and in slots.
_OF_PRODUCERS = ("future_rand", "memoized_response"), ("shuffled_counts", "ldp_sgd")
SHORT, LONG = 1, 8
"""Epochs that are sampled where they stand alone, and where they do not."""
# Of a job, so many values and epochs are enumerated.
_FEW_VALUES, _FEW_EPOCHS = 4, 3
# A window goes through producers and all stages: it takes as long as so many devices alone.
_DEVICES_FOR_A_WINDOW = 40
# Loss for which missing noise is seen in a few windows.
_SMALL_EPSILON = 0.4


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is drawn.

    Attributes:
        windows: that are compared with the law, of each input.
        together: devices that report at once.
        trials: of each neighbour that are judged; as many are drawn to choose what to judge.
        quick: little of everything, and none that takes long.
    """

    windows: int
    together: int
    trials: int
    quick: bool


QUICK = Effort(windows=60, together=20_000, trials=70, quick=True)
FULL = Effort(windows=1_000, together=100_000, trials=10_000, quick=False)


def attacks_on_all(effort: Effort) -> list[Attack]:
    """All attacks on all protocols, on what they have in common, and on what they rest on."""
    found = attacks_in_common(effort) + attacks_around_devices(effort)
    found += [*attacks_on_accounting(), *attacks_on_draws()]
    for name in PROTOCOLS:
        found += attacks_on_protocol(name, effort)
    return found


def attacks_in_common(effort: Effort) -> list[Attack]:
    """Attacks on what all protocols have in common: coins, and what shuffling leaves."""
    attacks = [Attack("all protocols", "randomness", 0, lambda coins, share: attack_generators())]
    for order in ("sorted", "random"):
        linkage = Linkage(order, trials=effort.trials)
        attacks.append(Attack("shuffle stage", "linkage", 1, partial(_one, linkage.run)))
    return attacks


def attacks_around_devices(effort: Effort) -> list[Attack]:
    """Attacks on what stands between people and the stages, whatever the protocol is.

    Collectors, clients of single devices, producers, and the files that any of them keeps.
    """
    attacks: list[tuple[str, str, Callable[[], Iterator[Finding]]]] = [
        ("collector", "collected reports", attack_collector),
        ("device client", "device clients", attack_client),
        ("kept files", "kept files", attack_files),
        ("producer", "presence", attack_presence),
        ("producer", "interruptions", attack_renewal),
        ("shuffle instances", "sizes", attack_boxes),
    ]
    interrupted, sized = _OF_PRODUCERS if effort.quick else (tuple(PROTOCOLS), tuple(PROTOCOLS))
    for names, attack, run in (
        (interrupted, "interruptions", attack_interrupted),
        (sized, "sizes", attack_sizes),
    ):
        for name in names:
            case = find_cases(name)[0]
            attacks.append((str(case), attack, partial(run, case)))
    return [_without_draws(*each) for each in attacks]


def _without_draws(subject: str, attack: str, run: Callable[[], Iterator[Finding]]) -> Attack:
    return Attack(subject, attack, 0, lambda coins, share: run())


def attacks_on_protocol(name: str, effort: Effort) -> list[Attack]:
    """All attacks on a protocol: on its examples.

    Raises:
        ProtocolError: there is none of that name, it is broken, or has no examples or exact law.
    """
    cases: Sequence[Case] = find_cases(name)
    if effort.quick:
        cases = [case for case in cases if str(case) not in LONG_TO_ENUMERATE]
    attacks = [_exact(case) for case in cases]
    for case in cases[:1] if effort.quick else cases:
        attacks += _on_example(case, effort)
    attacks += _samples_of(cases[0], effort)
    return attacks


def attacks_on_job(job: Job, effort: Effort) -> list[Attack]:
    """All attacks on a job: on its parameters over few epochs exactly, and on its law by samples.

    Reports are attacked as they are before they are sealed.

    Raises:
        ProtocolError: its protocol is broken.
        JobError: no constants exist for the job's parameters and horizon.
    """
    return _attacks_on_job(job, _opened(job), effort)


def attacks_on_deployed(deployed: DeployedJob, effort: Effort) -> list[Attack]:
    """The same on a deployed job: with the constants that everybody works with who is in it."""
    job = make_job(deployed.to_json())
    calibrated = _opened(job)
    law = partial(attack_law, deployed, calibrated)
    found = [_without_draws(deployed.name, "deployed law", law)]
    return found + _attacks_on_job(job, with_constants_of(deployed, calibrated), effort)


def _opened(job: Job) -> DeployedJob:
    """The job without what surrounds its reports."""
    open_job = job.model_copy(update={"sealed": None, "devices": None, "budget": None})
    return deploy_job(open_job, deployed_at=0)


def _attacks_on_job(job: Job, opened: DeployedJob, effort: Effort) -> list[Attack]:
    attacks = attacks_in_common(effort)
    case = _small_case(job)
    if case is not None:
        attacks += [_exact(case), *_on_example(case, effort)]
    if not effort.quick:
        attacks += _samples(job.name, opened, opened, effort)
    return attacks


def _small_case(job: Job) -> Case | None:
    """The parameters of a job over a few epochs, where there are few values and no crowds."""
    entry = job.protocol_entry
    if job.crowds is not None or entry.needs_shuffle or job.domain.size > _FEW_VALUES:
        return None
    (first, *_) = find_cases(entry.name)
    example = Example(job.parameters, min(job.epochs.count, _FEW_EPOCHS), 1)
    return replace(first, protocol=replace(entry, examples=(example,)), number=0)


def _exact(case: Case) -> Attack:
    return Attack(str(case), "likelihood ratios", 0, lambda coins, share: enumerate_losses(case))


def _on_example(case: Case, effort: Effort) -> Iterator[Attack]:
    """What is not about a number: draws, side channels, randomness."""

    def neighbours(coins: Coins, share: float, released: bool) -> Iterator[Finding]:
        yield compare_neighbours(case, seed=int(coins.integers(2**62)), released=released)

    def draws(coins: Coins, share: float) -> Iterator[Finding]:
        yield compare_draws(
            case, coins, windows=effort.windows, together=effort.together, false_alarm=share
        )

    for released in (True,) if effort.quick else (True, False):
        yield Attack(str(case), "side channels", 0, partial(neighbours, released=released))
    yield Attack(str(case), "randomness", 0, lambda coins, share: attack_randomness(case))
    if case.protocol.stage_sum(case.law) is None:
        yield Attack(str(case), "draws against the law", 1, draws)


def _samples_of(case: Case, effort: Effort) -> Iterator[Attack]:
    alone = case.protocol.per_epoch
    if effort.quick:
        with_noise = noise_of_stage(case, _SMALL_EPSILON)
        if with_noise is not None:
            job = job_of(with_noise, epochs=effort.trials if alone else 1, minimum=case.minimum)
            yield _sample(str(with_noise), "released windows", job, Windows(job), effort)
        return
    epochs = SHORT if alone else LONG
    for each in (case, noise_of_stage(case)):
        if each is not None:
            job = job_of(each, epochs=epochs, minimum=each.minimum)
            # Windows that stand alone are trials of their own.
            many = job_of(each, epochs=200, minimum=each.minimum) if alone else job
            name = str(each) if each is case else f"{each}, dummies: shuffle"
            yield from _samples(name, job, many, effort)


def noise_of_stage(case: Case, epsilon: float | None = None) -> Case | None:
    """The same where the shuffle stage adds the dummies; None where it cannot.

    `epsilon` if the protocol takes it.
    """
    asked = getattr(case.parameters, "dummies", None)
    if asked is None:
        return None
    for changed in ({} if epsilon is None else {"epsilon": epsilon}, {}):
        try:
            parameters = replace(case.parameters, dummies="shuffle", **changed)
        except ValueError:
            continue
        example = Example(parameters, case.last_epoch, case.minimum)
        return replace(case, protocol=replace(case.protocol, examples=(example,)), number=0)
    return None


def _samples(subject: str, job: DeployedJob, many: DeployedJob, effort: Effort) -> Iterator[Attack]:
    entry = job.protocol_entry
    if not entry.needs_shuffle and not entry.stage_adds_noise(job.law()):
        yield _sample(subject, "local reports", job, History(job), effort)
    fewer = replace(effort, trials=max(effort.trials // _DEVICES_FOR_A_WINDOW, 20))
    yield _sample(subject, "released windows", many, Windows(many), fewer)
    yield _sample(subject, "published history", many, Windows(many, published=True), fewer)


def _sample(subject: str, attack: str, job: DeployedJob, target: Target, effort: Effort) -> Attack:
    sample = Sample(
        subject, attack, job, target, job.guarantee(), effort.trials, searched=not effort.quick
    )
    return Attack(subject, attack, 1, partial(_one, sample.run))


def _one(
    run: Callable[[np.random.Generator, float], Finding], coins: Coins, share: float
) -> Iterator[Finding]:
    yield run(coins, share)
