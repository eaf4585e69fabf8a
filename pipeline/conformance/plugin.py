"""Pytest plugin with the option that selects the protocol under test."""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    import pytest

OPTION = "--dpstream-protocol"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the option."""
    parser.getgroup("dpstream").addoption(
        OPTION,
        action="append",
        default=[],
        metavar="NAME",
        help="name of the protocol to check (with --pyargs dpstream.pipeline.conformance.suite)",
    )
