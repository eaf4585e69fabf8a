"""Test accounting as a library: public names, import cost, and examples of its page."""

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
def test_package_exports_the_objects_of_its_modules(name: str) -> None:
    module = import_module(f"dpstream.randomizers.accounting.{accounting.PUBLIC[name]}")
    assert getattr(accounting, name) is getattr(module, name)
    assert getattr(module, name).__doc__


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'epsilon'"):
        _ = accounting.epsilon


def test_import_does_not_load_numpy_scipy_or_dp_accounting() -> None:
    program = (
        "import sys; import dpstream.randomizers.accounting; assert not {'numpy', 'scipy', "
        "'dp_accounting'} & set(sys.modules); from dpstream.randomizers.accounting import "
        "losses_of; assert 'dp_accounting' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("block", thinned(list(PAGE.blocks)), ids=["numbers", "events"])
def test_examples_on_the_accounting_page_run(block: Block) -> None:
    assert block.language == "python"
    subprocess.run([sys.executable, "-c", block.text], check=True)


def test_table_on_the_accounting_page_matches_computed_losses() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.text.splitlines() if line.startswith("| 1")]
    assert len(rows) == 3
    for users, *figures in rows:
        for loss, figure in zip((0.5, 1, 2, 4, 8), figures, strict=True):
            found = amplified_epsilon(of_any_randomizer(loss), int(users.replace(",", "")), 1e-6)
            assert found == pytest.approx(float(figure), rel=1e-3, abs=5.1e-6)
