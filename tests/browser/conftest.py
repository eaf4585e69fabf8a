"""The browser, and a server in this process that it looks at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import chromium
from tests.support.served_page import ServedPage

artefacts, browser, watch = chromium.artefacts, chromium.browser, chromium.watch


@pytest.fixture
def served() -> Iterator[ServedPage]:
    """A page without jobs."""
    with ServedPage() as page:
        yield page
