"""Build the images and run the whole compose file, without Docker and without a registry.

``python -m tests.docker.end_to_end``, as root, with podman, runc, netavark, aardvark-dns and
debootstrap installed and podman-compose alongside Python. Prints a line for each passed check, and
exits with code 1 and a message at the first failure. Everything it creates is removed;
``--folder FOLDER`` keeps images there for the next run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.docker.end_to_end.engine import EndToEndError, Podman
from tests.docker.end_to_end.images import make_images
from tests.docker.end_to_end.scenario import run_scenario

PROGRAMS = ("podman", "runc", "debootstrap")


def missing() -> str | None:
    """Return why a run is impossible on this machine, or None."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    if lacking:
        return (
            f"containers cannot be tested end to end without {', '.join(lacking)}: on Debian, apt "
            "install podman runc netavark aardvark-dns debootstrap"
        )
    if os.geteuid() != 0:
        return "containers can be tested end to end by root alone"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="keep images here")
    kept: Path | None = parser.parse_args().folder
    if why := missing():
        print(why, file=sys.stderr)
        return 1
    folder = kept or Path(tempfile.mkdtemp(prefix="dpstream-end-to-end-", dir="/var/tmp"))
    began = time.monotonic()

    def print_message(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    # Also clean up on SIGTERM.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    podman = Podman(folder.resolve())
    try:
        make_images(podman, folder.resolve(), print_message)
        run_scenario(podman, print_message)
        code = 0
    except EndToEndError as error:
        print(error, file=sys.stderr)
        _show(podman)
        code = 1
    finally:
        podman.clean(images=kept is None)
        print_message("everything that was started is removed")
    return code


def _show(podman: Podman) -> None:
    print(podman.run("ps", "--all"), file=sys.stderr)
    for container in podman.run("ps", "--all", "--quiet", "--filter", "status=exited").split():
        print(podman.run("logs", "--tail", "20", container), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
