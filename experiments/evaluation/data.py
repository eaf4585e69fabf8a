"""Inputs of an experiment: logs read from files, or changes drawn from a seed."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from dpstream.pipeline.devices.change_log import ChangeLog
from dpstream.pipeline.devices.item_log import ValueLog, load_job_log
from dpstream.pipeline.devices.rows import BadRows, BadRowsError, InputError
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.input_formats import AS_IT_IS, InputFormat
from experiments.evaluation.drawn_items import DrawnItems
from experiments.evaluation.images import image_log, is_image
from experiments.preparation import read_plain

MOST_CHANGES = 1 << 28
"""Maximum total number of synthetic users' changes; this many take several GiB."""

MOST_ITEMS = (1 << 24) + 1
"""Maximum size of a domain of sets, including the value 0; true counts take 128 MiB per epoch."""


@dataclass(frozen=True, slots=True)
class ChangeLogFile:
    """A change log, an item log or an image (PGM) in a file, plain or packed.

    Attributes:
        top_items: Publicly known maximum number of users per item and epoch, or None.
        input_format: Format of the rows.
    """

    path: str
    top_items: int | None = None
    input_format: InputFormat = field(default=AS_IT_IS, hash=False)

    @property
    def is_image(self) -> bool:
        """True if the file is an image, whose users have no names."""
        return is_image(read_plain(Path(self.path)))

    def load(self, job: DeployedJob) -> ValueLog:
        """Read the log for the job's protocol and epochs, or raise `InputError`."""
        try:
            contents = read_plain(Path(self.path))
        except (OSError, EOFError) as error:
            raise InputError(f"{self.path}: {error}") from None
        if is_image(contents):
            return image_log(contents, job.domain, self.path)
        try:
            return load_job_log(
                *(job, self.path),
                last_epoch=job.epochs.count,
                input_format=self.input_format,
            )
        except BadRowsError as error:
            # A measurement must use all rows.
            raise BadRowsError(error.bad_rows, skippable=False) from None

    def check(self, job: DeployedJob) -> tuple[str, ...]:
        """Return warnings about the input, or raise `InputError` if the job cannot use it."""
        if job.domain.slots is not None and job.domain.size > MOST_ITEMS:
            raise InputError(
                f"the domain has {job.domain.size - 1:,} items; experiments count each item, "
                f"and support at most {MOST_ITEMS - 1:,}"
            )
        return self.load(job).warnings

    def identity(self) -> dict[str, Any]:
        """Return the properties that results depend on: the contents, not the path."""
        with Path(self.path).open("rb") as file:
            contents = {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}
        return {
            **contents,
            **({} if self.top_items is None else {"top_items": self.top_items}),
            **(
                {}
                if self.input_format == AS_IT_IS
                else {"input": self.input_format.model_dump(mode="json")}
            ),
        }

    def __str__(self) -> str:
        return Path(self.path).name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class SyntheticChanges:
    """Users whose values change at uniformly random epochs.

    For each user, `changes` epochs are drawn; a user changes only once at an epoch drawn twice.
    Each user starts with the initial value. Values alternate between 0 and 1, or are items (or
    buckets of numbers) drawn uniformly each time, so that one can be drawn again.
    """

    users: int
    epochs: int
    changes: int
    seed: int

    def load(self, job: DeployedJob) -> ChangeLog:
        rng = np.random.default_rng([self.seed, self.users, self.epochs, self.changes])
        drawn = rng.integers(1, self.epochs + 1, (self.users, self.changes), dtype=np.int32)
        drawn.sort(axis=1)
        is_first = np.ones(drawn.shape, np.bool_)
        np.not_equal(drawn[:, 1:], drawn[:, :-1], out=is_first[:, 1:])
        if job.domain.items is None:
            values = (np.cumsum(is_first, axis=1, dtype=np.int32) & 1).astype(np.int8)
        else:
            values = rng.integers(1, job.domain.size, drawn.shape, dtype=np.int16)
        users = np.broadcast_to(np.arange(self.users, dtype=np.int32)[:, np.newaxis], drawn.shape)
        order = np.lexsort((users[is_first], drawn[is_first]))
        width = len(str(self.users - 1))
        return ChangeLog(
            users=tuple(f"{user:0{width}}" for user in range(self.users)),
            epochs=drawn[is_first][order],
            user_indices=users[is_first][order],
            values=values[is_first][order],
            last_epoch=self.epochs,
            initial=job.domain.initial,
            bad_rows=BadRows("synthetic"),
        )

    def check(self, job: DeployedJob) -> tuple[str, ...]:
        if job.domain.slots is not None or job.domain.columns is not None:
            raise InputError(
                f"{job.protocol} does not support synthetic data, whose values are 0 and 1, labels "
                "or numbers. Use a 'change_log' instead"
            )
        if self.users * max(self.changes, 1) > MOST_CHANGES:
            raise InputError(
                f"synthetic data of {self.users:,} users with up to {self.changes:,} changes "
                f"do not fit in memory: users times changes must be at most {MOST_CHANGES:,}"
            )
        return ()

    def identity(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return "synthetic"


Source: TypeAlias = ChangeLogFile | SyntheticChanges | DrawnItems
