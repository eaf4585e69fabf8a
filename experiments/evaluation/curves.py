"""Plot estimates over time with 95 % confidence bands and the ground truth, for seed 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpstream.pipeline.plots import INSTALL, PlotError, save_figure, tidy
from dpstream.pipeline.simulation.simulated_job import Simulation, simulate
from experiments.evaluation.columns import series_of
from experiments.evaluation.experiment import Case
from experiments.evaluation.plots import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_curves(cases: Sequence[Case], folder: Path) -> list[Path]:
    """Run each case with seed 1, plot it to a PNG file, and return the paths."""
    paths = []
    for number, case in enumerate(cases, start=1):
        figure = draw_curves(simulate(case.job, case.source.load(case.job), seed=1))
        title = f"{case.data}, {case.label}\n{str(case.job.guarantee).partition(';')[0]}"
        figure.axes[0].set_title(title, loc="left", fontsize=11)
        paths.append(folder / (f"curves-{number}.png" if len(cases) > 1 else "curves.png"))
        save_figure(figure, paths[-1])
    return paths


def draw_curves(simulation: Simulation) -> Figure:
    """Plot a run; of many items, plot those with the most users on average."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import StrMethodFormatter
    except ImportError:
        raise PlotError(f"no plots without matplotlib: {INSTALL}") from None
    series = series_of(simulation, "online")
    epochs = np.arange(1, len(simulation.ground_truth))
    labels = simulation.job.domain.items or ("users with value 1",)
    ground_truth, values, low, high = (
        array.reshape(len(epochs), -1)
        for array in (simulation.ground_truth[1:], series.values, series.low, series.high)
    )
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    axes = figure.add_subplot()
    largest = np.argsort(-ground_truth.mean(axis=0), kind="stable")[: len(COLORS)]
    for item, color in zip(np.sort(largest).tolist(), COLORS, strict=False):
        axes.fill_between(epochs, low[:, item], high[:, item], color=color, alpha=0.2, linewidth=0)
        axes.plot(epochs, values[:, item], color=color, linewidth=1.4, label=labels[item])
        axes.plot(epochs, ground_truth[:, item], color=color, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.plot([], [], color="#555555", linewidth=1.2, linestyle=(0, (4, 2)), label="ground truth")
    axes.fill_between([], [], [], color="#555555", alpha=0.2, label="95 % interval")
    axes.set_xlabel("epoch")
    axes.set_ylabel("users")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.margins(x=0.01)
    tidy(axes)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure
