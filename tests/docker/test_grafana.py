"""Test that Grafana's files are identical to the builder's output."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

DOCKER = Path(__file__).parents[2] / "docker"
GRAFANA = DOCKER / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "dpstream.json").read_text())


def test_dashboard_file_matches_its_generator() -> None:
    built = runpy.run_path(str(GRAFANA / "build_dashboard.py"))["build_dashboard"]()
    assert built == DASHBOARD, "run python docker/grafana/build_dashboard.py"
