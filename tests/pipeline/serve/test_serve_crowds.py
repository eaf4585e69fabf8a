"""The page of a job with crowds: each crowd with its items, and those withheld as gaps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.live_page import deploy_text, live_page, publish
from tests.support.memory_cluster import MemoryCluster
from tests.support.shown_jobs import CROWDS, crowds


async def test_a_crowd_and_its_items_are_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPSTREAM_HOME", str(tmp_path))
    cluster = MemoryCluster()
    job = deploy_text(cluster, CROWDS)
    publish(cluster, job, 1, crowds((40.0, 30.0, 5.0), None))
    publish(cluster, job, 2, crowds((50.0, 20.0, 6.0), (20.0, 9.0, 8.0)))

    async with live_page(cluster) as page:
        detail = await page.get("/api/jobs/themes")
        assert detail["domain"]["crowds"] == ["1.0", "2.0"]
        labels = [each["label"] for each in detail["series"]]
        assert labels == ["1.0", "1.0: dark", "1.0: light", "2.0", "2.0: dark", "2.0: light"]
        assert detail["headline"].startswith("1.0: dark: 20")
        assert any("any two crowds" in words for words in detail["guarantee_words"])
        rows = (await page.get("/api/jobs/themes/table?series=2,5"))["rows"]
        assert [row["series"]["2"][0] for row in rows] == [20.0, 30.0]
        assert [row["series"]["5"] and row["series"]["5"][0] for row in rows] == [9.0, None]
        assert [row["flags"] for row in rows] == [[], ["crowds-withheld"]]
        top = await page.get("/api/jobs/themes/top?epoch=2&count=2")
        assert [each["label"] for each in top["items"]] == ["1.0: dark", "2.0: dark"]
