"""A wheel has the digest that its installation has, and whatever is altered gives another."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from pipeline.operations.installed_software import (
    DEPENDENCIES,
    PRODUCT,
    SOURCE_TREE,
    WheelError,
    digest_of_files,
    installed_software,
    recorded,
    software_of,
    software_of_wheel,
)

FILES = {"pipeline/__init__.py": b"one", "pipeline/a.py": b"two", "topics/b.txt": b"three"}
ABOUT = "dpstream-0.1.0.dist-info"
METADATA = b"Metadata-Version: 2.1\nName: dpstream\nVersion: 0.1.0\n"


def wheel_of(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in {**files, f"{ABOUT}/METADATA": METADATA}.items():
            wheel.writestr(name, content)
    return path


def installation_of(folder: Path, files: dict[str, bytes]) -> PathDistribution:
    """As an installer leaves it: with what it adds."""
    about = folder / ABOUT
    added = {
        "pipeline/__pycache__/a.cpython-311.pyc": b"compiled",
        "../../bin/dpstream": b"script",
        f"{ABOUT}/INSTALLER": b"pip",
        f"{ABOUT}/METADATA": METADATA,
    }
    lines = []
    for name, content in {**files, **added}.items():
        place = (folder / name).resolve()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        lines.append(f"{name},{'' if name.endswith('.pyc') else f'sha256={digest}'},")
    (about / "RECORD").write_text("\n".join([*lines, f"{ABOUT}/RECORD,,"]) + "\n")
    return PathDistribution(about)


def test_a_wheel_has_the_digest_of_its_installation(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python" / "site-packages"
    installed = installation_of(site, FILES)
    wheel = software_of_wheel(wheel_of(tmp_path / "one.whl", FILES))
    assert software_of(installed) == wheel
    assert recorded(installed).digest == wheel.digest
    assert (wheel.version, wheel.form) == ("0.1.0", "installed")


@pytest.mark.parametrize(
    "files",
    [
        {**FILES, "pipeline/a.py": b"tow"},
        {**FILES, "pipeline/c.py": b""},
        {name: FILES[name] for name in list(FILES)[1:]},
        {**FILES, "pipeline/a.py": b"three", "topics/b.txt": b"two"},
    ],
)
def test_other_files_have_another_digest(tmp_path: Path, files: dict[str, bytes]) -> None:
    one = software_of_wheel(wheel_of(tmp_path / "one.whl", FILES))
    assert one.digest != software_of_wheel(wheel_of(tmp_path / "other.whl", files)).digest
    again = software_of_wheel(wheel_of(tmp_path / "again.whl", dict(reversed(FILES.items()))))
    assert again == one


def test_of_the_product_what_lies_on_disk_counts_and_not_what_the_installer_noted(
    tmp_path: Path,
) -> None:
    installed = installation_of(tmp_path / "a" / "b" / "c", FILES)
    before, noted = software_of(installed), recorded(installed)
    (tmp_path / "a" / "b" / "c" / "pipeline" / "a.py").write_bytes(b"half the noise")
    assert software_of(installed).digest != before.digest
    assert recorded(installed) == noted


def test_what_runs_here_is_named_with_what_draws_seals_and_reads_kafka() -> None:
    found = installed_software()
    assert set(found) == {PRODUCT, *DEPENDENCIES}
    assert found == installed_software()
    # The tests run from the source tree, and that is said.
    assert found[PRODUCT].form == SOURCE_TREE
    assert found["numpy"].form == "recorded"


def test_the_digest_is_what_the_docstring_says(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"B")
    (tmp_path / "a").write_bytes(b"A")
    lines = b"".join(
        name + b"\0" + hashlib.sha256(content).hexdigest().encode() + b"\n"
        for name, content in ((b"x/a", b"A"), (b"x/b", b"B"))
    )
    files = [("x/b", tmp_path / "b"), ("x/a", tmp_path / "a"), ("x/c", tmp_path / "missing")]
    assert digest_of_files(files) == hashlib.sha256(lines).digest()


@pytest.mark.parametrize("content", [None, b"no wheel"])
def test_what_is_no_wheel_is_refused_with_what_to_do(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "file.whl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(WheelError, match="pip wheel --no-deps"):
        software_of_wheel(path)
