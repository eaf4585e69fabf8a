"""What Grafana is given is what the builder builds, and fits together."""

from __future__ import annotations

import json
import runpy
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

DOCKER = Path(__file__).parents[2] / "docker"
GRAFANA = DOCKER / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "dpstream.json").read_text())


def test_the_dashboard_is_the_one_that_is_built() -> None:
    built = runpy.run_path(str(GRAFANA / "build_dashboard.py"))["build_dashboard"]()
    assert built == DASHBOARD, "run python docker/grafana/build_dashboard.py"


def test_panels_ask_the_source_that_is_provisioned() -> None:
    path = GRAFANA / "provisioning" / "datasources" / "prometheus.yaml"
    (source,) = yaml.safe_load(path.read_text())["datasources"]
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    assert source["url"] == "http://prometheus:9090"
    assert compose["prometheus"]["ports"] == ["127.0.0.1:9090:9090"]
    for asking in [*DASHBOARD["panels"], *DASHBOARD["templating"]["list"]]:
        assert asking["datasource"] == {"type": source["type"], "uid": source["uid"]}


def test_the_dashboard_lies_where_grafana_reads_it() -> None:
    path = GRAFANA / "provisioning" / "dashboards" / "dashboards.yaml"
    (provider,) = yaml.safe_load(path.read_text())["providers"]
    grafana = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]["grafana"]
    folder = provider["options"]["path"]
    assert f"./grafana/dashboards:{folder}:ro" in grafana["volumes"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{folder}/dpstream.json"


def test_panels_do_not_overlap_and_say_what_they_show() -> None:
    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        columns, rows = range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        assert columns[-1] < 24
        return {(x, y) for x in columns for y in rows}

    for panel in DASHBOARD["panels"]:
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert all(target["expr"] and target["legendFormat"] for target in panel["targets"])
    assert not any(cells(a) & cells(b) for a, b in combinations(DASHBOARD["panels"], 2))
