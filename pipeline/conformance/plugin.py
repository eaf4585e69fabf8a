"""What pytest knows once dpstream is installed: which protocol its conformance suite looks at."""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    import pytest

OPTION = "--dpstream-protocol"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("dpstream").addoption(
        OPTION,
        action="append",
        default=[],
        metavar="NAME",
        help="with --pyargs dpstream.pipeline.conformance.suite: the protocol that is to be "
        "looked at",
    )
