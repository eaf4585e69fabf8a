"""Pytest suite; see `dpstream.pipeline.conformance` for its command line."""

from __future__ import annotations

import pytest

from dpstream.pipeline.conformance.cases import Case
from dpstream.pipeline.conformance.checks import CHECKS, Check
from dpstream.pipeline.conformance.finding import find_cases
from dpstream.pipeline.conformance.plugin import OPTION
from dpstream.pipeline.conformance.running import DoesNotConformError
from dpstream.pipeline.protocols.other_packages import ProtocolError


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize every check with every example of the named protocols."""
    cases, rejection = _cases(metafunc.config.getoption(OPTION))
    if rejection is not None:
        # Not a UsageError, which pytest would show with a traceback here.
        pytest.fail(rejection, pytrace=False)
    metafunc.parametrize("case", cases, ids=str)
    metafunc.parametrize("check", CHECKS, ids=lambda check: check.__name__)


def test_conformance(case: Case, check: Check) -> None:
    """Run one check and report a violation as one sentence."""
    try:
        check(case)
    except DoesNotConformError as error:
        pytest.fail(f"{case}: {error}", pytrace=False)


def _cases(names: list[str]) -> tuple[list[Case], str | None]:
    if not names:
        return [], f"no protocol to check was specified. Set {OPTION} NAME"
    try:
        return [case for name in names for case in find_cases(name)], None
    except ProtocolError as error:
        return [], str(error)
