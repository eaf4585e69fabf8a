"""What software is installed, as digests that others can compute from the same wheels.

The digest of a distribution is SHA-256 over the lines ``PATH NUL SHA256 NEWLINE`` of its files, in
the order of their paths. Of the product that is what lies on disk now; of its dependencies, whose
files are many, what the installer noted (``RECORD``). Left out is what an installer adds or alters:
metadata (``*.dist-info``), scripts outside the packages, and compiled files (``*.pyc``). So a wheel
has the digest that its installation has.

A stage says these of itself, and whoever alters its software can have it say others. The digests
show which build an honest operator runs, and bind what a dishonest one claims.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Final

from pipeline.errors import WRONG_INPUT, DpstreamError
from topics.signed import Software

PRODUCT: Final = "dpstream"
PACKAGES: Final = ("aggregators", "pipeline", "randomizers", "topics")
DEPENDENCIES: Final = (
    *("aiokafka", "cryptography", "faust-streaming", "kafka-python"),
    *("numpy", "randomgen"),
)
"""What draws, seals, signs, or reads and writes Kafka."""
INSTALLED: Final = "installed"
RECORDED: Final = "recorded"
SOURCE_TREE: Final = "source tree"
_COMPILED = (".pyc", ".pyo")


class WheelError(DpstreamError):
    """A file is no wheel; the message says what to do."""

    exit_code = WRONG_INPUT


def installed_software() -> dict[str, Software]:
    """The product and its `DEPENDENCIES`, by name; those that are not installed are left out."""
    found = {}
    for name in (PRODUCT, *DEPENDENCIES):
        try:
            installed = distribution(name)
            found[name] = software_of(installed) if name == PRODUCT else recorded(installed)
        except PackageNotFoundError:
            continue
    return found


def python_version() -> str:
    """Of the interpreter, as in ``3.11.2``."""
    return ".".join(map(str, sys.version_info[:3]))


def software_of(installed: Distribution) -> Software:
    """What lies on disk of a distribution: where it is run from its source tree, of that."""
    if _is_editable(installed):
        return Software(installed.version, SOURCE_TREE, digest_of_files(_files_of_packages()))
    listed = (str(path) for path in installed.files or ())
    files = ((path, Path(str(installed.locate_file(path)))) for path in listed if _counts(path))
    return Software(installed.version, INSTALLED, digest_of_files(files))


def recorded(installed: Distribution) -> Software:
    """What the installer noted of a distribution."""
    return Software(installed.version, RECORDED, _digest(_noted(installed)))


def _noted(installed: Distribution) -> Iterator[tuple[str, bytes]]:
    for path in installed.files or ():
        if _counts(str(path)) and path.hash is not None and path.hash.mode == "sha256":
            yield str(path), base64.urlsafe_b64decode(path.hash.value + "=")


def software_of_wheel(path: Path) -> Software:
    """What an installation of a wheel has.

    Raises:
        WheelError: it is none.
    """
    try:
        with zipfile.ZipFile(path) as wheel:
            names = [name for name in wheel.namelist() if not name.endswith("/")]
            digests = [
                (name, hashlib.sha256(wheel.read(name)).digest()) for name in names if _counts(name)
            ]
            about = next(name for name in names if name.endswith(".dist-info/METADATA"))
            lines = wheel.read(about).decode().splitlines()
        version = next(line.partition(": ")[2] for line in lines if line.startswith("Version: "))
    except (OSError, zipfile.BadZipFile, StopIteration, UnicodeDecodeError) as error:
        raise WheelError(
            f"{path} is no wheel ({error}): build one with python -m pip wheel --no-deps ."
        ) from None
    return Software(version, INSTALLED, _digest(digests))


def digest_of_files(files: Iterable[tuple[str, Path]]) -> bytes:
    """The digest of files, each with the path that it counts under; missing ones have none."""
    return _digest((name, _sha256(path)) for name, path in files if path.is_file())


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _digest(digests: Iterable[tuple[str, bytes]]) -> bytes:
    lines = (name.encode() + b"\0" + digest.hex().encode() + b"\n" for name, digest in digests)
    return hashlib.sha256(b"".join(sorted(lines))).digest()


def _counts(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return (
        bool(parts)
        and parts[0] != ".."
        and not PurePosixPath(path).is_absolute()
        and not any(part.endswith((".dist-info", ".data")) for part in parts)
        and not path.endswith(_COMPILED)
    )


def _is_editable(installed: Distribution) -> bool:
    """Whether its packages are run from where they are developed, and not installed."""
    if installed.read_text("RECORD") is None:
        return True
    try:
        told = json.loads(installed.read_text("direct_url.json") or "{}")
    except ValueError:
        return False
    return bool(told.get("dir_info", {}).get("editable"))


def _files_of_packages() -> Iterator[tuple[str, Path]]:
    """The files of the product's packages, as they are imported here."""
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in [] if spec is None else spec.submodule_search_locations or []:
            root = Path(folder)
            for path in root.rglob("*"):
                if path.is_file() and not path.name.endswith(_COMPILED):
                    yield (Path(package) / path.relative_to(root)).as_posix(), path
