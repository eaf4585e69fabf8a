"""Select the attacks on a protocol, a job, or all installed protocols.

* The registry's examples have few items, so that estimates can be compared with predictions. Such
  items can be harder to distinguish than the guarantee allows. `more_examples` adds examples in
  which users lose all of the stated epsilon.
* For a deployed job, the audit also checks that the mechanism is the one that its parameters
  specify. Devices, stages and readers all use the job record in the cluster. An attacker with write
  access, or software that calibrates wrongly, would change the constants for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from typing import Any, Final

from dpstream.pipeline.audit.audits import Attack, AuditOutcome, Finding, Randomness
from dpstream.pipeline.audit.draw_comparison import compare_draws
from dpstream.pipeline.audit.exact import enumerate_losses
from dpstream.pipeline.audit.recomputed.cells import shifted_cells
from dpstream.pipeline.audit.recomputed.compositions import compositions, renewed_horizons
from dpstream.pipeline.audit.recomputed.deleted_crowds import crowds
from dpstream.pipeline.audit.recomputed.item_sets import sets_of_items
from dpstream.pipeline.audit.recomputed.rounded import rounding
from dpstream.pipeline.audit.recomputed.small_laws import SUBJECT
from dpstream.pipeline.audit.sampling import Sample
from dpstream.pipeline.audit.targets import DeviceHistory, Target, Windows
from dpstream.pipeline.conformance.cases import Case
from dpstream.pipeline.conformance.finding import find_cases
from dpstream.pipeline.jobs.deployed_job import DeployedJob, deploy_job, fingerprint_of
from dpstream.pipeline.jobs.descriptions import is_signed
from dpstream.pipeline.jobs.job_files import Job, make_job, validate
from dpstream.pipeline.protocols.protocol import Example
from dpstream.pipeline.protocols.registry import PROTOCOLS

ATTACK: Final = "deployed mechanism"
_OFF: Final = 1 + 1e-9
"""Tolerated ratio of losses computed on two machines, whose logarithms can differ slightly."""


def attack_law(deployed: DeployedJob, calibrated: DeployedJob) -> Iterator[Finding]:
    runs, promised = deployed.guarantee, calibrated.guarantee
    reason = ""
    if (runs.unit, runs.neighbors) != (promised.unit, promised.neighbors):
        reason = (
            f"its mechanism protects {runs.neighbors} ({runs.unit}); its parameters require "
            f"{promised.neighbors} ({promised.unit})"
        )
    elif runs.epsilon > promised.epsilon * _OFF or runs.delta > promised.delta * _OFF:
        reason = (
            f"its constants have epsilon {runs.epsilon:.9g}, delta {runs.delta:.9g}; its "
            f"parameters guarantee epsilon {promised.epsilon:.9g}, delta {promised.delta:.9g}"
        )
    yield Finding(
        deployed.name,
        ATTACK,
        f"constants of deployment {deployed.deployment.hex()[:8]} compared with the job's "
        "parameters",
        AuditOutcome.FAILED if reason else AuditOutcome.EXACT,
        claimed=promised.epsilon,
        delta=promised.delta,
        observed=runs.epsilon,
        reason=reason,
    )
    if deployed.signed_description is not None:
        reason = _description_problem(deployed)
        yield Finding(
            deployed.name,
            ATTACK,
            "devices get the deployed mechanism, signed by the operator",
            AuditOutcome.FAILED if reason else AuditOutcome.CONSISTENT,
            reason=reason,
        )


def _description_problem(deployed: DeployedJob) -> str:
    signed = deployed.signed_description
    assert signed is not None
    if not is_signed(signed):
        return "the job description for devices has a signature that does not match its stated key"
    if json.loads(signed.statement)["law"] != deployed.constants:
        return "the constants sent to devices differ from those of the stages"
    return ""


def with_constants_of(deployed: DeployedJob, job: DeployedJob) -> DeployedJob:
    values = {**json.loads(job.to_bytes()), "constants": deployed.constants}
    return validate(DeployedJob, {**values, "fingerprint": fingerprint_of(values).hex()})


_RECOMPUTED: dict[str, Callable[[], Iterator[Finding]]] = {
    "compositions": compositions,
    "shifted noise": shifted_cells,
    "sets of items": sets_of_items,
    "crowds": crowds,
    "renewed horizons": renewed_horizons,
    "rounding": rounding,
}


def attacks_on_accounting() -> list[Attack]:
    return [
        Attack(SUBJECT, name, 0, partial(_without_randomness, recompute))
        for name, recompute in _RECOMPUTED.items()
    ]


def _without_randomness(
    recompute: Callable[[], Iterator[Finding]], randomness: Randomness, share: float
) -> Iterator[Finding]:
    return recompute()


_PARAMETERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "bucket": {"epsilon": 8.0, "domain": ("a", "b", "c"), "delta": 0.1, "hashes": 1, "trials": 2},
    "jl_hh": {"epsilon": 8.0, "domain": ("a", "b", "c"), "delta": 0.1, "measurements": 2},
}


def more_examples(name: str) -> Iterator[Case]:
    """Yield additional one-epoch examples of a protocol, numbered after its own.

    >>> list(map(str, more_examples("jl_hh")))
    ['jl_hh-3']
    """
    if name in _PARAMETERS:
        (first, *_) = find_cases(name)
        entry = first.protocol
        examples = (*entry.examples, Example(entry.parameters(**_PARAMETERS[name]), 1))
        yield replace(first, protocol=replace(entry, examples=examples), number=len(entry.examples))


# Cached because several attacks start with the same job, and calibration is slow.
@lru_cache(maxsize=64)
def job_of(case: Case, *, epochs: int, minimum: int) -> DeployedJob:
    written = {key: value for key, value in asdict(case.parameters).items() if value is not None}
    if isinstance(written.get("domain"), tuple):
        written["domain"] = list(written["domain"])
    values: dict[str, Any] = {
        "name": "audit",
        "protocol": case.protocol.name,
        "parameters": written,
        "epochs": {"count": epochs},
        "shuffle": {"minimum": max(case.minimum, minimum)},
        "topics": {"partitions": 2},
    }
    return deploy_job(make_job(values), deployed_at=0, deployment=bytes(16))


LONG_TO_ENUMERATE = frozenset(
    {
        "bucket-1",
        "count_min-3",
        "hadamard_values-1",
        "jl_hh-1",
        "laplace_histogram-1",
        "range_values-1",
        "shuffled_counts-4",
        "shuffled_counts-5",
        "sparse_recovery-1",
        "value_stream-1",
    }
)
"""Large examples that add no coverage, and that a quick audit omits."""

SHORT, LONG = 1, 8
"""Numbers of epochs to sample: for jobs with independent epochs, and for all other jobs."""
# Maximum numbers of values and epochs to enumerate for a job.
_FEW_VALUES, _FEW_EPOCHS = 4, 3
# Number of devices whose reports take as long as all other work on a window.
_DEVICES_FOR_A_WINDOW = 1_000
WINDOWS = "released windows", "published history"
"""Names of the attacks on two observations from the same draws."""
# Duration of one epoch (seconds), to weight attacks in the progress display.
_SECONDS_OF_A_WINDOW, _SECONDS_OF_A_REPORT = 1.5e-3, 1e-6
# Maximum total number of messages in all trials with local reports.
_MOST_MESSAGES = 4_000_000
# An epsilon so small that missing noise is detected within a few windows.
_SMALL_EPSILON = 0.4


@dataclass(frozen=True, slots=True)
class AuditProfile:
    """Amount of sampling.

    `windows` is the number of windows per input to compare with the mechanism, `together` the
    number of devices to run together. `trials` is half the number of test trials, if these are
    drawn one by one and have one epoch. `quick` skips slow attacks and shortens all other attacks.
    """

    windows: int
    together: int
    trials: int
    quick: bool

    def with_trials(self, trials: int) -> AuditProfile:
        return replace(
            self,
            trials=trials,
            windows=min(self.windows, trials),
            together=min(self.together, 80 * trials),
        )


QUICK = AuditProfile(windows=60, together=20_000, trials=70, quick=True)
FULL = AuditProfile(windows=1_000, together=400_000, trials=5_000, quick=False)


def attacks_on_all(profile: AuditProfile) -> list[Attack]:
    of_protocols = [each for name in PROTOCOLS for each in attacks_on_protocol(name, profile)]
    return attacks_on_accounting() + of_protocols


def attacks_on_protocol(name: str, profile: AuditProfile) -> list[Attack]:
    cases: Sequence[Case] = find_cases(name)
    if profile.quick:
        cases = [case for case in cases if str(case) not in LONG_TO_ENUMERATE]
    attacks = [_exact(case) for case in (*cases, *more_examples(name))]
    for case in cases[:1] if profile.quick else cases:
        attacks += _draws(case, profile)
    attacks += _samples_of(cases[0], profile)
    return attacks


def attacks_on_job(job: Job, profile: AuditProfile) -> list[Attack]:
    """Return the attacks on a job: enumerate a few epochs, and sample from its mechanism.

    Reports are attacked before encryption. Raises `ProtocolError` if the protocol is broken, and
    `JobError` if it cannot be calibrated for the job's parameters and horizon.
    """
    return _attacks_on_job(job, _opened(job), profile)


def attacks_on_deployed(deployed: DeployedJob, profile: AuditProfile) -> list[Attack]:
    """Return the attacks on a deployed job, with the constants of its stored record."""
    job = make_job(deployed.to_json())
    calibrated = _opened(job)
    law = Attack(
        deployed.name,
        "deployed mechanism",
        0,
        lambda randomness, share: attack_law(deployed, calibrated),
    )
    return [law, *_attacks_on_job(job, with_constants_of(deployed, calibrated), profile)]


def _opened(job: Job) -> DeployedJob:
    """Return the job without encryption, device collection and budget."""
    open_job = job.model_copy(update={"sealed": None, "devices": None, "budget": None})
    return deploy_job(open_job, deployed_at=0)


def _attacks_on_job(job: Job, opened: DeployedJob, profile: AuditProfile) -> list[Attack]:
    case = small_case(job)
    attacks = [] if case is None else [_exact(case), *_draws(case, profile)]
    return [*attacks, *_samples(job.name, opened, profile)]


def small_case(job: Job) -> Case | None:
    entry = job.protocol_entry
    if job.crowds is not None or entry.shuffling is not None or job.domain.size > _FEW_VALUES:
        return None
    (first, *_) = find_cases(entry.name)
    # Two epochs of some protocols have too many views to enumerate.
    few = min(_FEW_EPOCHS, max(example.last_epoch for example in entry.examples))
    example = Example(job.parameters, min(job.epochs.count, few), 1)
    return replace(first, protocol=replace(entry, examples=(example,)), number=0)


def _exact(case: Case) -> Attack:
    seconds = 3.0 if str(case) in LONG_TO_ENUMERATE else 0.2
    return Attack(
        str(case), "likelihood ratios", 0, lambda randomness, share: enumerate_losses(case), seconds
    )


def _draws(case: Case, profile: AuditProfile) -> Iterator[Attack]:
    def compared(randomness: Randomness, share: float) -> Iterator[Finding]:
        yield compare_draws(
            case, randomness, windows=profile.windows, together=profile.together, false_alarm=share
        )

    if case.protocol.stage_sum(case.law) is None:
        yield Attack(str(case), "draws compared with the mechanism", 1, compared)


def _samples_of(case: Case, profile: AuditProfile) -> Iterator[Attack]:
    epochs = SHORT if case.protocol.per_epoch else LONG
    if profile.quick:
        with_noise = noise_of_stage(case, _SMALL_EPSILON)
        if with_noise is not None:
            job = job_of(with_noise, epochs=SHORT, minimum=case.minimum)
            yield _sample(str(with_noise), WINDOWS, job, Windows(job), profile)
        return
    for each in (case, noise_of_stage(case)):
        if each is not None:
            job = job_of(each, epochs=epochs, minimum=each.minimum)
            yield from _samples(
                str(each) if each is case else f"{each}, dummies: shuffle", job, profile
            )


def noise_of_stage(case: Case, epsilon: float | None = None) -> Case | None:
    """Return the case with dummies from the shuffler, at `epsilon` if valid; None if impossible."""
    requested = getattr(case.parameters, "dummies", None)
    if requested is None:
        return None
    for changed in ({} if epsilon is None else {"epsilon": epsilon}, {}):
        try:
            parameters = replace(case.parameters, dummies="shuffle", **changed)
        except ValueError:
            continue
        example = Example(parameters, case.last_epoch, case.minimum)
        return replace(case, protocol=replace(case.protocol, examples=(example,)), number=0)
    return None


def _samples(subject: str, job: DeployedJob, profile: AuditProfile) -> Iterator[Attack]:
    entry = job.protocol_entry
    if entry.shuffling is None and not entry.stage_adds_noise(job.law):
        history = DeviceHistory(job)
        most = _MOST_MESSAGES // (entry.message_format(job.law).width * history.epochs)
        trials = profile.together if history.together else profile.trials
        alone = replace(profile, trials=min(trials, max(most, profile.windows)))
        yield _sample(subject, ("local reports",), job, history, alone)
    windows = Windows(job)
    slower = windows.epochs * (1 + job.shuffle.minimum // _DEVICES_FOR_A_WINDOW)
    fewer = replace(profile, trials=max(profile.trials // slower, 20))
    yield _sample(subject, WINDOWS, job, windows, fewer)


def _sample(
    subject: str, attacks: tuple[str, ...], job: DeployedJob, target: Target, profile: AuditProfile
) -> Attack:
    sample = Sample(
        subject, attacks, job, target, job.guarantee, profile.trials, searched=not profile.quick
    )
    windows = job.shuffle.minimum / _DEVICES_FOR_A_WINDOW if len(attacks) > 1 else 0
    epochs = 3 * profile.trials * target.epochs * (1 + windows)
    seconds = epochs * (_SECONDS_OF_A_REPORT if len(attacks) == 1 else _SECONDS_OF_A_WINDOW)
    return Attack(subject, ", ".join(attacks), len(attacks), sample.run, seconds)
