"""Access control for the live page: a password form, and a cookie for logged-in users."""

from __future__ import annotations

import asyncio
import html
import math
from urllib.parse import parse_qs, quote

from aiohttp import hdrs, web

from dpstream.pipeline.serve.access import AccessSettings, LoginAttempts, Sessions
from dpstream.pipeline.serve.passwords import LONGEST

PATH = "/login"
OUT = "/logout"
PUBLIC = frozenset({"/static/style.css", "/static/favicon.svg", "/favicon.ico"})
"""Paths of files that the login form itself loads."""

_LONGEST_NEXT = 1_500
# A character in a form takes up to four bytes, each encoded as three characters.
_LONGEST_BODY = 12 * LONGEST + 3 * _LONGEST_NEXT + 100
_BODY_SECONDS = 5.0
_AT_ONCE = 2
_PLACE, _SAID = "<!-- next -->", "<!-- said -->"
_REFRESH = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>dpstream</title>'
    '<meta http-equiv="refresh" content="0"><p>One moment.</p></html>'
)


class LoginHandler:
    """Handle requests from users who have no access yet.

    `page` is the form, with placeholders for the target and a message. `secure` limits cookies to
    TLS.
    """

    def __init__(self, settings: AccessSettings, page: str, *, secure: bool) -> None:
        self._settings = settings
        self._page = page
        self._secure = secure
        self._cookie = "__Host-dpstream" if secure else "dpstream"
        self._sessions = Sessions()
        self._attempts = LoginAttempts()
        self._looking = asyncio.Semaphore(_AT_ONCE)

    def takes(self, request: web.Request) -> bool:
        """Return whether a request is a login or logout; no other POST requests are accepted."""
        given = request.method == "POST" and request.path in (PATH, OUT)
        return given and self._settings.password is not None

    def knows(self, request: web.Request) -> bool:
        token = request.cookies.get(self._cookie, "")
        return bool(token) and self._sessions.holds(token)

    async def answer(self, request: web.Request) -> web.StreamResponse | None:
        if self._settings.open or self._settings.named_by_proxy(request.headers, _peer(request)):
            return None
        if self._settings.password is None:
            return _rejection("access denied: the proxy did not send a user name")
        if request.method == "POST" and request.path == OUT:
            return self._leave(request)
        if request.method != "POST" and self.knows(request):
            return _go_to("/") if request.path == PATH else None
        if request.path == PATH:
            if request.method == "POST":
                return await self._take(request)
            return self._form(request.query.get("next", "/"))
        if request.path in PUBLIC:
            return None
        if request.path != "/":
            return _rejection(f"login required: send the password to {PATH}")
        if request.headers.get("Sec-Fetch-Site") == "cross-site":
            # A user who follows another site's link may have the cookie, but browsers send it only
            # with requests that start here.
            return web.Response(text=_REFRESH, content_type="text/html", headers=_FRESH)
        return _go_to(f"{PATH}?next={quote(request.path_qs, safe='')}")

    def _leave(self, request: web.Request) -> web.Response:
        self._sessions.end(request.cookies.get(self._cookie, ""))
        response = _go_to(PATH)
        response.del_cookie(
            self._cookie, path="/", httponly=True, samesite="Strict", secure=self._secure
        )
        return response

    async def _take(self, request: web.Request) -> web.StreamResponse:
        length = request.content_length
        if length is None or length > _LONGEST_BODY:
            return _rejection("the request body must be the login form", 413)
        body = await asyncio.wait_for(request.read(), _BODY_SECONDS)
        try:
            given = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=4)
        except ValueError:
            return _rejection("the request body must be the login form", 400)
        target, password = (given.get(name, [""])[0] for name in ("next", "password"))
        peer = _peer(request) or ""
        waits = self._attempts.wait(peer)
        if waits > 0:
            seconds = math.ceil(waits)
            error = f"Too many wrong passwords. Try again in {seconds} s."
            return self._form(target, error, 429, {hdrs.RETRY_AFTER: str(seconds)})
        self._attempts.begin(peer)
        stored = self._settings.password
        assert stored is not None
        async with self._looking:
            right = await asyncio.to_thread(stored.matches, password)
        if not right:
            return self._form(target, "Wrong password.", 401)
        self._attempts.succeed(peer)
        response = _go_to(_within(target))
        response.set_cookie(
            self._cookie,
            self._sessions.begin(),
            path="/",
            httponly=True,
            samesite="Strict",
            secure=self._secure,
        )
        return response

    def _form(
        self, target: str, error: str = "", status: int = 200, headers: dict[str, str] | None = None
    ) -> web.Response:
        text = self._page.replace(_PLACE, html.escape(_within(target), quote=True))
        text = text.replace(_SAID, html.escape(error))
        return web.Response(
            text=text, status=status, content_type="text/html", headers=_FRESH | (headers or {})
        )


_FRESH = {hdrs.CACHE_CONTROL: "no-store"}


def _within(target: str) -> str:
    """Return the path to open after login, which is always on this page.

    >>> _within("/?job=logins"), _within("//evil.example/"), _within("/static/x")
    ('/?job=logins', '/', '/')
    """
    sound = target.isascii() and target.isprintable() and len(target) <= _LONGEST_NEXT
    return target if sound and target.startswith("/?") else "/"


def _go_to(target: str) -> web.Response:
    return web.Response(status=303, headers={hdrs.LOCATION: target, **_FRESH})


def _rejection(message: str, status: int = 401) -> web.Response:
    return web.json_response({"error": message}, status=status, headers=_FRESH)


def _peer(request: web.Request) -> str | None:
    name = None if request.transport is None else request.transport.get_extra_info("peername")
    return str(name[0]) if name else None
