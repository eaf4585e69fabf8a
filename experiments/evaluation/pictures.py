"""Pictures of one run of a job over sets of items: estimates and ground truth.

* Items: bars of the largest items, and a scatter plot of all items.
* Numbers: their distribution, with quantiles and errors.
* Points in a plane: a map.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from dpstream.aggregators.estimate import NORMAL_95
from dpstream.aggregators.grid_counts import GridCounts
from dpstream.aggregators.quantiles import quantile
from dpstream.pipeline.devices.item_log import ItemLog
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.plots import new_figure, tidy
from dpstream.pipeline.values.value_domains import ValueDomain
from dpstream.pipeline.whole_files import replaced_whole
from experiments.evaluation.columns import Array
from experiments.evaluation.counted import CountedEpoch, counted_epochs
from experiments.evaluation.counted_answers import SHARES, item_intervals
from experiments.evaluation.experiment import Case
from experiments.evaluation.plots import COLORS

if TYPE_CHECKING:
    from matplotlib.colors import Colormap, PowerNorm
    from matplotlib.figure import Figure

_LISTED: Final = 20
_GROUND_TRUTH, _ESTIMATE = COLORS[1], COLORS[0]
_USERS: Final = "{x:,.0f}"
# Fraction of users at each end of a distribution, with rare values, that is not drawn.
_TAIL: Final = 0.002
_MOST_PIXELS: Final = 512
_COLORS_OF_A_MAP: Final = 24
_DOTS: Final = 110
_PALETTE: Final = 128
_DOTS_OF_MANY: Final = 72
_PALETTE_OF_MANY: Final = 8
"""Number of colors in a file of noisy maps, which keeps it at 100 to 250 kB."""
# Minimum number of maps of the same data to draw in one file.
_MANY_MAPS: Final = 3


def write_pictures(cases: Sequence[Case], folder: Path) -> list[Path]:
    """Run each case with seed 1, draw its last epoch to a PNG file, and return the paths.

    Many maps of the same data share a file, with a row per label, ordered by epsilon. Suppressed
    windows and items found in an open domain are not drawn.
    """
    drawn = {(case.data, _plane(case.job)) for case in cases}
    if len(cases) >= _MANY_MAPS and len(drawn) == 1 and _plane(cases[0].job) is not None:
        return [_write_maps(cases, folder / "picture.png")]
    paths = []
    for number, case in enumerate(cases, start=1):
        log, epoch = _last_epoch(case)
        if epoch.counts is None or epoch.counts.estimates.listed() is None:
            continue
        figure = draw_picture(case.job, epoch, case.axes)
        title = f"{case.data}, {case.label}: {len(log.users):,} users\n{_guarantee(case.job)}"
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        paths.append(folder / (f"picture-{number}.png" if len(cases) > 1 else "picture.png"))
        _save(figure, paths[-1])
    return paths


def draw_picture(job: DeployedJob, epoch: CountedEpoch, names: Sequence[str] = ()) -> Figure:
    """Draw the counts of a released epoch; `names` label the coordinates of a value."""
    figure = new_figure(10, 5.6, "plots")
    domain, grid = job.domain, _plane(job)
    tree = None if epoch.counts is None else epoch.counts.estimates.tree
    if grid is not None:
        figure.set_size_inches(11, 2.2 + 5.5 * min(0.9, grid[0] / grid[1]))
        figure.set_layout_engine("compressed")
        _draw_map(figure, epoch, grid, [*names, "first coordinate", "second coordinate"])
    elif tree is not None and domain.step is not None and domain.ends is not None:
        scale = domain.ends[0], domain.step
        _draw_distribution(figure, tree, epoch, scale, names[0] if names else "value")
    else:
        _draw_items(figure, epoch, domain, names[0] if names else "item")
    return figure


def _last_epoch(case: Case) -> tuple[ItemLog, CountedEpoch]:
    log = case.source.load(case.job)
    assert isinstance(log, ItemLog)
    return log, counted_epochs(case.job, log, seed=1)[-1]


def _plane(job: DeployedJob) -> tuple[int, int] | None:
    grid = job.domain.grid
    return (grid[0], grid[1]) if len(grid) == 2 else None


def _write_maps(cases: Sequence[Case], path: Path) -> Path:
    """Draw the ground truth, and below it a row of estimates per label, by epsilon."""
    labels = list(dict.fromkeys(case.label for case in cases))
    epsilons = sorted({case.epsilon or 0.0 for case in cases})
    grid = _plane(cases[0].job)
    assert grid is not None
    shape = (len(labels) + 1, len(epsilons))
    figure = new_figure(2.6 * shape[1], 0.6 + (0.4 + 2.4 * grid[0] / grid[1]) * shape[0], "plots")
    panels = figure.subplots(*shape, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    for case in cases:
        _, epoch = _last_epoch(case)
        if epoch.counts is None:
            continue
        norm = _scale(epoch.ground_truth.astype(np.float64))
        values = item_intervals(epoch.counts.estimates)[0]
        error = float(np.sqrt(np.square(values - epoch.ground_truth).mean()))
        title = f"{case.label}\nepsilon {case.epsilon or 0.0:g}, RMSE {error:,.1f}"
        place = labels.index(case.label) + 1, epsilons.index(case.epsilon or 0.0)
        for panel, cells, name in (
            (panels[0, 0], epoch.ground_truth, f"{case.data}, ground truth"),
            (panels[place], values, title),
        ):
            panel.imshow(_blocks_of(cells, grid), norm=norm, cmap=_colors())
            panel.set_title(name, loc="left", fontsize=8)
    _save(figure, path, dots=_DOTS_OF_MANY, palette=_PALETTE_OF_MANY)
    return path


def _save(figure: Figure, path: Path, dots: int = _DOTS, palette: int = _PALETTE) -> None:
    """Save the picture with a palette, because noise compresses badly in full color."""
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=dots)
    with replaced_whole(path) as part:
        Image.open(drawn).convert("RGB").quantize(palette).save(part, optimize=True)


def _guarantee(job: DeployedJob) -> str:
    return str(job.guarantee).partition(";")[0]


def _draw_items(figure: Figure, epoch: CountedEpoch, domain: ValueDomain, name: str) -> None:
    assert epoch.counts is not None
    values, lows, highs = item_intervals(epoch.counts.estimates)
    half_width = float(highs[0] - lows[0]) / 2
    largest = np.argsort(-values, kind="stable")[:_LISTED]
    listed, scattered = figure.subplots(1, 2, width_ratios=(1, 1.2))
    places = np.arange(len(largest))
    listed.barh(
        places,
        values[largest],
        xerr=half_width,
        color=COLORS[5],
        error_kw={"ecolor": _ESTIMATE, "capsize": 2, "linewidth": 1.2},
        label="estimate, 95 % interval",
    )
    listed.plot(
        epoch.ground_truth[largest],
        places,
        "|",
        color=_GROUND_TRUTH,
        markersize=12,
        label="ground truth",
    )
    listed.set_yticks(places, [domain.label(item + 1) for item in largest.tolist()], fontsize=9)
    listed.invert_yaxis()
    for place, item in enumerate(largest.tolist()):
        listed.annotate(
            f"{values[item] - epoch.ground_truth[item]:+,.0f}",
            (max(values[item], 0.0), place),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    listed.margins(x=0.12)
    listed.locator_params(axis="x", nbins=5)
    listed.set_xlabel(
        f"users; next to each bar: estimate - ground truth; interval ± {half_width:,.0f}"
    )
    listed.set_ylabel(name)
    listed.set_title(f"the {len(largest)} largest estimates", loc="left", fontsize=10)
    listed.legend(frameon=False, fontsize=9, loc="lower right")

    linear = 10.0 ** np.ceil(np.log10(max(half_width, 1.0)))
    scattered.plot(
        epoch.ground_truth,
        values,
        ".",
        color=_ESTIMATE,
        markersize=3,
        alpha=0.3,
        label=f"one {name}",
    )
    line = np.concatenate(
        [[0.0], np.geomspace(0.1, max(1.0, float(epoch.ground_truth.max())), 200)]
    )
    scattered.plot(line, line, color=_GROUND_TRUTH, linewidth=1.2, label="ground truth")
    scattered.fill_between(
        line,
        line - half_width,
        line + half_width,
        color=COLORS[4],
        alpha=0.35,
        linewidth=0,
        zorder=3,
        label="ground truth ± the interval",
    )
    for set_scale in (scattered.set_xscale, scattered.set_yscale):
        set_scale("symlog", linthresh=linear)
    scattered.set_xlabel("users, ground truth")
    scattered.set_ylabel("users, estimate")
    scattered.set_title(
        f"all {len(values):,}; logarithmic beyond ± {linear:,.0f}", loc="left", fontsize=10
    )
    scattered.legend(frameon=False, fontsize=9, loc="upper left", markerscale=3)
    listed.xaxis.set_major_formatter(_USERS)
    for axes in (scattered.xaxis, scattered.yaxis):
        axes.set_major_formatter(_USERS)
    tidy(listed)
    tidy(scattered)


def _draw_distribution(
    figure: Figure, grid: GridCounts, epoch: CountedEpoch, scale: tuple[float, float], name: str
) -> None:
    """Draw the estimated and true numbers of users below each edge, and their differences."""
    lowest, width = scale
    ends = lowest + width * np.arange(len(epoch.ground_truth) + 1)
    ground_truth = np.insert(np.cumsum(epoch.ground_truth), 0, 0)
    estimates, deviations = grid.cumulative()
    margin = NORMAL_95 * deviations
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.6, 1))
    upper.plot(ends, estimates, color=_ESTIMATE, linewidth=2.4, label="estimate")
    upper.plot(
        ends,
        ground_truth,
        color=_GROUND_TRUTH,
        linewidth=1.2,
        linestyle=(0, (4, 3)),
        label="ground truth",
    )
    for share in SHARES:
        found = quantile(grid, share)
        middle, low, high = (
            lowest + width * (each + 0.5) for each in (found.value, found.ci95_low, found.ci95_high)
        )
        true = lowest + width * (np.searchsorted(ground_truth, share * ground_truth[-1]) - 0.5)
        upper.errorbar(
            middle,
            share * float(estimates[-1]),
            xerr=[[middle - low], [high - middle]],
            fmt="o",
            color=_ESTIMATE,
            markersize=5,
            capsize=3,
            label="quantiles .1 to .9, estimated" if share == SHARES[0] else None,
        )
        upper.plot(
            true,
            share * float(ground_truth[-1]),
            "x",
            color=_GROUND_TRUTH,
            markersize=9,
            label="quantiles, ground truth" if share == SHARES[0] else None,
        )
    upper.set_ylabel("users with smaller values")
    upper.yaxis.set_major_formatter(_USERS)
    upper.legend(frameon=False, fontsize=9, loc="lower right")
    lower.fill_between(
        ends, -margin, margin, color=COLORS[4], alpha=0.35, linewidth=0, label="95 % interval"
    )
    lower.plot(
        ends,
        estimates - ground_truth,
        color=_ESTIMATE,
        linewidth=1.0,
        label="estimate - ground truth",
    )
    lower.axhline(0, color=_GROUND_TRUTH, linewidth=1.2, linestyle=(0, (4, 3)))
    lower.set_ylabel("error, users")
    lower.set_xlabel(name)
    lower.yaxis.set_major_formatter(_USERS)
    lower.legend(frameon=False, fontsize=9, loc="lower right", ncols=2)
    first, last = np.searchsorted(
        ground_truth, [_TAIL * ground_truth[-1], (1 - _TAIL) * ground_truth[-1]]
    )
    seen = slice(max(0, first - 1), last + 1)
    lower.set_xlim(ends[seen][0], ends[seen][-1])
    most = max(np.abs(estimates - ground_truth)[seen].max(), margin[seen].max())
    # Space for the legend below.
    lower.set_ylim(-1.9 * most, 1.2 * most)
    tidy(upper)
    tidy(lower)


def _draw_map(
    figure: Figure, epoch: CountedEpoch, grid: tuple[int, ...], names: Sequence[str]
) -> None:
    """Draw the ground truth and the estimates side by side on one color scale."""
    assert epoch.counts is not None
    step = _step(grid)
    before = _blocks_of(epoch.ground_truth, grid)
    after = _blocks_of(item_intervals(epoch.counts.estimates)[0], grid)
    norm = _scale(before)
    drawn = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, cells, title in zip(
        drawn, (before, after), ("ground truth", "estimate"), strict=True
    ):
        image = axes.imshow(
            cells,
            norm=norm,
            cmap=_colors(),
            interpolation="nearest",
            extent=(-0.5, grid[1] - 0.5, grid[0] - 0.5, -0.5),
        )
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel(names[1])
    drawn[0].set_ylabel(names[0])
    of = "a point" if step == 1 else f"{step} x {step} points"
    figure.colorbar(
        image,
        ax=drawn,
        location="bottom",
        extend="max",
        shrink=0.5,
        aspect=40,
        label=f"users at {of}; estimates below 0 are drawn as 0",
    )


def _step(grid: tuple[int, ...]) -> int:
    return -(-max(grid) // _MOST_PIXELS)


def _blocks_of(users: NDArray[np.integer] | Array, grid: tuple[int, ...]) -> Array:
    """Return users per pixel, at least 0: sums over squares; incomplete squares are dropped."""
    step = _step(grid)
    rows, columns = (size // step for size in grid)
    cells = users.astype(np.float64).reshape(grid)[: rows * step, : columns * step]
    squares = cells.reshape(rows, step, columns, step)
    return np.asarray(np.maximum(squares.sum(axis=(1, 3)), 0.0))


def _scale(before: Array) -> PowerNorm:
    """Return a color scale that a few points with most of the users cannot dominate."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, 0.0, float(np.quantile(before[before > 0], 0.995)))


def _colors() -> Colormap:
    """Return a color map with distinguishable colors."""
    from matplotlib import colormaps

    return colormaps["cividis"].resampled(_COLORS_OF_A_MAP)
