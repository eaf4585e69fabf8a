"""Privacy accounting: noise distributions, loss distributions, amplification and composition.

This code runs where a job is planned or deployed, never on a device. Calibrations of protocols call
it; it depends on no protocol. Start reading with `cell_noise` and `loss_distributions`. The package
can also be used as a library: README.md describes its use and the names to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpstream.randomizers.accounting.amplification import HiddenCoin as HiddenCoin
    from dpstream.randomizers.accounting.amplification import amplified_delta as amplified_delta
    from dpstream.randomizers.accounting.amplification import amplified_epsilon as amplified_epsilon
    from dpstream.randomizers.accounting.amplification import most_local_loss as most_local_loss
    from dpstream.randomizers.accounting.amplification import of_any_randomizer as of_any_randomizer
    from dpstream.randomizers.accounting.amplification import (
        of_randomized_response as of_randomized_response,
    )
    from dpstream.randomizers.accounting.connected_dots import laplace_losses as laplace_losses
    from dpstream.randomizers.accounting.connected_dots import normal_delta as normal_delta
    from dpstream.randomizers.accounting.connected_dots import normal_deviation as normal_deviation
    from dpstream.randomizers.accounting.connected_dots import normal_losses as normal_losses
    from dpstream.randomizers.accounting.dp_accounting_events import losses_of as losses_of
    from dpstream.randomizers.accounting.dp_accounting_events import (
        to_dp_accounting as to_dp_accounting,
    )
    from dpstream.randomizers.accounting.loss_distributions import (
        LossDistribution as LossDistribution,
    )
    from dpstream.randomizers.accounting.loss_distributions import Losses as Losses
    from dpstream.randomizers.accounting.loss_distributions import composed as composed
    from dpstream.randomizers.accounting.whole_streams import charged_once as charged_once
    from dpstream.randomizers.accounting.whole_streams import (
        epsilon_of_streams as epsilon_of_streams,
    )
    from dpstream.randomizers.accounting.whole_streams import (
        local_loss_of_streams as local_loss_of_streams,
    )
    from dpstream.randomizers.accounting.whole_streams import there_throughout as there_throughout

PUBLIC = {
    "HiddenCoin": "amplification",
    "amplified_delta": "amplification",
    "amplified_epsilon": "amplification",
    "most_local_loss": "amplification",
    "of_any_randomizer": "amplification",
    "of_randomized_response": "amplification",
    "laplace_losses": "connected_dots",
    "normal_losses": "connected_dots",
    "losses_of": "dp_accounting_events",
    "to_dp_accounting": "dp_accounting_events",
    "LossDistribution": "loss_distributions",
    "Losses": "loss_distributions",
    "composed": "loss_distributions",
    "normal_delta": "connected_dots",
    "normal_deviation": "connected_dots",
    "charged_once": "whole_streams",
    "epsilon_of_streams": "whole_streams",
    "local_loss_of_streams": "whole_streams",
    "there_throughout": "whole_streams",
}
"""Module of each name importable from this package; loaded on access to the name."""


def __getattr__(name: str) -> Any:
    if name in PUBLIC:
        return getattr(import_module(f"{__name__}.{PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
