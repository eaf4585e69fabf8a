"""What everything that draws has in common: Matplotlib, which need not be installed."""

from __future__ import annotations

from pipeline.errors import WRONG_INPUT, DpstreamError

INSTALL = "pip install 'dpstream[plot]'"


class PlotError(DpstreamError):
    """Matplotlib is not installed; the message says how to install it."""

    exit_code = WRONG_INPUT
