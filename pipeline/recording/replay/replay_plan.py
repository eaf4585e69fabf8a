"""Choose the epochs that a replay reads and writes, and check that their inputs exist."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.replays import ReplayError
from dpstream.pipeline.recording.replay.sources import ReplaySource, Stored, in_words
from dpstream.pipeline.values.times import iso
from dpstream.topics.manifests import Manifest, WindowStatus


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """Requested epochs of a replay, from `from_epoch`, or from those finalized at `from_time` (ms).

    With `from_partials`, estimates come from the recorded counts: no window is aggregated again.
    """

    from_epoch: int | None = None
    from_time: int | None = None
    to_epoch: int | None = None
    from_partials: bool = False


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """Work for a replay, with the number of `windows` to aggregate and of `partials` to copy.

    Attributes:
        begins: First epoch of the original job.
        first: First epoch of the replay. If estimates depend on all earlier epochs of their
            horizon, this is the first epoch of a horizon.
        windows_from: First epoch whose window is aggregated; earlier partials are copied.
        suppressed: Number of epochs that were not released, and that therefore stay suppressed.
    """

    begins: int
    first: int
    windows_from: int
    last: int
    windows: int
    copied: int
    suppressed: int
    stored: Stored

    @property
    def epochs(self) -> int:
        return self.last - self.first + 1

    def items(self, source: ReplaySource) -> Iterator[tuple[Manifest, bytes | None]]:
        """Yield every epoch's manifest, in order, and the epoch's partial if it is copied."""
        payloads = source.payloads(self.first, min(self.windows_from - 1, self.last))
        for manifest in source.manifests():
            if manifest.epoch > self.last:
                return
            if manifest.epoch < self.first:
                continue
            payload = None
            if (
                manifest.epoch < self.windows_from
                and manifest.window_status is WindowStatus.RELEASED
            ):
                epoch, payload = next(payloads, (None, b""))
                if epoch != manifest.epoch:
                    raise ReplayError(
                        f"{source.place} has no partial for {in_words([manifest.epoch])}"
                    )
            yield manifest, payload


@dataclass(frozen=True, slots=True)
class _Decided:
    epoch: int
    released: bool
    timestamp: int


def plan_replay(source: ReplaySource, replay_range: ReplayRange) -> ReplayPlan:
    """Choose the epochs; raise `ReplayError`, which lists alternatives, if input is missing."""
    decided: list[_Decided] = []
    begins = 1
    for manifest in source.manifests():
        begins = manifest.first_epoch if not decided else begins
        decided.append(
            _Decided(
                manifest.epoch, manifest.window_status is WindowStatus.RELEASED, manifest.timestamp
            )
        )
    if not decided:
        raise ReplayError(f"no epoch is finalized in {source.place}: there is nothing to replay")
    start = _start(source, decided, replay_range)
    first = start
    if not source.job.protocol_entry.per_epoch:
        first = max(begins, source.job.epochs.horizon_of(start) * source.job.epochs.count + 1)
    if first < decided[0].epoch:
        raise ReplayError(
            f"{in_words(range(first, decided[0].epoch))} are not in {source.place}, but "
            f"estimates from epoch {start:,} depend on them: replay a source that contains them"
        )
    chosen = [each for each in decided if each.epoch >= first]
    last = _last(source, chosen, start, replay_range)
    windows_from = last + 1 if replay_range.from_partials else start
    chosen = [each for each in chosen if each.epoch <= last]
    released = [each.epoch for each in chosen if each.released]
    copied = [epoch for epoch in released if epoch < windows_from]
    again = released[len(copied) :]
    _check_partials(source, copied)
    _check_windows(source, again)
    return ReplayPlan(
        begins=begins,
        first=first,
        windows_from=windows_from,
        last=last,
        windows=len(again),
        copied=len(copied),
        suppressed=len(chosen) - len(released),
        stored=source.stored(again),
    )


def _start(source: ReplaySource, decided: list[_Decided], replay_range: ReplayRange) -> int:
    last = decided[-1]
    if replay_range.from_time is not None:
        for each in decided:
            if each.timestamp >= replay_range.from_time:
                return each.epoch
        moment = iso(max(each.timestamp for each in decided))
        raise ReplayError(
            f"no epoch of {source.place} was finalized at {iso(replay_range.from_time)} or later: "
            f"the latest epoch was finalized at {moment}"
        )
    if replay_range.from_epoch is None:
        return decided[0].epoch
    if replay_range.from_epoch > last.epoch:
        raise ReplayError(
            f"epoch {replay_range.from_epoch:,} is not finalized in {source.place}: the last "
            f"finalized epoch is {last.epoch:,}"
        )
    return max(replay_range.from_epoch, decided[0].epoch)


def _last(
    source: ReplaySource, decided: list[_Decided], start: int, replay_range: ReplayRange
) -> int:
    last_decided = decided[0].epoch - 1
    for each in decided:
        whole = (
            not replay_range.from_partials and each.epoch >= start and source.has_window(each.epoch)
        )
        if each.released and not whole and not source.has_partial(each.epoch):
            break
        last_decided = each.epoch
    last = last_decided if replay_range.to_epoch is None else replay_range.to_epoch
    if replay_range.to_epoch is not None and last < start:
        raise ReplayError(f"epoch {last:,} is before the first epoch to replay, {start:,}")
    if not start <= last <= last_decided:
        finished = (
            f"the last finished epoch is {last_decided:,}"
            if last_decided >= decided[0].epoch
            else "no epoch is finished"
        )
        raise ReplayError(
            f"epoch {max(start, last):,} is not finished in {source.place}: {finished}"
        )
    return last


def _check_partials(source: ReplaySource, copied: list[int]) -> None:
    missing = [epoch for epoch in copied if not source.has_partial(epoch)]
    if missing:
        raise ReplayError(
            f"the partials of {in_words(missing)} are not in {source.place}, but later estimates "
            "depend on them: replay a recording that contains them"
        )


def _check_windows(source: ReplaySource, again: list[int]) -> None:
    missing = [epoch for epoch in again if not source.has_window(epoch)]
    if not missing:
        return
    possible = ["replay a recording that contains them"]
    if again[-1] > missing[-1]:
        possible.append(f"--from-epoch {missing[-1] + 1}")
    if all(map(source.has_partial, missing)):
        possible.append("use --from-partials, which estimates again from the counts")
    raise ReplayError(
        f"the windows of {in_words(missing)} are no longer in {source.place} "
        f"({_retention(source.job)}): {', or '.join(possible)}"
    )


def _retention(job: DeployedJob) -> str:
    hours = job.topics.retention / 3600
    after = f"{hours / 24:,.3g} days" if hours >= 48 else f"{hours:,.3g} hours"
    return f"retention deletes them after {after}"
