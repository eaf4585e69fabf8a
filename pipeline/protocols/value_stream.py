"""value_stream: one byte an epoch, counts with half the error. Its entry and its forecast."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.changes import FollowedChanges
from dpstream.aggregators.freezing import FreezingModel
from dpstream.aggregators.value_stream import ValueStreamAggregator, received_errors
from dpstream.pipeline.protocols.boolean_alternatives import alternatives
from dpstream.pipeline.protocols.change_limits import change_limit
from dpstream.pipeline.protocols.late_calibration import late_calibration
from dpstream.pipeline.protocols.protocol import Example, Protocol, fixed_words
from dpstream.randomizers.change_kernel import Kernel
from dpstream.randomizers.value_stream import ValueStream, ValueStreamLaw, ValueStreamParameters


class ValueStreamForecast:
    """A letter of every device at every epoch.

    Args:
        law: the constants of the job.
        last_epoch: at most the law's last.
    """

    def __init__(self, law: ValueStreamLaw, last_epoch: int) -> None:
        self._law, self._last_epoch = law, last_epoch
        self._kernel = Kernel(law.boost, law.decay)
        self.reports_per_user = np.ones(last_epoch)
        self.constants = (
            {
                "epochs": law.last_epoch,
                "changes": law.changes,
                "boost": law.boost,
                "decay": law.decay,
                "clock": law.clock,
                "gain": law.gain,
                "noise": law.probability_of_noise,
                "epsilon": law.loss,
            },
        )
        self.caveats = (unboosted_caveat(self._kernel, law.changes),) if law.boost else ()

    def standard_deviations(self, users: int) -> NDArray[np.float64]:
        """Of the estimates, in users, shape (epochs,)."""
        unit = self._law.clock / self._law.gain**2
        return np.sqrt(users * unit * self._kernel.variances(self._last_epoch))

    def smoothed_standard_deviations(self, users: int) -> NDArray[np.float64]:
        """The same: later letters add nothing to the estimate of an epoch."""
        return self.standard_deviations(users)

    def freezing_bias(self, model: FreezingModel) -> NDArray[np.float64]:
        """Expected estimate minus truth for one user, shape (epochs,)."""
        return bias_of_unboosted(self._kernel, self._law.changes, model)


def unboosted_caveat(kernel: Kernel, changes: int) -> str:
    """What to know of changes that are followed without a boost."""
    return (
        f"changes of a user past the first {changes} are not boosted, nor are those made "
        f"while its value was not known: the share {kernel.left:.3f}^m of one is missing m epochs "
        "later, which biases the estimates and is not in the predicted errors"
    )


def bias_of_unboosted(kernel: Kernel, changes: int, model: FreezingModel) -> NDArray[np.float64]:
    """Expected estimate minus truth for one user, shape (epochs,): of changes past the first."""
    own, bias, biases = 1 / (1 + kernel.boost), 0.0, []
    # By epoch, what changes that are not boosted add up to.
    for unboosted in np.diff(model.missed(order=0, signs=changes)).tolist():
        bias = kernel.left * bias - kernel.boost * own * unboosted
        biases.append(bias)
    return np.array(biases)


def _changes(law: ValueStreamLaw, asked: ValueStreamParameters, lag: int) -> FollowedChanges:
    """Errors of changes, exactly."""
    return FollowedChanges(Kernel(law.boost, law.decay), partial(received_errors, law), lag)


PROTOCOL = Protocol(
    name="value_stream",
    parameters=ValueStreamParameters,
    calibrate=late_calibration("value_stream"),
    law=lambda asked: ValueStreamLaw,
    randomizer=ValueStream,
    restore=ValueStream.restore,
    aggregator=lambda law, asked: ValueStreamAggregator(law),
    aggregator_from_bytes=lambda law, asked, data: ValueStreamAggregator.from_bytes(law, data),
    word_form=fixed_words(ValueStream),
    needs_shuffle=False,
    loss_of_streams=True,
    changes=_changes,
    change_limit=lambda law, asked, epochs: change_limit(
        asked.changes, epochs, "delayed", boost=law.boost
    ),
    forecast=lambda law, asked, last_epoch: ValueStreamForecast(law, last_epoch),
    alternatives=alternatives,
    examples=(
        Example(ValueStreamParameters(2.0, 1), 1),
        Example(ValueStreamParameters(2.0, 2), 2),
    ),
)
