"""Protocols by name, loaded on first use; other packages declare protocols as entry points.

A broken package, or one that claims a taken name, has no effect until a job uses that protocol. The
error message then names the package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points

from dpstream.pipeline.errors import DpstreamError, error_line
from dpstream.pipeline.protocols.protocol import Protocol

GROUP = "dpstream.protocols"
"""Group of entry points: protocol name and location of its `Protocol`."""


class ProtocolError(DpstreamError):
    """A protocol from another package is unusable; the message names the package and the fix."""


def installed() -> Iterable[EntryPoint]:
    return entry_points(group=GROUP)


class Registry(MutableMapping[str, Protocol]):
    """Protocols by name.

    Access imports a protocol, which can raise `ProtocolError` if another package provides it.
    Iteration imports nothing. `find` returns the entry points in other packages.
    """

    def __init__(
        self,
        own: Iterable[str],
        load: Callable[[str], Protocol],
        find: Callable[[], Iterable[EntryPoint]] = installed,
    ) -> None:
        self._own = tuple(own)
        self._load = load
        self._find = find
        # Built-in protocols, in order; None for a protocol that is not loaded yet.
        self._known: dict[str, Protocol | None] = dict.fromkeys(self._own)

    @cached_property
    def _offered(self) -> dict[str, list[EntryPoint]]:
        offered: dict[str, list[EntryPoint]] = {}
        for entry in self._find():
            entries = offered.setdefault(entry.name, [])
            if entry not in entries:
                entries.append(entry)
        return offered

    def check(self, name: str) -> None:
        claims = [_package(entry) for entry in self._offered.get(name, ())]
        if name in self._own and claims:
            raise ProtocolError(
                f"{name} is a protocol of dpstream itself, but the name is also claimed by "
                f"{' and by '.join(claims)}. Uninstall the other package, or rename its protocol"
            )
        if len(claims) > 1:
            raise ProtocolError(
                f"protocol {name} is claimed by {' and by '.join(claims)}. Uninstall all but one"
            )

    def __getitem__(self, name: str) -> Protocol:
        protocol = self._known.get(name)
        if protocol is None:
            if name in self._known:
                protocol = self._load(name)
            elif name in self._offered:
                self.check(name)
                protocol = _load(self._offered[name][0])
            else:
                raise KeyError(name)
            self._known[name] = protocol
        return protocol

    def __setitem__(self, name: str, protocol: Protocol) -> None:
        self._known[name] = protocol

    def __delitem__(self, name: str) -> None:
        del self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self._offered

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*self._known, *self._offered])

    def __len__(self) -> int:
        return len({*self._known, *self._offered})


def _load(entry: EntryPoint) -> Protocol:
    where = f"protocol {entry.name} of {_package(entry)}, {entry.value},"
    try:
        loaded = entry.load()
    except Exception as error:
        raise ProtocolError(
            f"{where} cannot be imported: {error_line(error)}. Repair or uninstall that package"
        ) from error
    if not isinstance(loaded, Protocol):
        raise ProtocolError(
            f"{where} has type {type(loaded).__name__}; expected "
            "dpstream.pipeline.protocols.protocol.Protocol"
        )
    if loaded.name != entry.name:
        raise ProtocolError(f"{where} has the name {loaded.name}; expected {entry.name}")
    return loaded


def _package(entry: EntryPoint) -> str:
    return "a package" if entry.dist is None else f"package {entry.dist.name} {entry.dist.version}"
