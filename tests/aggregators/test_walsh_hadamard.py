from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import hadamard

from dpstream.aggregators.hadamard_values import walsh_hadamard


@pytest.mark.parametrize("size", [1, 2, 4, 64, 1024])
def test_transform_is_the_product_with_the_hadamard_matrix(size: int) -> None:
    values = np.random.default_rng(size).normal(size=(3, 2, size))
    before = values.copy()
    assert walsh_hadamard(values) == pytest.approx(values @ hadamard(size))
    assert (values == before).all()
