"""Test the live page's API for jobs with measures."""

from __future__ import annotations

import math

import pytest

from dpstream.aggregators.panel_estimates import SMALL_GROUP
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from tests.support.live_page import deploy_text, live_page, publish
from tests.support.memory_cluster import MemoryCluster
from tests.support.shown_jobs import CELLS, MEASURED, items, panels

PATH = "/api/jobs/app"


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


def deploy(cluster: MemoryCluster) -> DeployedJob:
    job = deploy_text(cluster, MEASURED, b"a" * 16)
    values = {"wau": 300.0, "wau: platform=ios": 200.0, "wau: platform=web": math.nan}
    publish(cluster, job, 1, panels(job, values, SMALL_GROUP))
    publish(cluster, job, 2, panels(job, {**values, "wau": 320.0, "minutes": 14.5}))
    return job


async def test_job_describes_its_measures_and_breakdowns(cluster: MemoryCluster) -> None:
    deploy(cluster)
    async with live_page(cluster) as page:
        body = await page.get(PATH)
    wau, mau, minutes = body["measures"]
    assert wau == {
        "name": "wau",
        "label": "users who were active",
        "type": "active",
        "within": 1,
        "statistic": "count",
        "unit": "users",
        "values": [],
    }
    assert (mau["within"], mau["label"]) == (4, "users who were active within 4 weeks")
    assert (minutes["statistic"], minutes["unit"]) == ("mean", "value")
    assert body["by"][1] == {
        "attributes": ["platform", "plan"],
        "values": {
            "platform": ["ios", "android", "web", "other"],
            "plan": ["free", "pro", "other"],
        },
        "public": True,
    }
    assert body["ratios"] == [{"name": "stickiness", "numerator": "wau", "denominator": "mau"}]
    assert body["chosen"] == ["1"]
    assert body["partial"] == "The first 3 weeks of mau cover less than 4 weeks of events."
    assert body["series"][1] == {
        "id": "2",
        "label": "wau: platform=ios",
        "unit": "users",
        "measure": "wau",
        "labels": {"platform": "ios"},
        "answer": None,
    }


async def test_curves_are_selected_by_measure_and_attributes(cluster: MemoryCluster) -> None:
    deploy(cluster)
    async with live_page(cluster) as page:
        body = await page.get(f"{PATH}/curve?by=platform")
        assert [each["labels"]["platform"] for each in body["series"]] == [
            *("ios", "android", "web", "other")
        ]
        ios, _, web, _ = body["series"]
        assert ios["value"] == [200.0, 200.0]
        # Counts of a group are clipped to its size.
        assert ios["population"] == [500, 500]
        assert web["value"] == [None, None]
        (total,) = (await page.get(f"{PATH}/curve?measure=minutes"))["series"]
        assert (total["unit"], total["labels"], total["value"]) == ("value", {}, [0.0, 14.5])
        assert total["population"] is None
        query = f"{PATH}/curve?measure=minutes&statistic=total"
        (added,) = (await page.get(query))["series"]
        assert (added["label"], added["unit"]) == ("minutes, total", "value")
        assert added["value"] == [0.0, 14_500.0]
        ((low, high),) = zip(total["ci95_low"][1:], total["ci95_high"][1:], strict=True)
        ends = added["ci95_low"][1], added["ci95_high"][1]
        assert ends == pytest.approx((1_000 * low, 1_000 * high), abs=1)
        groups = (await page.get(f"{query}&by=platform"))["series"]
        assert [each["labels"]["platform"] for each in groups][:2] == ["ios", "android"]
        rows = (await page.get(f"{PATH}/table?measure=minutes&statistic=total"))["rows"]
        assert [row["series"][added["id"]][0] for row in rows] == [14_500.0, 0.0]
        body = await page.get(f"{PATH}/table?measure=mau&by=plan&where=platform=ios&limit=1")
        assert len(body["rows"][0]["series"]) == 3
        for query, why in (
            ("measure=dau", "measure: got 'dau'; expected one of: wau, mau, minutes"),
            ("by=plan", "by: got 'plan'; expected one of: platform; platform,plan"),
            ("where=ios", "where: got 'ios'; expected ATTRIBUTE=VALUE"),
            ("where=platform=tv", "expected one of: ios, android, web, other"),
            ("by=platform&series=1", "series cannot be combined"),
            ("measure=wau&statistic=total", "requires means of measures of type count or sum"),
            ("measure=minutes&statistic=total&change=1", "a total has no changes"),
            ("statistic=sum", "statistic: got 'sum'; expected published or total"),
        ):
            problem = await page.get(f"{PATH}/curve?{query}", 400)
            assert why in problem["error"]


async def test_periods_of_sums_are_those_of_means_per_user(cluster: MemoryCluster) -> None:
    deploy(cluster)
    period = "interval=2&aggregate=sum"
    async with live_page(cluster) as page:
        (total,) = (await page.get(f"{PATH}/curve?measure=minutes&{period}"))["series"]
        assert total["value"] == [14.5]
        problem = await page.get(f"{PATH}/curve?{period}", 404)
        assert "Declare a measure {type: active, within: 2}" in problem["error"]
        ids = [each["id"] for each in (await page.get(PATH))["series"] if each["measure"] == "wau"]
        sides = f"numerator={ids[1]}&denominator={ids[0]}"
        assert "counts users" in (await page.get(f"{PATH}/ratio?{sides}&{period}", 404))["error"]


async def test_sums_of_private_cells_have_intervals(cluster: MemoryCluster) -> None:
    """Each of the four cells with yes has an interval of 9.8, and their sum one of twice that."""
    job = deploy_text(cluster, CELLS, b"r" * 16)
    publish(cluster, job, 1, items(*range(10, 90, 10)))
    path = "/api/jobs/retention/curve"
    async with live_page(cluster) as page:
        (total,) = (await page.get(path))["series"]
        assert total["value"] == [50.0 + 60 + 70 + 80]
        assert total["ci95_high"] == [260 + 2 * 9.8]
        body = await page.get(f"{path}?by=plan")
        assert [each["value"] for each in body["series"]] == [[50.0], [60.0], [70.0], [80.0]]
        (no,) = (await page.get(f"{path}?value=no"))["series"]
        assert (no["id"], no["value"]) == ("m1", [100.0])
        again = await page.get(f"{path}?series=m1")
        assert again["series"] == [no]
        assert "expected IDs" in (await page.get(f"{path}?series=9", 400))["error"]
