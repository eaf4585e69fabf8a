"""Hosts of a fleet: machines in namespaces, with the services that run on them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.namespaces import Namespaces

_TAIL = 15


@dataclass(slots=True)
class Service:
    """Command that a host keeps running.

    Attributes:
        name: Unique name in the fleet.
        began: Start time of the latest process, by the monotonic clock.
        finished: True after an expected exit with code 0, which ends restarts.
    """

    host: str
    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    finished: bool = False

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None


class Hosts:
    """Services on hosts, which are restarted when they end, as by systemd.

    Args:
        folder: Parent of all logs and of the hosts' folders, which are their disks.
        environment: Environment of all services; `DPSTREAM_HOME` is set per host.
        rest: Minimum time between two starts of a service (seconds).
    """

    def __init__(
        self, network: Namespaces, folder: Path, environment: Mapping[str, str], rest: float = 1.0
    ) -> None:
        self.network = network
        self._folder = folder
        self._environment = dict(environment)
        self._rest = rest
        self._services: dict[str, Service] = {}
        self._off: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for service in self._services.values():
            _kill(service)

    def disk(self, host: str) -> Path:
        folder = self._folder / host
        folder.mkdir(exist_ok=True)
        return folder

    def run(self, host: str, name: str, command: Sequence[str]) -> None:
        self._services[name] = Service(host, name, command)
        self._start(self._services[name])

    def command(self, host: str, *command: str) -> str:
        done = subprocess.run(
            [*self.network.prefix(host), *command],
            env=self._variables(host),
            cwd=self.disk(host),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def keep_running(self) -> None:
        for service in self._services.values():
            if service.runs or service.finished or service.host in self._off:
                continue
            if service.process is not None and service.process.returncode == 0:
                service.finished = True
            elif time.monotonic() > service.began + self._rest:
                self._start(service)

    def lose(self, host: str) -> None:
        """Lose a host with all its processes, without closing any connection."""
        self._off.add(host)
        self.network.lose(host)
        for service in self._of(host):
            _kill(service)

    def bring_back(self, host: str) -> None:
        """Bring a host back with its disk and start its services."""
        self.network.bring_back(host)
        self._off.discard(host)
        self.keep_running()

    def replace(self, host: str, commands: Mapping[str, Sequence[str]], seconds: float) -> None:
        """Stop all services of a host gracefully and run them with other commands."""
        services = self._of(host)
        assert {service.name for service in services} == commands.keys()
        self._off.add(host)
        for service in services:
            if service.process is not None and service.runs:
                service.process.send_signal(signal.SIGTERM)
        for service in services:
            if service.process is not None:
                service.process.wait(seconds)
        for service in services:
            service.command = commands[service.name]
            self._start(service)
        self._off.discard(host)

    def finished(self, *names: str) -> bool:
        self.keep_running()
        return all(self._services[name].finished for name in names)

    def log(self, name: str) -> str:
        path = self._folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self) -> str:
        return "\n".join(
            f"--- {name} on {service.host}\n" + "\n".join(self.log(name).splitlines()[-_TAIL:])
            for name, service in self._services.items()
        )

    def tracebacks(self) -> list[str]:
        """Return the services that logged a traceback."""
        return [name for name in self._services if "Traceback (most recent" in self.log(name)]

    def _of(self, host: str) -> list[Service]:
        return [service for service in self._services.values() if service.host == host]

    def _variables(self, host: str) -> dict[str, str]:
        home = str(self.disk(host) / "home")
        return {**os.environ, **self._environment, "DPSTREAM_HOME": home}

    def _start(self, service: Service) -> None:
        service.began = time.monotonic()
        with (self._folder / f"{service.name}.log").open("ab") as log:
            service.process = subprocess.Popen(
                [*self.network.prefix(service.host), *service.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.disk(service.host),
                env=self._variables(service.host),
                start_new_session=True,
            )


def _kill(service: Service) -> None:
    if service.process is not None:
        service.process.kill()
        service.process.wait()
