"""Test accounting as a library: its names, its import cost, and that devices do not import it."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from dpstream.randomizers import accounting
from dpstream.randomizers.accounting import amplified_epsilon, of_any_randomizer
from tests.support.pages import PAGES, Block
from tests.support.thinned import thinned

PAGE = PAGES["randomizers/accounting/README.md"]


@pytest.mark.parametrize("name", accounting.PUBLIC)
def test_public_names_are_those_of_their_modules(name: str) -> None:
    module = import_module(f"dpstream.randomizers.accounting.{accounting.PUBLIC[name]}")
    assert getattr(accounting, name) is getattr(module, name)
    assert getattr(module, name).__doc__


def test_other_names_are_invalid() -> None:
    with pytest.raises(AttributeError, match="no attribute 'epsilon'"):
        _ = accounting.epsilon


def test_importing_it_loads_nothing() -> None:
    program = (
        "import sys; import dpstream.randomizers.accounting; assert not {'numpy', 'scipy', "
        "'dp_accounting'} & set(sys.modules); from dpstream.randomizers.accounting import "
        "losses_of; assert 'dp_accounting' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("block", thinned(list(PAGE.blocks)), ids=["numbers", "events"])
def test_the_examples_of_its_page_hold(block: Block) -> None:
    assert block.language == "python"
    subprocess.run([sys.executable, "-c", block.text], check=True)


def test_the_figures_of_its_page_are_those_that_are_computed() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.text.splitlines() if line.startswith("| 1")]
    assert len(rows) == 3
    for users, *figures in rows:
        for loss, figure in zip((0.5, 1, 2, 4, 8), figures, strict=True):
            found = amplified_epsilon(of_any_randomizer(loss), int(users.replace(",", "")), 1e-6)
            assert found == pytest.approx(float(figure), rel=1e-3, abs=5.1e-6)
