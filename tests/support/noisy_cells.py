"""Protocol `cells` with shuffler dummies: a Poisson number with mean 3 per cell."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dpstream.pipeline.protocols.protocol import Shuffling, StageDummies
from dpstream.randomizers.counted_messages import CountedMessages
from dpstream.randomizers.noise_tables import poisson_table
from dpstream.topics.message_formats import MessageFormat
from tests.support.cells import CELLS, CellsLaw

NAME = "noisy_cells"
MEAN = 3.0


def stage_dummies(law: CellsLaw) -> StageDummies:
    table = poisson_table(MEAN)

    def draw(epoch: int, generator: np.random.Generator) -> CountedMessages:
        return CountedMessages.of_cells(table.draw(law.cells, generator), np.dtype("<u2"))

    return draw


NOISY_CELLS = replace(
    CELLS,
    name=NAME,
    message_format=lambda law: MessageFormat(np.dtype("<u2"), distinct=law.cells),
    shuffling=Shuffling(
        lambda law, honest: math.inf,
        contributors=lambda law: None,
        capacity=lambda law, epoch, contributors: contributors,
        stage_dummies=stage_dummies,
    ),
)
