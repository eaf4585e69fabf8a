"""Cuts are one-way; lost machines and address changes are silent."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from tests.support.namespaces import Namespaces, rejection

# Sends a datagram to an address or name, without waiting for a reply.
_SEND = "import socket, sys; socket.socket(type=2).sendto(b'x', (sys.argv[1], 9999))"
_SERVE = """
import socket
here = socket.create_server(("0.0.0.0", 9999))
print("serving", flush=True)
held, _ = here.accept()
held.recv(1)
"""
_RECEIVE = """
import socket, sys
here = socket.socket(type=2)
here.bind((sys.argv[1], 9999))
print("bound", flush=True)
here.settimeout(float(sys.argv[2]))
print(here.recvfrom(1)[1][0], flush=True)
"""


@pytest.fixture(autouse=True)
def _may_have_namespaces() -> None:
    reason = rejection()
    if reason is not None:
        pytest.skip(f"network namespaces are unavailable: {reason}")


def arrives(
    network: Namespaces, source: str, target: str, seconds: float, to: str | None = None
) -> bool:
    """Return whether a datagram arrives in time; by default it is sent to the target's address."""
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
        send = [*network.prefix(source), sys.executable, "-c", _SEND]
        subprocess.run([*send, to or network.address(target)], check=True)
        return receiver.stdout.readline().strip() == network.address(source)


def test_network_cut_drops_packets_in_one_direction_until_it_is_healed() -> None:
    with Namespaces(["a", "b", "c"], {"all": ("b", "c")}) as network:
        assert arrives(network, "a", "b", 30.0)
        network.cut("all", "a")
        assert not arrives(network, "b", "a", 1.0)
        assert arrives(network, "a", "b", 30.0)
        assert arrives(network, "b", "c", 30.0)
        network.heal("all", "a")
        assert arrives(network, "c", "a", 30.0)


def test_changed_address_is_reachable_by_name() -> None:
    with Namespaces(["a", "b"], {}) as network:
        former = network.address("b")
        network.change_address("b")
        assert network.address("b") != former
        assert arrives(network, "a", "b", 30.0, to="b")
        assert not arrives(network, "a", "b", 0.5, to=former)


def test_lost_machine_closes_no_connection_and_returns_without_connections() -> None:
    with Namespaces(["a"], {}) as network:
        serve = [*network.prefix("a"), sys.executable, "-c", _SERVE]
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "serving\n"
            with socket.create_connection((network.observed_at("a"), 9999)) as connection:
                network.lose("a")
                assert server.wait(30.0) == -signal.SIGKILL
                connection.settimeout(0.5)
                with pytest.raises(TimeoutError):
                    connection.recv(1)
                network.bring_back("a")
                connection.sendall(b"x")
                connection.settimeout(30.0)
                with pytest.raises(ConnectionResetError):
                    connection.recv(1)
