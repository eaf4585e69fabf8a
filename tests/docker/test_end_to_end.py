"""Test the compose file in real containers, if podman is installed, and its image builds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker.end_to_end.__main__ import missing
from tests.docker.end_to_end.engine import Podman
from tests.docker.end_to_end.images import STAND_INS, image_names, make_images

ROOT = Path(__file__).parents[2]


class FakePodman(Podman):
    """Stand-in for podman that has some images and records builds."""

    def __init__(self, has: set[str]) -> None:
        self.has = has
        self.built: list[str] = []

    def works(self, *arguments: object) -> bool:
        *words, name = map(str, arguments)
        assert words == ["image", "exists"]
        return name in self.has

    def run(self, *arguments: object, stdin: object = None, timeout: float = 0) -> str:
        words = list(map(str, arguments))
        assert words[0] == "build"
        self.built.append(words[words.index("--tag") + 1])
        return ""


def test_every_image_of_the_compose_file_is_built(tmp_path: Path) -> None:
    images = set(image_names().values())
    bases = {"python:3.11-slim-bookworm", "debian:sid"}
    podman = FakePodman({f"localhost/{each}" for each in (images | bases) - {"dpstream"}})
    messages: list[str] = []
    make_images(podman, tmp_path, messages.append)
    named = {line.partition(": ")[0] for line in messages}
    assert named == images | bases
    # The project's image is always rebuilt, so that the current sources are tested.
    assert podman.built == ["localhost/dpstream"]
    assert [line for line in messages if "stand-in" not in line] == [
        "dpstream: built of docker/Dockerfile"
    ]
    podman.has -= {"localhost/grafana/grafana:12.1.0"}
    make_images(podman, tmp_path, messages.append)
    assert "localhost/grafana/grafana:12.1.0" in podman.built


def test_substitute_images_build_only_on_allowed_base_images() -> None:
    bases = {"python:3.11-slim-bookworm", "debian:sid"}
    for path in STAND_INS.rglob("*Dockerfile"):
        (line,) = (each for each in path.read_text().splitlines() if each.startswith("FROM "))
        assert line.removeprefix("FROM ") in bases


@pytest.mark.verify
@pytest.mark.timeout(3600)
def test_whole_stack_runs_in_containers() -> None:
    if why := missing():
        pytest.skip(why)
    done = subprocess.run([sys.executable, "-m", "tests.docker.end_to_end"], cwd=ROOT, check=False)
    assert done.returncode == 0
