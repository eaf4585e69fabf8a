"""From the parameters of a job over sparse recovery to the constants its devices run on."""

from __future__ import annotations

import math

from dpstream.randomizers.item_domains import domain_size
from dpstream.randomizers.measurements.calibration import published
from dpstream.randomizers.public_matrices import SignedBuckets
from dpstream.randomizers.sparse_recovery import SparseRecoveryLaw, SparseRecoveryParameters


def calibrate(
    parameters: SparseRecoveryParameters, last_epoch: int, minimum: int
) -> SparseRecoveryLaw:
    """The law of a job.

    Args:
        parameters: of the job.
        last_epoch: number of epochs.
        minimum: fewest contributors, which the published sparsity is chosen for.

    Raises:
        ValueError: the published noise loses more than epsilon.

    >>> labels = tuple(map(str, range(16_470)))
    >>> law = calibrate(SparseRecoveryParameters(0.9, labels, calibration="published"), 1, 88_162)
    >>> law.buckets, law.matrix.measurements
    (3, 48)
    """
    items = domain_size(parameters.domain)
    sparsity = parameters.sparsity or published_sparsity(parameters, items, minimum)
    tests = SignedBuckets(items, 1, "").filled
    buckets = max(1, math.ceil(published_rows(sparsity, items) / tests))
    text = f"sparse_recovery of {items} items"
    spent = published(
        SignedBuckets(items, buckets, text),
        parameters.calibration,
        parameters.epsilon,
        parameters.delta,
        last_epoch,
        removal=True,
    )
    return SparseRecoveryLaw(items=items, last_epoch=last_epoch, buckets=buckets, **spent)


def published_sparsity(parameters: SparseRecoveryParameters, items: int, users: int) -> int:
    """((epsilon / ln(1/beta)) sqrt(n / (ln N ln(1/delta))))^(2/3), rounded up (Theorem 4.2).

    >>> asked = SparseRecoveryParameters(1.0, ("a",))
    >>> published_sparsity(asked, items=16_470, users=88_162)
    5
    """
    logs = math.log(max(2, items)) * math.log(1 / parameters.delta)
    share = parameters.epsilon / math.log(1 / parameters.beta)
    return math.ceil(float((share * math.sqrt(users / logs)) ** (2 / 3)))


def published_rows(sparsity: int, items: int) -> int:
    """M = s ln(N / s), rounded down; at least 1.

    >>> published_rows(5, 16_470)
    40
    """
    return max(1, math.floor(sparsity * math.log(max(1.0, items / sparsity))))
