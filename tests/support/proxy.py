"""Run nginx with the settings of docker/nginx in front of local collectors."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

SETTINGS = Path(__file__).parents[2] / "docker" / "nginx" / "collectors.conf"
INSTALLED = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
_TIMEOUT = 30.0


def adapted(ports: Sequence[int], port: int) -> str:
    """Replace collectors resolved by Docker's name server with collectors at these ports."""
    text = SETTINGS.read_text()
    (line,) = re.findall(r"^ *server collect:8300 resolve (.*);\n", text, re.MULTILINE)
    servers = "".join(f"    server 127.0.0.1:{each} {line};\n" for each in ports)
    text = re.sub(r"^ *server collect:8300.*\n", servers, text, flags=re.MULTILINE)
    text = re.sub(r"^ *(zone|resolver) .*\n", "", text, flags=re.MULTILINE)
    return text.replace("listen 8300;", f"listen 127.0.0.1:{port};")


@contextmanager
def proxy(folder: Path, ports: Sequence[int]) -> Iterator[int]:
    """Run nginx in front of collectors at these ports, and yield its port.

    A body that nginx would spill to disk gets status 500, because the spill folder is missing.
    """
    assert INSTALLED is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder.mkdir()
    spooled = folder / "bodies"
    (folder / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr crit;\n"
        "events {}\n"
        "http {\n"
        f"    client_body_temp_path {spooled};\n    proxy_temp_path {folder}/answers;\n"
        f"    fastcgi_temp_path {folder}/f;\n    uwsgi_temp_path {folder}/u;\n"
        f"    scgi_temp_path {folder}/s;\n"
        f"{adapted(ports, port)}}}\n"
    )
    command = [INSTALLED, "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with subprocess.Popen(command) as process:
        try:
            deadline = time.monotonic() + _TIMEOUT
            while not _listens(port):
                assert process.poll() is None, "nginx does not start"
                assert time.monotonic() < deadline
                time.sleep(0.02)
            shutil.rmtree(spooled)
            yield port
        finally:
            process.terminate()
            process.wait(_TIMEOUT)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
