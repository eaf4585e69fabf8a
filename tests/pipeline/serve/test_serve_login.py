"""Test access to the page: password, proxy header, frame ancestors, TLS."""

from __future__ import annotations

import asyncio
import io
import stat
import sys
from dataclasses import replace
from itertools import count as counter
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest

from dpstream.pipeline.addresses import networks
from dpstream.pipeline.cli.server_tls import tls_context
from dpstream.pipeline.serve.access import (
    ATTEMPTS,
    ATTEMPTS_OF_ALL,
    SESSION_SECONDS,
    WINDOW_SECONDS,
    AccessSettings,
    LoginAttempts,
    Sessions,
)
from dpstream.pipeline.serve.connections import Limits
from dpstream.pipeline.serve.passwords import LONGEST, HashedPassword, PasswordError, write_password
from dpstream.pipeline.serve.security import (
    HEADERS,
    LONGEST_TARGET,
    Gatekeeper,
    check_origin,
    headers_for,
)
from tests.support.commands import Commands
from tests.support.live_page import LivePage, deploy_text, live_page, messages, publish
from tests.support.memory_cluster import MemoryCluster, use_memory_cluster
from tests.support.shown_jobs import COUNT, count
from tests.support.waiting import until

TLS = Path(__file__).parents[1] / "tls"
SECRET = "correct horse battery"
VIEW = "/?job=count&range=latest-20"


@pytest.fixture(scope="module")
def hashed() -> HashedPassword:
    return HashedPassword.of(SECRET, cost=1 << 10)


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    publish(cluster, deploy_text(cluster, COUNT), 1, count(10.0))
    return cluster


async def give(
    page: LivePage, password: str, target: str = "/", **headers: str
) -> aiohttp.ClientResponse:
    body = {"password": password, "next": target}
    return await page.client.post(
        f"{page.address}/login", data=body, headers=headers, allow_redirects=False
    )


def test_password_is_verified_by_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "page.password"
    write_password(file, SECRET)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert SECRET not in file.read_text()
    assert list(tmp_path.iterdir()) == [file]
    found = HashedPassword.read(file)
    assert found.matches(SECRET)
    assert not found.matches(SECRET + " ")
    assert not found.matches("")
    first = file.read_text()
    write_password(file, SECRET)
    assert file.read_text() != first
    assert HashedPassword.read(file).matches(SECRET)


@pytest.mark.parametrize(
    "text", ["", "x", SECRET, "dpstream-scrypt$32768$AAAA$AAAA", "a$b$c$d", "dpstream-scrypt$2$$"]
)
def test_malformed_hash_is_rejected(tmp_path: Path, text: str) -> None:
    file = tmp_path / "page.password"
    file.write_text(text)
    with pytest.raises(PasswordError, match="is not a password file"):
        HashedPassword.read(file)
    with pytest.raises(PasswordError, match="is not a password file"):
        HashedPassword.read(tmp_path / "missing")


def test_hash_with_excessive_cost_is_rejected(tmp_path: Path, hashed: HashedPassword) -> None:
    file = tmp_path / "page.password"
    file.write_text(str(hashed).replace("$1024$", "$1073741824$"))
    with pytest.raises(PasswordError, match="is not a password file"):
        HashedPassword.read(file)


def test_sessions_expire_and_cannot_be_forged() -> None:
    now = [1_000.0]
    sessions = Sessions(lambda: now[0])
    token = sessions.begin()
    assert sessions.holds(token)
    assert not Sessions(lambda: now[0]).holds(token)
    expiry, rest = token.split(".", 1)
    assert not sessions.holds(f"{int(expiry) + 1}.{rest}")
    for text in ("", ".", "..", "x", token[:-1], token + "0", "é.é.é", "\udcff", "1.\udcff"):
        assert not sessions.holds(text)
    other = sessions.begin()
    sessions.end(token)
    sessions.end("1.x.y")
    assert not sessions.holds(token)
    assert sessions.holds(other)
    now[0] += SESSION_SECONDS
    assert not sessions.holds(other)
    sessions.end(sessions.begin())
    assert not sessions.holds(token)


def test_wrong_passwords_are_throttled_per_address_and_in_total() -> None:
    now = [0.0]
    attempts = LoginAttempts(lambda: now[0])
    for _ in range(ATTEMPTS):
        assert attempts.wait("192.0.2.1") == 0
        attempts.begin("192.0.2.1")
    assert attempts.wait("192.0.2.1") == WINDOW_SECONDS
    assert attempts.wait("192.0.2.2") == 0
    now[0] = WINDOW_SECONDS
    assert attempts.wait("192.0.2.1") == 0
    for peer in counter():
        if attempts.wait(f"{peer}"):
            break
        attempts.begin(f"{peer}")
    assert peer == ATTEMPTS_OF_ALL
    # This does not delay a correct password.
    now[0] = 3 * WINDOW_SECONDS
    for _ in range(3 * ATTEMPTS):
        assert attempts.wait("192.0.2.1") == 0
        attempts.begin("192.0.2.1")
        attempts.succeed("192.0.2.1")


def test_login_attempts_from_one_ipv6_network_share_a_limit() -> None:
    attempts = LoginAttempts(lambda: 0.0)
    for number in range(ATTEMPTS):
        assert attempts.wait("2001:db8::1") == 0
        attempts.begin(f"2001:db8::{number:x}")
    assert attempts.wait("2001:db8::1") == WINDOW_SECONDS
    assert attempts.wait("2001:db8:0:1::1") == 0


async def test_longest_password_is_accepted(cluster: MemoryCluster) -> None:
    longest = "\N{OLD KEY}" * LONGEST
    hashed = HashedPassword.of(longest, cost=1 << 10)

    async with live_page(cluster, access=AccessSettings(hashed)) as page:
        target = "/?" + "=" * 1_400
        async with await give(page, longest, target) as response:
            assert (response.status, response.headers["Location"]) == (303, target)
        async with await give(page, longest * 2, target) as response:
            assert response.status == 413


async def test_non_utf8_cookie_is_ignored(cluster: MemoryCluster, hashed: HashedPassword) -> None:
    async with live_page(cluster, access=AccessSettings(hashed)) as page:
        host, port = page.address.removeprefix("http://").strip("/").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"GET /api/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Cookie: dpstream=1.\xff\r\n\r\n"
        )
        assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
        writer.close()


async def test_nothing_is_served_without_the_password(
    cluster: MemoryCluster, hashed: HashedPassword
) -> None:
    async with live_page(cluster, access=AccessSettings(hashed)) as page:
        paths = "", "/jobs", "/jobs/count", "/jobs/count/estimates?format=csv"
        others = "/static/main.js", "/ws?job=count", "/charts.json?job=count"
        for path in (*(f"/api{path}" for path in paths), *others):
            async with page.client.get(page.address + path) as response:
                assert response.status == 401, path
                assert "count" not in (await response.text()).replace(path, "")
        async with page.client.get(page.address + VIEW, allow_redirects=False) as response:
            assert response.status == 303
            assert response.headers["Location"] == f"/login?next={quote(VIEW, safe='')}"
        # The form, and the resources it loads.
        async with page.client.get(f"{page.address}/login?next={quote(VIEW)}") as response:
            text = await response.text()
            assert response.status == 200
            assert 'value="/?job=count&amp;range=latest-20"' in text
            assert "form-action 'self'" in response.headers["Content-Security-Policy"]
        async with page.client.get(f"{page.address}/static/style.css") as response:
            assert response.status == 200
        wrong = await give(page, "wrong password")
        assert wrong.status == 401
        assert "Wrong password" in await wrong.text()
        assert "Set-Cookie" not in wrong.headers
        right = await give(page, SECRET, VIEW)
        assert (right.status, right.headers["Location"]) == (303, VIEW)
        cookie = right.headers["Set-Cookie"]
        assert all(each in cookie for each in ("HttpOnly", "SameSite=Strict", "Path=/"))
        assert "Secure" not in cookie
        # Unchanged from here on; the policy of the page allows no form.
        async with page.client.get(page.address + VIEW) as response:
            assert "form-action 'none'" in response.headers["Content-Security-Policy"]
        assert (await page.get("/api/jobs"))["jobs"][0]["job"] == "count"
        async with page.view("job=count") as socket:
            assert (await socket.receive_json())["type"] == "hello"
        async with page.client.get(f"{page.address}/login", allow_redirects=False) as response:
            assert response.status == 303


async def test_password_guesses_are_slowed_down(
    cluster: MemoryCluster, hashed: HashedPassword
) -> None:
    async with live_page(cluster, access=AccessSettings(hashed)) as page:
        for _ in range(ATTEMPTS):
            assert (await give(page, "wrong password")).status == 401
        late = await give(page, SECRET)
        assert late.status == 429
        assert 0 < int(late.headers["Retry-After"]) <= WINDOW_SECONDS
        assert "Set-Cookie" not in late.headers


async def test_login_requires_its_own_form_and_redirects_locally(
    cluster: MemoryCluster, hashed: HashedPassword
) -> None:
    async with live_page(cluster, access=AccessSettings(hashed)) as page:
        assert (await give(page, SECRET, Origin="https://evil.example")).status == 403
        for target in ("https://evil.example/", "//evil.example/?x", "/?a\r\nb", "/api", ""):
            response = await give(page, SECRET, target)
            assert (response.status, response.headers["Location"]) == (303, "/")
        long = await page.client.post(f"{page.address}/login", data=b"x" * 20_000)
        assert long.status == 413
        # POST is accepted by no other path.
        other = await page.client.post(f"{page.address}/api/jobs", data=b"x")
        assert other.status == 405


async def test_logout_invalidates_all_copies_of_the_cookie(
    cluster: MemoryCluster, hashed: HashedPassword
) -> None:
    async with live_page(cluster, access=AccessSettings(hashed)) as page:
        await give(page, SECRET)
        assert (await page.get("/api/jobs"))["login"] is True
        (kept,) = page.client.cookie_jar
        out = f"{page.address}/logout"
        foreign = {"Origin": "https://evil.example"}
        assert (await page.client.post(out, headers=foreign)).status == 403
        assert (await page.client.post(out, data=b"x")).status == 413
        assert (await page.get("/api/jobs"))["login"] is True
        left = await page.client.post(out, allow_redirects=False)
        assert (left.status, left.headers["Location"]) == (303, "/login")
        assert len(page.client.cookie_jar) == 0
        await page.get("/api/jobs", status=401)
        await page.get("/api/jobs", status=401, Cookie=f"{kept.key}={kept.value}")
        # Logging out without a session also succeeds.
        assert (await page.client.post(out, allow_redirects=False)).status == 303
    async with live_page(cluster) as page:
        assert (await page.get("/api/jobs"))["login"] is False
        assert (await page.client.post(f"{page.address}/logout")).status == 405


async def test_link_from_another_site_keeps_the_session(
    cluster: MemoryCluster, hashed: HashedPassword
) -> None:
    async with live_page(cluster, access=AccessSettings(hashed)) as page:
        headers = {"Sec-Fetch-Site": "cross-site"}
        async with page.client.get(page.address + VIEW, headers=headers) as response:
            assert response.status == 200
            assert 'http-equiv="refresh"' in await response.text()
            assert "count" not in (await response.text())


async def test_no_login_is_required_without_a_password(cluster: MemoryCluster) -> None:
    async with live_page(cluster) as page:
        await page.body("/")
        assert (await give(page, SECRET)).status == 405


async def test_forwarded_header_counts_only_from_the_proxy(cluster: MemoryCluster) -> None:
    named = {"X-Forwarded-User": "ada"}
    async with live_page(cluster, access=AccessSettings(header="X-Forwarded-User")) as page:
        async with page.client.get(f"{page.address}/api/jobs", headers=named) as response:
            assert response.status == 200
        await page.get("/api/jobs", 401)
        blank = {"X-Forwarded-User": " "}
        async with page.client.get(f"{page.address}/api/jobs", headers=blank) as response:
            assert response.status == 401
        await page.get("/", 401)
    elsewhere = AccessSettings(header="X-Forwarded-User", proxies=networks(["192.0.2.0/24"]))
    async with (
        live_page(cluster, access=elsewhere) as page,
        page.client.get(f"{page.address}/api/jobs", headers=named) as response,
    ):
        assert response.status == 401
    assert elsewhere.named_by_proxy(named, "192.0.2.9")
    assert elsewhere.named_by_proxy(named, "::ffff:192.0.2.9")
    assert not elsewhere.named_by_proxy(named, "198.51.100.1")
    assert not elsewhere.named_by_proxy(named, None)


async def test_cookie_is_secure_with_tls(cluster: MemoryCluster, hashed: HashedPassword) -> None:
    tls = tls_context(TLS / "server.pem", TLS / "server.pem")
    async with live_page(cluster, access=AccessSettings(hashed), tls=tls) as page:
        assert page.address.startswith("https://")
        body = {"password": SECRET}
        async with page.client.post(
            f"{page.address}/login", data=body, allow_redirects=False, ssl=False
        ) as response:
            assert response.status == 303
            cookie = response.headers["Set-Cookie"]
            assert cookie.startswith("__Host-dpstream=")
            assert "Secure" in cookie
        async with page.client.get(f"{page.address}/api/jobs", ssl=False) as response:
            assert response.status == 200


async def test_incomplete_tls_handshake_times_out(cluster: MemoryCluster) -> None:
    tls = tls_context(TLS / "server.pem", TLS / "server.pem")
    limits = replace(Limits(), head_seconds=0.1)
    async with live_page(cluster, limits=limits, tls=tls) as page:
        host, port = page.address.removeprefix("https://").strip("/").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        # By default, the timeout is a minute.
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()


async def test_allowed_origin_may_frame_the_page(cluster: MemoryCluster) -> None:
    origin = "https://intranet.example.org"
    async with (
        live_page(cluster, frame_ancestors=(origin,)) as page,
        page.client.get(f"{page.address}/?embed=1") as response,
    ):
        policy = response.headers["Content-Security-Policy"]
        assert policy.endswith(f"frame-ancestors {origin}")
    assert headers_for()["Content-Security-Policy"].endswith("frame-ancestors 'none'")


@pytest.mark.parametrize(
    "text",
    ["", "*", "https://a.example/x", "a.example", "https://a.example; script-src *", "data:x",
     "https://a.example\n", "https://", "https://a b"],
)  # fmt: skip
def test_malformed_frame_ancestor_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"^"):
        check_origin(text)
    assert check_origin("https://a.example:8443") == "https://a.example:8443"


@pytest.fixture
def dpstream(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    use_memory_cluster(monkeypatch)
    return Commands(capsys)


def test_command_writes_a_password_hash_that_the_server_reads(
    dpstream: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "page.password"
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{SECRET}\n"))
    assert dpstream("password", file).code == 0
    assert HashedPassword.read(file).matches(SECRET)
    monkeypatch.setattr(sys, "stdin", io.StringIO("short\n"))
    result = dpstream("password", file)
    assert (result.code, "has 5 characters" in result.errors) == (2, True)
    assert HashedPassword.read(file).matches(SECRET)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert "no password received" in dpstream("password", file).errors
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{SECRET}\n"))
    result = dpstream("password", tmp_path / "missing" / "file")
    assert "cannot write" in result.errors


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--password-file", "missing"), "is not a password file"),
        (("--trusted-proxy", "10.0.0.1"), "--trusted-proxy requires --trusted-header"),
        (("--trusted-header", "a b"), "expected the name of a header"),
        (
            ("--trusted-header", "X-User", "--trusted-proxy", "x"),
            "expected an address or a network",
        ),
        (("--frame-ancestor", "*"), "expected only scheme and host"),
        (("--tls-cert", "x"), "require each other"),
        (("a", "b", "--ground-truth", "x.csv"), "expected JOB=FILE"),
        (("--ground-truth", "a=x.csv"), "file x.csv does not exist"),
        (("--address", ""), "--address is empty"),
        (("--address", "192.0.2.1", "--port", "0"), "cannot serve at 192.0.2.1"),
        (("--tls-cert", "x", "--tls-key", "y"), "file x does not exist"),
    ],
)
def test_serve_reports_the_invalid_option(
    dpstream: Commands, options: tuple[str, ...], why: str
) -> None:
    result = dpstream("serve", *options)
    assert (result.code, why in result.errors) == (2, True)


POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


def check(headers: object) -> None:
    found = {name.lower(): value for name, value in headers.items()}  # type: ignore[attr-defined]
    policy = dict(
        part.strip().split(" ", 1) for part in found["content-security-policy"].split(";")
    )
    assert policy == POLICY
    assert found["x-content-type-options"] == "nosniff"
    assert found["referrer-policy"] == "no-referrer"
    assert not [name for name in found if name.startswith("access-control-")]
    assert "server" not in found


async def raw(page: LivePage, request: bytes) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await page.connect(request)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body


async def test_every_response_has_the_security_policy(cluster: MemoryCluster) -> None:
    async with live_page(cluster) as page:
        index = (await page.body("/")).decode()
        script = index.partition('<script src="')[2].partition('"')[0]
        assert script.startswith("/bokeh/")
        paths = {
            "/": 200,
            script: 200,
            "/static/style.css": 200,
            "/api": 200,
            "/api/jobs": 200,
            "/api/jobs/count": 200,
            "/api/jobs/count/estimates?format=csv": 200,
            "/charts.json?job=count": 200,
            "/api/jobs/unknown": 404,
            "/api/jobs/count/curve?from=x": 400,
            "/nothing": 404,
            "/ws?job=count": 400,
        }
        for path, status in paths.items():
            async with page.client.get(page.address + path) as response:
                assert response.status == status, path
                check(response.headers)
        async with page.client.post(page.address + "/api/jobs") as response:
            assert response.status == 405
            check(response.headers)
        async with page.view("job=count") as viewer:
            check(viewer._response.headers)


MALFORMED = {
    b"GET / HTTP/1.1\r\nHost: localhost\r\nBad Header: x\r\n\r\n": 400,
    b"GET / HTTP/3\r\nHost: localhost\r\n\r\n": 400,
    b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n": 400,
    b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n": 400,
    b"GET /" + b"a" * 50_000: 414,
    b"GET /" + b"a" * 3_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n": 414,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: " + b"a" * 50_000: 431,
    b"GET / HTTP/1.1\r\n\r\n": 400,
    b"GET / HTTP/1.1\r\nHost:\r\n\r\n": 421,
    b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nabcd": 405,
    b"GET /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\nabcd": 413,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n": 413,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n\r\n": 417,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: nonsense\r\n\r\n": 417,
    b"GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[\r\nConnection: close\r\n\r\n": 403,
    b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n": 405,
    b"OPTIONS /api/jobs HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n": 405,
    b"GET /api/jobs HTTP/1.1\r\nHost: localhost:1\r\nOrigin: http://localhost:2\r\n\r\n": 403,
}


async def test_malformed_requests_are_rejected_and_closed(
    cluster: MemoryCluster,
) -> None:
    async with live_page(cluster) as page:
        for request, expected in MALFORMED.items():
            status, headers, body = await raw(page, request)
            assert status == expected, (request[:60], body)
            check(headers)
            assert body
        await page.get("/api/jobs")
        await page.client.close()
        await until(lambda: not page.site.connections.open)


async def test_dns_rebinding_is_rejected(cluster: MemoryCluster) -> None:
    async with live_page(cluster, hosts=["Stats.Example.org"]) as page:
        for host in ("evil.example", "evil.example:8765", "localhost.evil.example", "a@localhost"):
            body = await page.get("/api/jobs", 421, Host=host)
            assert "--allow-host" in body["error"]
        for host in ("localhost", "127.0.0.1:99", "[::1]:8765", "stats.example.org", "LOCALHOST."):
            await page.get("/api/jobs", 200, Host=host)


async def test_cross_site_requests_are_rejected(cluster: MemoryCluster) -> None:
    async with live_page(cluster, hosts=["stats.example.org"]) as page:
        own = page.address
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "file://", "x"):
            await page.get("/api/jobs", 403, Origin=origin)
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await page.client.ws_connect(f"{own}/ws", origin=origin)
        await page.get("/api/jobs", 200, Origin=own)
        async with page.client.ws_connect(f"{own}/ws", origin=own) as viewer:
            await messages(viewer, "hello")
        foreign_port = "https://stats.example.org:8443"
        await page.get("/api/jobs", 403, Origin=foreign_port)
        # Behind a proxy that forwards from an address of its own.
        await page.get("/api/jobs", 200, Origin="https://stats.example.org")


@pytest.mark.parametrize(
    "host", ["", ":", "[", "[::1", "localhost:x", "localhost:99999", "a/b", "a?b", "a#b", "\u2100"]
)
def test_malformed_hosts_are_rejected(host: str) -> None:
    rejection = Gatekeeper().reject("GET", "/", {"Host": host}, has_body=False)
    assert rejection is not None
    assert rejection.status == 421


async def test_longest_url_is_accepted_and_a_longer_one_rejected(cluster: MemoryCluster) -> None:
    async with live_page(cluster) as page:
        path = "/api/jobs?x="
        await page.get(path + "a" * (LONGEST_TARGET - len(path)))
        await page.get(path + "a" * (LONGEST_TARGET - len(path) + 1), 414)


def test_security_headers_are_complete() -> None:
    assert "unsafe-eval" not in HEADERS["Content-Security-Policy"]
    assert "http" not in HEADERS["Content-Security-Policy"]
