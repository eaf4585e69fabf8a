"""From the parameters of a job over a Laplace histogram to the constants its devices run on."""

from __future__ import annotations

from dpstream.randomizers.item_domains import domain_size
from dpstream.randomizers.laplace_histogram import LaplaceHistogramLaw, LaplaceHistogramParameters
from dpstream.randomizers.measurements.calibration import noise_of, with_noise
from dpstream.randomizers.public_matrices import OneHot


def calibrate(parameters: LaplaceHistogramParameters, last_epoch: int) -> LaplaceHistogramLaw:
    """The law of a job.

    Raises:
        ValueError: the domain is too large, or epsilon too small.

    >>> law = calibrate(LaplaceHistogramParameters(1.0, ("a", "b", "c"), "published"), 1)
    >>> round(law.epsilon, 6), round(law.noise.variance, 3)  # 2 q / (1 - q)^2 with q = 1/e
    (1.0, 1.841)
    """
    items = domain_size(parameters.domain)
    removal = parameters.calibration == "published"
    matrix = OneHot(items)
    ((cells, _),) = matrix.moved(removal=removal)
    spent = with_noise(
        matrix,
        noise_of(parameters.epsilon / cells),
        parameters.calibration,
        parameters.epsilon,
        0.0,
        last_epoch,
        removal=removal,
    )
    return LaplaceHistogramLaw(items=items, last_epoch=last_epoch, **spent)
