"""Calibrate the mechanism of a learning job from its parameters.

A report is a randomizer of one bit with loss epsilon, plus a seed that is independent of
everything. Amplification by shuffling holds for any randomizer with this loss (`amplification`),
even if it is chosen in view of earlier outputs, as models are.
"""

from __future__ import annotations

from dpstream.randomizers.accounting.amplification import amplified_epsilon, of_any_randomizer
from dpstream.randomizers.accounting.calibration import response_within
from experiments.protocols.ldp_sgd import LdpSgdLaw, LdpSgdParameters


def calibrate(parameters: LdpSgdParameters, last_epoch: int, minimum: int) -> LdpSgdLaw:
    """Calibrate the mechanism of a job, whose windows have at least `minimum` contributors.

    Raises `ValueError` if delta is out of range, the shuffled reports of a step lose more than the
    epsilon of a single report, or the model is too large for the number of steps.

    >>> requested = LdpSgdParameters(1.9, 1e-5, features=65, classes=10, groups=30)
    >>> law = calibrate(requested, last_epoch=300, minimum=2000)
    >>> round(law.epsilon, 3), law.participations, round(law.stream_epsilon, 3)
    (0.29, 10, 1.013)
    """
    participations = -(-last_epoch // parameters.groups)
    epsilon, stream_epsilon = (
        amplified_epsilon(
            of_any_randomizer(parameters.epsilon),
            minimum,
            parameters.delta,
            steps * parameters.reports,
        )
        for steps in (1, participations)
    )
    if epsilon > parameters.epsilon:
        raise ValueError(
            f"{parameters.reports} reports per step cost epsilon {epsilon:.4g} with {minimum:,} "
            f"contributors; expected at most {parameters.epsilon:g}, the loss of one report. Use "
            "fewer reports or a larger shuffle.minimum"
        )
    return LdpSgdLaw(
        last_epoch=last_epoch,
        features=parameters.features,
        classes=parameters.classes,
        groups=parameters.groups,
        reports=parameters.reports,
        clip=float(parameters.clip),
        rate=float(parameters.rate),
        radius=None if parameters.radius is None else float(parameters.radius),
        seed_bits=parameters.seed_bits,
        minimum=minimum,
        odds=response_within(parameters.epsilon),
        epsilon=epsilon,
        delta=parameters.delta,
        stream_epsilon=max(epsilon, stream_epsilon),
    )


def epsilon_with(law: LdpSgdLaw, honest: int) -> float:
    return amplified_epsilon(of_any_randomizer(law.report_epsilon), honest, law.delta, law.reports)
