"""The plot of an audit: what was claimed beside what was observed, attack by attack."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.audit.audits import Audit
from pipeline.audit.findings import Finding, Verdict
from pipeline.plots import INSTALL, PlotError, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BLUE, _VERMILION, _GREY = "#0072B2", "#D55E00", "#999999"
# Inches a row; a picture is legible up to so many of them.
_ROW, _MOST_ROWS = 0.22, 120


def write_audit_plot(found: Audit, path: Path) -> None:
    """Draw an audit into a PNG file; see `draw_audit`."""
    save_figure(draw_audit(found.findings), path)


def draw_audit(findings: Sequence[Finding]) -> Figure:
    """Draw the claimed epsilon of every attack that is about one, and the largest observed.

    Raises:
        PlotError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PlotError(f"no plot without matplotlib: {INSTALL}") from None
    shown = [finding for finding in findings if finding.claimed is not None][:_MOST_ROWS]
    claimed = np.array([finding.claimed for finding in shown], np.float64)
    observed = np.array([finding.observed or 0.0 for finding in shown], np.float64)
    # What has no bound ends at the edge.
    finite = observed[np.isfinite(observed)]
    edge = 1.15 * float(np.concatenate([claimed, finite]).max(initial=0.1))
    rows = np.arange(len(shown))[::-1]
    figure = Figure(figsize=(10, 1.6 + _ROW * max(len(shown), 4)), layout="constrained")
    axes = figure.add_subplot()
    for verdict, colour, label in (
        (Verdict.EXACT, _BLUE, "lost, exactly"),
        (Verdict.CONSISTENT, _GREY, "lost at least, by samples"),
        (Verdict.CONVICTED, _VERMILION, "lost at least, and more than claimed"),
    ):
        of_verdict = np.array([finding.verdict is verdict for finding in shown], np.bool_)
        if of_verdict.any():
            lengths = np.minimum(observed[of_verdict], edge)
            axes.barh(rows[of_verdict], lengths, height=0.6, color=colour, label=label)
    axes.scatter(claimed, rows, marker="|", s=90, color="black", label="claimed", zorder=3)
    axes.set_yticks(rows, [f"{finding.subject}: {finding.attack}" for finding in shown], fontsize=7)
    axes.set_xlim(0, edge)
    axes.set_ylim(-1, len(shown))
    axes.set_xlabel("epsilon, with the delta that is claimed with it")
    axes.set_title("Privacy loss: claimed, and observed by attacks", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", frameon=False)
    return figure
