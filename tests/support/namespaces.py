"""Machines of a network that can be cut, as network namespaces on one bridge; only root may.

Every namespace has an address of its own. The bridge is in a namespace too, so that nothing which
filters packets on this machine takes part.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

_HUB = "hub"
# RFC 2544 sets these aside for tests of networks.
_NETWORK = "198.18"
_OUTSIDE = 254


def refusal() -> str | None:
    """Why there can be no namespaces here; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "iptables"):
        if shutil.which(program) is None:
            return f"there is no {program}: apt install iproute2 iptables, as .ci/run does"
    name = f"dpstream-{os.getpid()}-probe"
    try:
        _run("ip", "netns", "add", name)
    except subprocess.CalledProcessError as error:
        return f"ip netns add: {error.stderr.strip()}"
    try:
        rules = ("iptables", "--append", "INPUT", "--source", f"{_NETWORK}.0.1", "--jump", "DROP")
        _run("ip", "netns", "exec", name, *rules)
    except subprocess.CalledProcessError as error:
        return f"iptables in a namespace: {error.stderr.strip()}"
    finally:
        _run("ip", "netns", "delete", name)
    return None


class Namespaces:
    """Namespaces by name, until they are left; this process can reach all of them.

    Args:
        names: of the namespaces.
        groups: names that stand for several of them.
    """

    def __init__(self, names: Sequence[str], groups: Mapping[str, Sequence[str]]) -> None:
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._groups = dict(groups)
        self._mark = f"dpstream-{os.getpid()}"
        self._subnet = f"{_NETWORK}.{random.randrange(256)}"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._add(_HUB, stack)
            self._inside(_HUB, "ip", "link", "add", "bridge", "type", "bridge")
            self._inside(_HUB, "ip", "link", "set", "bridge", "up")
            for name, number in self._numbers.items():
                self._add(name, stack)
                self._inside(
                    name,
                    *("ip", "link", "add", "eth0", "type", "veth"),
                    *("peer", "name", f"port{number}", "netns", self._namespace(_HUB)),
                )
                self._plug_in(number)
                self._inside(
                    name, "ip", "address", "add", f"{self.address(name)}/24", "dev", "eth0"
                )
                self._inside(name, "ip", "link", "set", "eth0", "up")
            outside = f"dps{os.getpid()}"
            _run(
                *("ip", "link", "add", outside, "type", "veth"),
                *("peer", "name", f"port{_OUTSIDE}", "netns", self._namespace(_HUB)),
            )
            stack.callback(_run, "ip", "link", "delete", outside)
            self._plug_in(_OUTSIDE)
            _run("ip", "address", "add", f"{self._subnet}.{_OUTSIDE}/24", "dev", outside)
            _run("ip", "link", "set", outside, "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def address(self, name: str) -> str:
        """The address of a namespace."""
        return f"{self._subnet}.{self._numbers[name]}"

    def prefix(self, name: str) -> tuple[str, ...]:
        """What runs a command in a namespace."""
        return ("ip", "netns", "exec", self._namespace(name))

    def cut(self, source: str, target: str) -> None:
        """Drop all packets from one to the other; those the other way arrive."""
        self._rule("--append", source, target)

    def heal(self, source: str, target: str) -> None:
        """Drop them no more."""
        self._rule("--delete", source, target)

    def _rule(self, change: str, source: str, target: str) -> None:
        for end in self._groups.get(target, (target,)):
            for start in self._groups.get(source, (source,)):
                rule = ("INPUT", "--source", self.address(start), "--jump", "DROP")
                self._inside(end, "iptables", "--wait", change, *rule)

    def _namespace(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _add(self, name: str, stack: ExitStack) -> None:
        _run("ip", "netns", "add", self._namespace(name))
        stack.callback(_run, "ip", "netns", "delete", self._namespace(name))
        self._inside(name, "ip", "link", "set", "lo", "up")

    def _plug_in(self, number: int) -> None:
        self._inside(_HUB, "ip", "link", "set", f"port{number}", "master", "bridge", "up")

    def _inside(self, name: str, *command: str) -> None:
        _run(*self.prefix(name), *command)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
