"""Test whether devices draw from the distribution on which their guarantee is based.

First whole histories of devices are compared with their exact probabilities, then single reports. A
correct distribution fails with a probability of at most `false_alarm`, by the binomial
distribution. If many devices report together and their reports do not identify them, the bound
follows from Bernstein's inequality.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpstream.pipeline.audit.audits import AuditOutcome, Finding
from dpstream.pipeline.audit.targets import draw_histories
from dpstream.pipeline.conformance.cases import (
    Case,
    Report,
    Stream,
    View,
    show_reports,
    show_values,
)
from dpstream.pipeline.conformance.checks import spread, window_seen

ATTACK = "draws compared with the mechanism"
# Maximum number of devices to run one by one if devices are also run together.
_ALONE = 200


def compare_draws(
    case: Case, rng: np.random.Generator, *, windows: int, together: int, false_alarm: float
) -> Finding:
    """Compare draws for a few streams with the mechanism, unless the shuffler sums the reports."""
    streams = spread(case.streams)
    many = together if case.exact.devices == 1 else 0
    windows = min(windows, _ALONE) if many else windows
    share = false_alarm / (2 * len(streams))
    reason, also = "", ""
    for stream in streams:
        # Each device is enrolled alone, because devices enrolled together might draw differently.
        drawn = Counter(window_seen(case, stream, rng) for _ in range(windows))
        reason = reason or _compared(case, stream, drawn, share)
        if not many:
            continue
        seen = _histories(case, stream, rng, many)
        if seen is None:
            also = f", and {many:,} devices at once"
            reason = reason or _together(case, stream, rng, many, share)
        else:
            also = f", and whole histories of {many:,} devices"
            reason = reason or _compared(case, stream, seen, share)
    return Finding(
        str(case),
        ATTACK,
        f"{windows:,} windows for each of {len(streams)} inputs{also}",
        AuditOutcome.FAILED if reason else AuditOutcome.CONSISTENT,
        false_alarm=false_alarm,
        reason=reason,
    )


def _histories(
    case: Case, stream: Stream, rng: np.random.Generator, devices: int
) -> Counter[View] | None:
    observations = draw_histories(
        case.protocol.randomizer(case.law),
        stream,
        devices,
        rng,
        one_each=case.protocol.shuffling is None,
    )
    if observations is None:
        return None
    found: Counter[View] = Counter()
    rows, times = np.unique(observations.codes, axis=0, return_counts=True)
    for row, often in zip(rows.tolist(), times.tolist(), strict=True):
        seen = (table[code] for table, code in zip(observations.tables, row, strict=True))
        found[tuple(tuple(message for message, _ in reports) for reports in seen)] += often
    return found


def _compared(case: Case, stream: Stream, seen: Counter[View], false_alarm: float) -> str:
    law, windows = case.views[stream], seen.total()
    for view, times in seen.items():
        if view not in law:
            return (
                f"sends {show_reports(view)} for {show_values(stream)} in {times} of {windows:,} "
                "windows; the mechanism never sends this"
            )
    views = list(law)
    shares = np.array([float(law[view]) for view in views])
    unlikely = _unlikely([seen[view] for view in views], shares, windows, false_alarm / 2)
    if unlikely is not None:
        view = views[unlikely]
        return _finding(show_reports(view), stream, seen[view], windows, shares[unlikely])
    return _one_by_one(
        stream, dict(zip(views, shares.tolist(), strict=True)), seen, false_alarm / 2
    )


def _one_by_one(
    stream: Stream, law: Mapping[View, float], seen: Counter[View], false_alarm: float
) -> str:
    """Compare reports one at a time, because most whole views are too rare to test."""
    windows = seen.total()
    lawful: defaultdict[tuple[int, Report, int], float] = defaultdict(float)
    found: Counter[tuple[int, Report, int]] = Counter()
    for view, share in law.items():
        for each in _reports_of(view):
            lawful[each] += share
            found[each] += seen[view]
    if not lawful:
        return ""
    shares = np.minimum(list(lawful.values()), 1.0)
    unlikely = _unlikely([found[each] for each in lawful], shares, windows, false_alarm)
    if unlikely is None:
        return ""
    epoch, report, least = each = list(lawful)[unlikely]
    sent = f"{report} at epoch {epoch} at least {least} times"
    return _finding(sent, stream, found[each], windows, shares[unlikely])


def _reports_of(view: View) -> Iterator[tuple[int, Report, int]]:
    for epoch, reports in enumerate(view, 1):
        for report, times in Counter(reports).items():
            yield from ((epoch, report, least) for least in range(1, times + 1))


def _unlikely(
    seen: Sequence[int], shares: NDArray[np.float64], windows: int, false_alarm: float
) -> int | None:
    doubt = 2 * np.minimum(
        stats.binom.cdf(seen, windows, shares),
        stats.binom.sf(np.subtract(seen, 1), windows, shares),
    )
    worst = int(np.argmin(doubt))
    return worst if doubt[worst] < false_alarm / len(shares) else None


def _finding(sent: str, stream: Stream, times: int, windows: int, share: float) -> str:
    return (
        f"sends {sent} for {show_values(stream)} in {times:,} of {windows:,} windows; the "
        f"mechanism sends it in about {share * windows:,.1f}"
    )


def _together(
    case: Case, stream: Stream, rng: np.random.Generator, devices: int, false_alarm: float
) -> str:
    values: NDArray[np.int8] = case.array_of(np.zeros((case.last_epoch, devices), np.intp))
    values[:] = np.array(stream, np.int8).reshape(case.last_epoch, 1, *values.shape[2:])
    for epoch, messages in enumerate(case.send(values, rng), 1):
        reports, counts = np.unique(messages, axis=0, return_counts=True)
        sent = dict(zip(map(tuple, reports.tolist()), counts.tolist(), strict=True))
        means: defaultdict[Report, float] = defaultdict(float)
        squares: defaultdict[Report, float] = defaultdict(float)
        most: defaultdict[Report, int] = defaultdict(int)
        for view, probability in case.views[stream].items():
            for report, times in Counter(view[epoch - 1]).items():
                means[report] += times * float(probability)
                squares[report] += times**2 * float(probability)
                most[report] = max(most[report], times)
        if unlawful := sent.keys() - means.keys():
            return (
                f"sends {unlawful.pop()} at epoch {epoch} for {show_values(stream)}; the "
                "mechanism never sends this"
            )
        bound = math.log(2 * max(1, len(means)) * case.last_epoch / false_alarm)
        for report, mean in means.items():
            off = abs(sent.get(report, 0) - devices * mean)
            variance = devices * max(0.0, squares[report] - mean**2)
            if off**2 > 2 * bound * (variance + most[report] * off / 3) and off > 1e-6:
                return (
                    f"sends {report} at epoch {epoch} {sent.get(report, 0):,} times for "
                    f"{devices:,} devices with {show_values(stream)}; the mechanism sends it "
                    f"about {devices * mean:,.0f} times"
                )
    return ""
