"""Static files of the live page, loaded into memory: requests never access the file system."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from importlib.resources import files

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".txt": "text/plain; charset=utf-8",
}
_PLACEHOLDER = "BOKEH_JS"
_FOR_EVER = "public, max-age=31536000, immutable"
_ASK_AGAIN = "no-cache"


@dataclass(frozen=True)
class Asset:
    content: bytes
    type: str
    caching: str

    @cached_property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    @cached_property
    def compressed(self) -> bytes | None:
        if self.type.startswith("image/") and "svg" not in self.type:
            return None
        return gzip.compress(self.content, 6, mtime=0)


LOGIN_PAGE = "login.html"


def load_login_page() -> str:
    return (
        files("dpstream.pipeline.serve").joinpath("static", LOGIN_PAGE).read_text(encoding="utf-8")
    )


def load_assets() -> Mapping[str, Asset]:
    bokeh_path = f"/bokeh/{version('bokeh')}/bokeh.min.js"
    bokeh = files("bokeh").joinpath("server", "static", "js", "bokeh.min.js").read_bytes()
    assets = {bokeh_path: Asset(bokeh, _TYPES[".js"], _FOR_EVER)}
    for file in files("dpstream.pipeline.serve").joinpath("static").iterdir():
        ending = f".{file.name.rpartition('.')[2]}"
        if file.is_file() and ending in _TYPES:
            content = file.read_bytes()
            if file.name == "index.html":
                content = content.replace(_PLACEHOLDER.encode(), bokeh_path.encode())
                assets["/"] = Asset(content, _TYPES[ending], _ASK_AGAIN)
            elif file.name == LOGIN_PAGE:
                continue
            else:
                assets[f"/static/{file.name}"] = Asset(content, _TYPES[ending], _ASK_AGAIN)
    for path, alias in (("/static/favicon.svg", "/favicon.ico"), ("/static/api.txt", "/api")):
        if path in assets:
            assets[alias] = assets[path]
    return assets
