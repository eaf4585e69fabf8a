"""What ``dpstream produce`` says when it ends."""

from __future__ import annotations

from dpstream.pipeline.cli.output import plural, say, say_json
from dpstream.pipeline.devices.producer import Producer


def say_produced(
    producer: Producer, begun: int, last_epoch: int | None, strangers: int, as_json: bool
) -> None:
    """Say what a run has done."""
    if as_json:
        say_json(
            {
                "job": producer.job.name,
                "producer": producer.name,
                "users": len(producer.users),
                "strangers": strangers,
                "closed_before": begun,
                "closed_epoch": producer.closed_epoch,
                "frozen": producer.frozen,
            }
        )
    elif producer.closed_epoch == begun:
        finished = last_epoch is not None and begun >= last_epoch
        reason = "all of them were closed before" if finished else "the running one is not over"
        say(f"no epoch was closed: {reason}")
    else:
        first, last = map(producer.job.epochs.dated, (begun + 1, producer.closed_epoch))
        epochs = f"epoch {last}" if first == last else f"epochs {first} to {last}"
        say(f"{plural(len(producer.users), 'user')}, {epochs}: drawn and sent")
    if strangers and not as_json:
        say(f"{strangers_said(strangers)}; put them on the roster (--users) to enrol them")
    if producer.frozen and producer.job.change_limit is not None and not as_json:
        say(
            f"{plural(producer.frozen, 'device')} frozen, having changed more often than the job "
            "follows; nobody else is told: a job with more parameters.changes would follow them"
        )


def strangers_said(count: int) -> str:
    """Neither who they are nor what they hold, nor how often they have a row."""
    return f"{plural(count, 'stranger')} with rows, which are not used"
