"""Protocols by name, each loaded when it is named; those of other packages found by their metadata.

A package that is broken, or that claims a name which is taken, is in nobody's way until a job names
that protocol; then a sentence says which package it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points

from dpstream.pipeline.errors import DpstreamError, error_line
from dpstream.pipeline.protocols.protocol import Protocol

GROUP = "dpstream.protocols"
"""Of entry points: the protocol's name, and where its `Protocol` is."""


class ProtocolError(DpstreamError):
    """A protocol of another package cannot be used; the message names it and says what to do."""


def installed() -> Iterable[EntryPoint]:
    """What packages on the path offer."""
    return entry_points(group=GROUP)


class Registry(MutableMapping[str, Protocol]):
    """Protocols by name.

    Getting one imports it; of one of another package that may raise `ProtocolError`. Iterating
    goes by name and imports nothing.

    Args:
        own: the names of those of this software.
        load: gives one of those.
        find: gives the entry points of other packages; is asked once, when need be.
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
        # Those of this software in their order, loaded or not.
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
        """See that a name means one protocol, whoever is installed.

        Raises:
            ProtocolError: several packages claim it.
        """
        claims = [_package(entry) for entry in self._offered.get(name, ())]
        if name in self._own and claims:
            raise ProtocolError(
                f"{name} is a protocol of dpstream itself, and {' and '.join(claims)} claims the "
                "name, too: uninstall that package, or have it choose another name"
            )
        if len(claims) > 1:
            raise ProtocolError(
                f"protocol {name} is claimed by {' and by '.join(claims)}: uninstall all but one"
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
            f"{where} cannot be imported: {error_line(error)}; repair or uninstall that package"
        ) from error
    if not isinstance(loaded, Protocol):
        raise ProtocolError(
            f"{where} is no dpstream.pipeline.protocols.protocol.Protocol, but of type "
            f"{type(loaded).__name__}: the package has to offer one"
        )
    if loaded.name != entry.name:
        raise ProtocolError(
            f"{where} calls itself {loaded.name}: the package has to use one name for both"
        )
    return loaded


def _package(entry: EntryPoint) -> str:
    return "a package" if entry.dist is None else f"package {entry.dist.name} {entry.dist.version}"
