"""Machines in a network that can be cut: network namespaces on a bridge. Requires root.

Every namespace has an address, which others resolve by name and which can change. The bridge is in
a namespace too, so that no packet filter of this machine applies.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import psutil

_HUB = "hub"
# RFC 2544 reserves these networks for tests. The first is for traffic between machines; the second,
# which address changes do not affect, is for the test itself.
_NETWORK, _OBSERVED = "198.18", "198.19"
_OUTSIDE = 254
# First host number after the initial addresses of namespaces.
_LATER = 101
# `ip netns exec` mounts files over /etc from the subfolder with the namespace's name.
_ETC = Path("/etc/netns")
_OURS = re.compile(r"dpstream-(\d+)-.*")


def rejection() -> str | None:
    """Return the reason namespaces are unavailable, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "iptables"):
        if shutil.which(program) is None:
            return f"{program} is missing: apt install iproute2 iptables, as in .ci/run"
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
    """Namespaces by name, all reachable from this process.

    Processes inside are killed at exit. After a kill, the next test process removes leftovers. Each
    key of `groups` is a name that resolves to several namespaces.
    """

    def __init__(self, names: Sequence[str], groups: Mapping[str, Sequence[str]]) -> None:
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._hosts = dict(self._numbers)
        self._groups = dict(groups)
        self._mark = f"dpstream-{os.getpid()}"
        self._subnet = _free_subnet()
        self._rules: dict[tuple[str, str], list[tuple[str, tuple[str, ...]]]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        _remove_stale()
        with ExitStack() as stack:
            self._add(_HUB, stack)
            self._inside(_HUB, "ip", "link", "add", "bridge", "type", "bridge")
            self._inside(_HUB, "ip", "link", "set", "bridge", "up")
            for name in self._numbers:
                self._write_names(name)
                stack.callback(shutil.rmtree, _ETC / self._namespace(name), ignore_errors=True)
                self._add(name, stack)
                self._join(name)
            outside = f"dps{os.getpid()}"
            _run(
                *("ip", "link", "add", outside, "type", "veth"),
                *("peer", "name", f"port{_OUTSIDE}", "netns", self._namespace(_HUB)),
            )
            stack.callback(_run, "ip", "link", "delete", outside)
            self._plug_in(_OUTSIDE)
            for network in (_NETWORK, _OBSERVED):
                address = f"{network}.{self._subnet}.{_OUTSIDE}/24"
                _run("ip", "address", "add", address, "dev", outside)
            _run("ip", "link", "set", outside, "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        with suppress(OSError):
            # Shared with other processes, so it is kept while it contains their files.
            _ETC.rmdir()

    def address(self, name: str) -> str:
        return f"{_NETWORK}.{self._subnet}.{self._hosts[name]}"

    def observed_at(self, name: str) -> str:
        """Return the permanent address of a namespace, which only this process uses."""
        return f"{_OBSERVED}.{self._subnet}.{self._numbers[name]}"

    def prefix(self, name: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._namespace(name))

    def cut(self, source: str, target: str) -> None:
        """Drop all packets from `source` to `target`; the other direction stays open."""
        rules: list[tuple[str, tuple[str, ...]]] = [
            (end, ("INPUT", "--source", self.address(start), "--jump", "DROP"))
            for end in self._groups.get(target, (target,))
            for start in self._groups.get(source, (source,))
            if start != end
        ]
        self._rules[source, target] = rules
        for end, rule in rules:
            self._inside(end, "iptables", "--wait", "--append", *rule)

    def heal(self, source: str, target: str) -> None:
        for end, rule in self._rules.pop((source, target)):
            self._inside(end, "iptables", "--wait", "--delete", *rule)

    def drop_at_random(self, name: str, share: float) -> None:
        """Drop a fraction of all packets to a namespace at random; 0 stops dropping."""
        self._inside(name, "iptables", "--wait", "--flush", "INPUT")
        if share > 0:
            chance = ("--match", "statistic", "--mode", "random", "--probability", str(share))
            rule = ("INPUT", "--in-interface", "eth0", *chance, "--jump", "DROP")
            self._inside(name, "iptables", "--wait", "--append", *rule)

    def change_address(self, name: str) -> None:
        """Give a namespace another address; packets to the former one are lost."""
        before = self.address(name)
        self._hosts[name] = max(_LATER - 1, *self._hosts.values()) + 1
        self._inside(name, "ip", "address", "delete", f"{before}/24", "dev", "eth0")
        self._inside(name, "ip", "address", "add", f"{self.address(name)}/24", "dev", "eth0")
        for each in self._numbers:
            self._write_names(each)

    def lose(self, name: str) -> None:
        """Switch a machine off, link first, so that no connection is closed or reset."""
        self._inside(_HUB, "ip", "link", "delete", f"port{self._numbers[name]}")
        _end_processes(self._namespace(name))
        _run("ip", "netns", "delete", self._namespace(name))

    def bring_back(self, name: str) -> None:
        """Switch a machine on again, with its former address and without processes."""
        _run("ip", "netns", "add", self._namespace(name))
        self._inside(name, "ip", "link", "set", "lo", "up")
        self._join(name)

    def _namespace(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _add(self, name: str, stack: ExitStack) -> None:
        namespace = self._namespace(name)
        _run("ip", "netns", "add", namespace)
        stack.callback(_remove, namespace)
        self._inside(name, "ip", "link", "set", "lo", "up")

    def _join(self, name: str) -> None:
        number = self._numbers[name]
        self._inside(
            name,
            *("ip", "link", "add", "eth0", "type", "veth"),
            *("peer", "name", f"port{number}", "netns", self._namespace(_HUB)),
        )
        # A returning machine keeps its hardware address, to which others still send.
        hardware = f"02:00:00:00:{self._subnet:02x}:{number:02x}"
        self._inside(name, "ip", "link", "set", "eth0", "address", hardware)
        self._plug_in(number)
        for address in (self.address(name), self.observed_at(name)):
            self._inside(name, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        self._inside(name, "ip", "link", "set", "eth0", "up")

    def _plug_in(self, number: int) -> None:
        self._inside(_HUB, "ip", "link", "set", f"port{number}", "master", "bridge", "up")

    def _write_names(self, name: str) -> None:
        """Write the hosts file of a namespace in place, so that running processes see changes."""
        folder = _ETC / self._namespace(name)
        folder.mkdir(parents=True, exist_ok=True)
        lines = [Path("/etc/hosts").read_text().rstrip("\n")]
        lines += [f"{self.address(each)} {each}" for each in self._numbers]
        # Write in place with one call, because processes would not see a replaced file.
        descriptor = os.open(folder / "hosts", os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.ftruncate(descriptor, os.write(descriptor, ("\n".join(lines) + "\n").encode()))
        finally:
            os.close(descriptor)

    def _inside(self, name: str, *command: str) -> None:
        _run(*self.prefix(name), *command)


def _free_subnet() -> int:
    used = {
        int(number)
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        for number in re.findall(rf"^{re.escape(_NETWORK)}\.(\d+)\.\d+$", each.address)
    }
    return random.choice([number for number in range(256) if number not in used])


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line]


def _end_processes(namespace: str) -> None:
    while pids := _run("ip", "netns", "pids", namespace).split():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _remove(namespace: str) -> None:
    """Remove a namespace with its processes, if it exists."""
    if namespace in _namespaces():
        _end_processes(namespace)
        _run("ip", "netns", "delete", namespace)


def _remove_stale() -> None:
    """Remove namespaces left over by killed processes."""
    folders = _ETC.iterdir() if _ETC.is_dir() else ()
    for name in {*_namespaces(), *(folder.name for folder in folders)}:
        ours = _OURS.fullmatch(name)
        if ours is not None and not psutil.pid_exists(int(ours[1])):
            _remove(name)
            shutil.rmtree(_ETC / name, ignore_errors=True)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
