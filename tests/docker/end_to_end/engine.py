"""Run podman with separate storage, networks and settings, without touching any others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

COMPOSE: Final = Path(__file__).parents[3] / "docker" / "compose.yaml"
PROJECT: Final = "dpstream"
_TIMEOUT: Final = 3600.0
_ROUNDS: Final = 20
# Some kernels and outer containers reject podman's defaults: crun's cgroups, and limits above the
# outer limits.
_SETTINGS: Final = """\
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "{folder}/libpod"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""
_STORAGE: Final = """\
[storage]
driver = "overlay"
graphroot = "{folder}/storage"
runroot = "{folder}/run"
"""


class EndToEndError(Exception):
    """A check has failed; the message gives the reason."""


class Podman:
    """Run podman and podman-compose, with images, volumes and networks in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "networks").mkdir(exist_ok=True)
        for name, text in (("containers.conf", _SETTINGS), ("storage.conf", _STORAGE)):
            (folder / name).write_text(text.format(folder=folder))
        self._environment = {
            **os.environ,
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }

    def run(
        self, *arguments: object, stdin: Any = subprocess.DEVNULL, timeout: float = _TIMEOUT
    ) -> str:
        """Return a podman command's output; on failure, raise `EndToEndError` with its end."""
        return self._run(["podman", *map(str, arguments)], stdin, timeout)

    def works(self, *arguments: object) -> bool:
        try:
            self.run(*arguments)
        except EndToEndError:
            return False
        return True

    def compose(self, *arguments: str) -> str:
        """Return the output of ``podman-compose`` on the compose file with its profile ``demo``."""
        command = [sys.executable, "-m", "podman_compose", "--file", str(COMPOSE)]
        return self._run([*command, "--profile", "demo", *arguments], subprocess.DEVNULL, _TIMEOUT)

    def containers(self, service: str, running: bool = True) -> list[str]:
        found = self.run(
            "ps",
            *(() if running else ("--all",)),
            *("--filter", f"label=io.podman.compose.project={PROJECT}"),
            *("--filter", f"label=com.docker.compose.service={service}"),
            *("--format", "{{.ID}}"),
        )
        return found.split()

    def inspect(self, container: str) -> dict[str, Any]:
        (found,) = json.loads(self.run("container", "inspect", container))
        return dict(found)

    def healthy(self, container: str) -> bool:
        """Run the container's own health check, which podman leaves to systemd."""
        return self.works("healthcheck", "run", container)

    def clean(self, images: bool) -> None:
        """Remove containers, networks and volumes, and optionally the images with their folder."""
        # A container cannot be removed before its dependents.
        for _ in range(_ROUNDS):
            if not self.run("ps", "--all", "--quiet").split():
                break
            self.works("rm", "--all", "--force", "--time", "5", "--volumes")
        self.run("pod", "rm", "--all", "--force")
        for network in self.run("network", "ls", "--format", "{{.Name}}").split():
            if network != "podman":
                self.run("network", "rm", "--force", network)
        self.run("volume", "rm", "--all", "--force")
        if images:
            self.run("rmi", "--all", "--force")
            shutil.rmtree(self._folder)

    def _run(self, command: Sequence[str], stdin: Any, timeout: float) -> str:
        try:
            done = subprocess.run(
                command,
                env=self._environment,
                stdin=stdin,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise EndToEndError(f"{' '.join(command)} took longer than {timeout:.0f} s") from None
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).strip().splitlines()[-15:]
            raise EndToEndError("\n".join([f"{' '.join(command)} failed:", *lines]))
        return done.stdout
