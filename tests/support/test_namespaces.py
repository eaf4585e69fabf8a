"""A cut is one-way: what the other end sends arrives."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.namespaces import Namespaces, refusal

# A datagram to the address, and whether one came back from there is not asked.
_SEND = "import socket, sys; socket.socket(type=2).sendto(b'x', (sys.argv[1], 9999))"
_RECEIVE = """
import socket, sys
here = socket.socket(type=2)
here.bind((sys.argv[1], 9999))
print("bound", flush=True)
here.settimeout(float(sys.argv[2]))
print(here.recvfrom(1)[1][0], flush=True)
"""


def arrives(network: Namespaces, source: str, target: str, seconds: float) -> bool:
    """Whether one of the datagrams sent arrives in time."""
    receiver = subprocess.Popen(
        [
            *(*network.prefix(target), sys.executable, "-c", _RECEIVE),
            *(network.address(target), str(seconds)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert receiver.stdout is not None
    with receiver, receiver.stdout:
        assert receiver.stdout.readline() == "bound\n"
        send = [*network.prefix(source), sys.executable, "-c", _SEND, network.address(target)]
        subprocess.run(send, check=True)
        return receiver.stdout.readline().strip() == network.address(source)


def test_what_is_cut_is_dropped_in_one_direction_until_it_is_healed() -> None:
    reason = refusal()
    if reason is not None:
        pytest.skip(f"no network that can be cut: {reason}")
    with Namespaces(["a", "b", "c"], {"all": ("b", "c")}) as network:
        assert arrives(network, "a", "b", 30.0)
        network.cut("all", "a")
        assert not arrives(network, "b", "a", 1.0)
        assert arrives(network, "a", "b", 30.0)
        assert arrives(network, "b", "c", 30.0)
        network.heal("all", "a")
        assert arrives(network, "c", "a", 30.0)
