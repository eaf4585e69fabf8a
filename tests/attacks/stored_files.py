"""Access by other users of the machine to stored keys and device draws.

The installed code creates all files that contain a secret, with an empty umask and in new folders.
Then each permission bit is set in turn, and the file is read again. Objects with a key must not
reveal the key when they are logged.
"""

from __future__ import annotations

import base64
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dpstream.pipeline.collector.intake import Intake
from dpstream.pipeline.devices.producer_store import ProducerStore
from dpstream.pipeline.errors import DpstreamError
from dpstream.pipeline.jobs.descriptions import signing_key_at
from dpstream.pipeline.jobs.key_files import CollectorKey, NoiseKey
from dpstream.pipeline.jobs.key_ring import KeyRing
from dpstream.pipeline.jobs.sealing_keys import make_key_pair, read_private_key
from dpstream.pipeline.state import FolderLock, private_folder
from dpstream.randomizers.client import DeviceError
from dpstream.randomizers.client.store import FileStore
from tests.attacks.attacked_devices import device_job
from tests.attacks.promises import broken

_OF_OTHERS: Final = 0o077
_PUBLIC: Final = ".pub"

Use = Callable[[Path], object]


def attack_files() -> Iterator[str]:
    return broken(
        {
            "only owners have access to new secrets and their folders": _made,
            "a secret accessible to others is rejected": _opened,
            "no key is displayed with the object that has it": _shown,
        },
    )


def _producer_store(path: Path) -> None:
    ProducerStore(path).close()


def _device_store(path: Path) -> None:
    FileStore(path).replace(0, "{}")


def _key_pair(path: Path) -> None:
    make_key_pair(path, path.with_suffix(_PUBLIC))


def _locked(path: Path) -> None:
    FolderLock(path.with_suffix(""), "an audit").release()


# A function that creates a file, even if its folder is missing, and a function that reads it.
_KEYS: Final[dict[str, tuple[Use, Use]]] = {
    "the noise key": (NoiseKey.at, NoiseKey.read),
    "the collectors' key": (CollectorKey.at, CollectorKey.read),
    "the signing key": (signing_key_at, signing_key_at),
    "a private sealing key": (_key_pair, read_private_key),
}
_STATES: Final[dict[str, tuple[Use, Use]]] = {
    "the draws of a producer's devices": (_producer_store, _producer_store),
    "the state of a single device": (_device_store, FileStore),
}


def _made() -> str:
    with _unmasked() as folder:
        for number, (what, (make, _)) in enumerate({**_KEYS, **_STATES}.items()):
            path = folder / str(number) / "below" / "secret.key"
            if what in _STATES:
                private_folder(path.parent)
            if not _does(make, path):
                return f"{what} is created accessible to others, and then rejected"
        _locked(folder / "locked" / "below")
        for path in sorted(folder.rglob("*")):
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & _OF_OTHERS and path.suffix != _PUBLIC:
                kind = "folder" if path.is_dir() else "file"
                return f"a {kind} of secrets is created with mode {mode:o}, accessible to others"
    return ""


def _opened() -> str:
    with _unmasked() as folder:
        for number, (what, (make, read)) in enumerate({**_KEYS, **_STATES}.items()):
            path = private_folder(folder / str(number)) / "secret.key"
            if not _does(make, path) or not _does(read, path):
                return f"{what} is rejected although only its owner has access"
            for bit in range(6):
                path.chmod(0o600 | 1 << bit)
                if _does(read, path):
                    return f"{what} is used with mode {0o600 | 1 << bit:o}, accessible to others"
            path.chmod(0o600)
    return ""


def _does(use: Use, path: Path) -> bool:
    try:
        use(path)
    except (DpstreamError, DeviceError, OSError):
        return False
    return True


@contextmanager
def _unmasked() -> Iterator[Path]:
    """Yield a folder, with an empty umask."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.umask(0)
        try:
            yield Path(folder)
        finally:
            os.umask(before)


def _shown() -> str:
    secret = bytes(range(101, 133))
    collectors = CollectorKey(secret)
    job = device_job().model_copy(update={"collector_key": collectors.digest})
    holders: dict[str, object] = {
        "the noise key": NoiseKey(secret),
        "the collectors' key": collectors,
        "the intake of reports": Intake(job, collectors),
        "a ring of private keys": KeyRing.of([X25519PrivateKey.from_private_bytes(secret)]),
    }
    forms = (
        secret.hex(),
        secret.hex().upper(),
        base64.b64encode(secret).decode(),
        repr(secret)[2:-1],
        repr([*secret])[1:-1],
    )
    for name, holder in holders.items():
        for text in (repr(holder), str(holder), f"{holder}"):
            if any(form in text for form in forms):
                return f"{name} is displayed with the object that has it"
    return ""
