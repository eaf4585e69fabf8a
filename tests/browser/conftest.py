"""Browser fixtures, and a server in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import chromium
from tests.support.served_page import ServedPage

artifacts, browser, watch = chromium.artifacts, chromium.browser, chromium.watch


@pytest.fixture
def served() -> Iterator[ServedPage]:
    with ServedPage() as page:
        yield page
