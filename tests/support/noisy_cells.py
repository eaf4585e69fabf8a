"""Protocol `cells` with shuffler dummies, a Poisson number per cell with mean 3."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dpstream.pipeline.protocols.protocol import Shuffling, StageDummies
from dpstream.randomizers.counted_words import CountedWords
from dpstream.randomizers.noise_tables import poisson_table
from dpstream.topics.word_forms import WordForm
from tests.support.cells import CELLS, CellsLaw

NAME = "noisy_cells"
MEAN = 3.0


def stage_dummies(law: CellsLaw) -> StageDummies:
    table = poisson_table(MEAN)

    def draw(epoch: int, generator: np.random.Generator) -> CountedWords:
        return CountedWords.of_cells(table.draw(law.cells, generator), np.dtype("<u2"))

    return draw


NOISY_CELLS = replace(
    CELLS,
    name=NAME,
    word_form=lambda law: WordForm(np.dtype("<u2"), distinct=law.cells),
    shuffling=Shuffling(
        lambda law, honest: math.inf,
        contributors=lambda law: None,
        capacity=lambda law, epoch, contributors: contributors,
        stage_dummies=stage_dummies,
    ),
)
