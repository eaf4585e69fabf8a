"""The experiments that come with dpstream, and the scripts that prepare their data.

Every ``NAME.yaml`` here is run by ``dpstream evaluate NAME``. Where the data may not be passed on
with this software, a ``prepare_...`` module makes its log from the file that is public.
"""

from importlib import resources
from pathlib import Path


def shipped_experiments() -> dict[str, Path]:
    """The experiment files, by name."""
    # Packages are installed unpacked, so the resource is a file.
    folder = Path(str(resources.files(__name__)))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
