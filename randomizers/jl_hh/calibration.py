"""From the parameters of a job over JL-HH to the constants its devices run on."""

from __future__ import annotations

from typing import Final

from dpstream.randomizers.item_domains import domain_size
from dpstream.randomizers.jl_hh import JlHhLaw, JlHhParameters
from dpstream.randomizers.measurements.calibration import published
from dpstream.randomizers.public_matrices import distinct_rows, size_for

MEASUREMENTS: Final = 256
"""Numbers of a report, unless a job says otherwise: collisions then are below the noise."""


def calibrate(parameters: JlHhParameters, last_epoch: int) -> JlHhLaw:
    """The law of a job.

    Raises:
        ValueError: the published noise loses more than epsilon.

    >>> labels = tuple(map(str, range(1000)))
    >>> law = calibrate(JlHhParameters(1.0, labels, calibration="published"), last_epoch=1)
    >>> law.neighbours, law.measurements, round(law.epsilon, 3), round(law.noise.variance / 256, 1)
    ('removal', 256, 0.509, 221.0)
    """
    items, size = domain_size(parameters.domain), size_for(domain_size(parameters.domain))
    usual = size if parameters.calibration == "sampled" else MEASUREMENTS
    measurements = min(size, parameters.measurements or usual)
    spent = published(
        distinct_rows(f"jl_hh of {items} items", items, measurements),
        parameters.calibration,
        parameters.epsilon,
        parameters.delta,
        last_epoch,
        removal=True,
    )
    return JlHhLaw(items=items, last_epoch=last_epoch, measurements=measurements, **spent)
