"""Which attacks there are on a protocol, a job, or all that is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from pipeline.audit.audits import Attack, Coins
from pipeline.audit.collected_reports import attack_collector
from pipeline.audit.concerns import ANYBODY, named, that_concern
from pipeline.audit.deployed_laws import attack_law, with_constants_of
from pipeline.audit.device_clients import attack_client
from pipeline.audit.drawn.attacks import attacks_on_draws
from pipeline.audit.draws import compare_draws
from pipeline.audit.exact import enumerate_losses
from pipeline.audit.findings import Finding
from pipeline.audit.interrupted_producers import attack_interrupted, attack_renewal
from pipeline.audit.kept_files import attack_files
from pipeline.audit.linkage import Linkage
from pipeline.audit.more_examples import more_examples
from pipeline.audit.presence import attack_presence
from pipeline.audit.randomness import attack_generators, attack_randomness
from pipeline.audit.recomputed.attacks import attacks_on_accounting
from pipeline.audit.record_sizes import attack_boxes, attack_sizes
from pipeline.audit.sampling import Sample
from pipeline.audit.side_channels import compare_neighbours
from pipeline.audit.stage_attacks import attacks_on_stages
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
# So many devices take as long as what else there is to do for a window.
_DEVICES_FOR_A_WINDOW = 1_000
# An order that tells who sent what is seen in few windows.
_TRIALS_FOR_A_LINKAGE = 10
WINDOWS = "released windows", "published history"
"""What is seen of the same draws."""
# Of one epoch, by which attacks are weighed while they run.
_SECONDS_OF_A_WINDOW, _SECONDS_OF_A_REPORT = 1.5e-3, 1e-6
# Numbers in all trials of local reports together.
_MOST_WORDS = 4_000_000
# Loss for which missing noise is seen in a few windows.
_SMALL_EPSILON = 0.4


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is drawn.

    Attributes:
        windows: that are compared with the law, of each input.
        together: devices that are run as one.
        trials: half of those that are judged, of what is drawn one by one, if they have one epoch.
        quick: little of everything, and none that takes long.
    """

    windows: int
    together: int
    trials: int
    quick: bool


QUICK = Effort(windows=60, together=20_000, trials=70, quick=True)
FULL = Effort(windows=1_000, together=400_000, trials=5_000, quick=False)


def attacks_on_all(effort: Effort) -> list[Attack]:
    """All attacks on all protocols, on what they rest on, and on what stands around them."""
    found = attacks_in_common(effort) + attacks_on_accounting() + attacks_on_draws()
    found += attacks_around_devices(effort) + attacks_on_stages(quick=effort.quick)
    for name in PROTOCOLS:
        found += attacks_on_protocol(name, effort)
    return found


def attacks_in_common(effort: Effort) -> list[Attack]:
    """Attacks on what all protocols have in common: coins, and what shuffling leaves."""
    attacks = [Attack("all protocols", "randomness", 0, lambda coins, share: attack_generators())]
    for order in ("sorted", "random"):
        trials = max(effort.trials // _TRIALS_FOR_A_LINKAGE, min(effort.trials, 70))
        linkage = Linkage(order, trials=trials)
        seconds = _SECONDS_OF_A_WINDOW * 4 * trials
        attacks.append(Attack("shuffle stage", "linkage", 1, partial(_one, linkage.run), seconds))
    return attacks


def attacks_around_devices(effort: Effort, names: Sequence[str] = ()) -> list[Attack]:
    """Attacks on what stands between people and the stages, whatever the protocol is.

    Collectors, clients of single devices, producers, and the files that any of them keeps.

    Args:
        effort: how much is drawn.
        names: of protocols whose producers are looked at; none: some of them, or all if it may take
            a while.
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
    if names:
        interrupted = sized = tuple(names)
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
    attacks = [_exact(case) for case in (*cases, *more_examples(name))]
    for case in cases[:1] if effort.quick else cases:
        attacks += _on_example(case, effort)
    attacks += _samples_of(cases[0], effort)
    return attacks


def attacks_around_protocol(name: str, effort: Effort) -> tuple[list[Attack], dict[str, str]]:
    """What attacks on a protocol alone leave out, of its producers and its noise in the stage.

    Returns:
        Those that concern it, as a plain job of its first example has it, and the others by their
        names, each with why it is left out.
    """
    case = find_cases(name)[0]
    opened = job_of(noise_of_stage(case) or case, epochs=SHORT, minimum=case.minimum)
    return _around(make_job(opened.to_json()), opened, effort)


def attacks_around_job(job: Job, effort: Effort) -> tuple[list[Attack], dict[str, str]]:
    """The same of a job: of all that it has."""
    return _around(job, _opened(job), effort)


def _around(job: Job, opened: DeployedJob, effort: Effort) -> tuple[list[Attack], dict[str, str]]:
    surroundings = attacks_around_devices(effort, (job.protocol,))
    surroundings += attacks_on_stages(quick=effort.quick)
    chosen, left_out = that_concern(surroundings, job, opened)
    for_all = attacks_on_accounting() + attacks_on_draws()
    if not effort.quick:
        return chosen + for_all, left_out
    return chosen, left_out | {named(attack): ANYBODY for attack in for_all}


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
    case = small_case(job)
    if case is not None:
        attacks += [_exact(case), *_on_example(case, effort)]
    if not effort.quick:
        attacks += _samples(job.name, opened, effort)
    return attacks


def small_case(job: Job) -> Case | None:
    """The parameters of a job over a few epochs, where there are few values and no crowds."""
    entry = job.protocol_entry
    if job.crowds is not None or entry.needs_shuffle or job.domain.size > _FEW_VALUES:
        return None
    (first, *_) = find_cases(entry.name)
    # Of some protocols so much can be seen in an epoch that two of them are many.
    few = min(_FEW_EPOCHS, max(example.last_epoch for example in entry.examples))
    example = Example(job.parameters, min(job.epochs.count, few), 1)
    return replace(first, protocol=replace(entry, examples=(example,)), number=0)


def _exact(case: Case) -> Attack:
    seconds = 3.0 if str(case) in LONG_TO_ENUMERATE else 0.2
    return Attack(
        str(case), "likelihood ratios", 0, lambda coins, share: enumerate_losses(case), seconds
    )


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
    epochs = SHORT if case.protocol.per_epoch else LONG
    if effort.quick:
        with_noise = noise_of_stage(case, _SMALL_EPSILON)
        if with_noise is not None:
            job = job_of(with_noise, epochs=SHORT, minimum=case.minimum)
            yield _sample(str(with_noise), WINDOWS, job, Windows(job), effort)
        return
    for each in (case, noise_of_stage(case)):
        if each is not None:
            job = job_of(each, epochs=epochs, minimum=each.minimum)
            yield from _samples(
                str(each) if each is case else f"{each}, dummies: shuffle", job, effort
            )


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


def _samples(subject: str, job: DeployedJob, effort: Effort) -> Iterator[Attack]:
    entry = job.protocol_entry
    if not entry.needs_shuffle and not entry.stage_adds_noise(job.law()):
        history = History(job)
        most = _MOST_WORDS // (entry.word_form(job.law()).width * history.epochs)
        trials = effort.together if history.together else effort.trials
        alone = replace(effort, trials=min(trials, max(most, effort.windows)))
        yield _sample(subject, ("local reports",), job, history, alone)
    windows = Windows(job)
    slower = windows.epochs * (1 + job.shuffle.minimum // _DEVICES_FOR_A_WINDOW)
    fewer = replace(effort, trials=max(effort.trials // slower, 20))
    yield _sample(subject, WINDOWS, job, windows, fewer)


def _sample(
    subject: str, attacks: tuple[str, ...], job: DeployedJob, target: Target, effort: Effort
) -> Attack:
    sample = Sample(
        subject, attacks, job, target, job.guarantee(), effort.trials, searched=not effort.quick
    )
    windows = job.shuffle.minimum / _DEVICES_FOR_A_WINDOW if len(attacks) > 1 else 0
    epochs = 3 * effort.trials * target.epochs * (1 + windows)
    seconds = epochs * (_SECONDS_OF_A_REPORT if len(attacks) == 1 else _SECONDS_OF_A_WINDOW)
    return Attack(subject, ", ".join(attacks), len(attacks), sample.run, seconds)


def _one(
    run: Callable[[np.random.Generator, float], Finding], coins: Coins, share: float
) -> Iterator[Finding]:
    yield run(coins, share)
