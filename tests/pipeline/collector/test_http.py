"""Test a collector over real sockets: answers, and the bounded cost of hostile clients."""

import asyncio
import json
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import uvloop
from openapi_spec_validator import validate

from dpstream.pipeline.addresses import networks
from dpstream.pipeline.collector.http_limits import HttpLimits, Rates
from dpstream.pipeline.collector.responses import HttpResponse, written
from dpstream.pipeline.collector.service import Access
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.job_phases import Phase
from dpstream.topics.envelopes import BODY_MAX, CONTENT_TYPE
from dpstream.topics.loose_batches import decode_loose_batch
from tests.support.certificates import write_certificate
from tests.support.collector_server import NOW, Client, Server, collecting, report, request
from tests.support.device_jobs import BEGIN, DAY, LATE, body, device_job, envelope
from tests.support.waiting import until

APP = "https://app.example.org"


@pytest.fixture(scope="module")
def job() -> DeployedJob:
    return device_job()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await work()

    asyncio.run(bounded())


async def test_reports_are_acknowledged_on_a_kept_alive_connection(job: DeployedJob) -> None:
    async with collecting(job) as server:
        client = await server.connect()
        for count in (1, 100):
            reply = await client.report(body(job, 1, [envelope(job) for _ in range(count)]))
            assert reply.status == 202
            assert json.loads(reply.body) == {"accepted": count, "epoch": 1}
            assert reply.headers["cache-control"] == "no-store"
        batches = map(decode_loose_batch, server.writer.of("phones.reports"))
        assert sum(len(batch.rows) for batch in batches) == 101


async def test_responses_follow_request_order(job: DeployedJob) -> None:
    async with collecting(job) as server:
        client = await server.connect()
        good = report(body(job))
        client.send(good + request("GET", "/v1/jobs") + good + request("GET", "/x") + good)
        statuses = [(await client.reply()).status for _ in range(5)]
        assert statuses == [202, 200, 202, 404, 202]
        for byte in good:
            client.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.reply()).status == 202
        for _ in range(200):
            client.send(good)
        assert [(await client.reply()).status for _ in range(200)] == [202] * 200


async def test_get_requests_return_jobs_time_and_health(job: DeployedJob) -> None:
    async with collecting(job) as server:
        client = await server.connect()
        said = {
            path: json.loads((await client.ask("GET", path)).body)
            for path in ("/v1/jobs", "/v1/jobs/phones", "/v1/jobs/phones/time", "/healthz")
        }
        assert job.signed_description is not None
        assert said["/v1/jobs"] == {"jobs": ["phones"]}
        assert said["/v1/jobs/phones"] == job.signed_description.encoded()
        assert said["/v1/jobs/phones/time"] == {"time": BEGIN + 1000, "epoch": 1}
        assert (await client.ask("GET", "/v1/jobs?x=1")).status == 200
        head = await client.ask("HEAD", "/v1/jobs")
        assert (head.status, head.headers["content-length"]) == (200, "19")
        assert (await client.ask("GET", "/readyz")).status == 200


async def test_openapi_description_matches_the_server(job: DeployedJob) -> None:
    async with collecting(job) as server:
        client = await server.connect()
        interface = json.loads((await client.ask("GET", "/v1/openapi.json")).body)
        validate(interface)
        sent = interface["paths"]["/v1/jobs/{job}/reports"]["post"]["requestBody"]["content"]
        assert {kind: each["schema"]["maxLength"] for kind, each in sent.items()} == {
            CONTENT_TYPE: BODY_MAX
        }
        problems = interface["components"]["responses"]
        for path, operations in interface["paths"].items():
            where = path.replace("{job}", "phones")
            for method in ("get", "post", "put", "delete", "patch"):
                reply = await client.ask(method.upper(), where)
                if method in operations:
                    assert reply.status not in (404, 405)
                    wanted = operations[method]["responses"][str(reply.status)]
                    wanted = problems[str(reply.status)] if "$ref" in wanted else wanted
                    assert reply.headers["content-type"] in wanted["content"]
                else:
                    assert reply.status in (404, 405)
                    assert reply.problem in ("/problems/method", "/problems/not-found")


async def test_rejections_are_problem_documents(job: DeployedJob) -> None:
    async with collecting(job) as server:
        client = await server.connect()
        good = body(job)
        kind = f"Content-Type: {CONTENT_TYPE}"
        requested = [
            (await client.ask("POST", "/v1/jobs/phones/reports", body=good), "media-type"),
            (await client.report(good, job="unlisted"), "unknown-job"),
            (await client.ask("GET", "/v1/jobs/unlisted"), "unknown-job"),
            (await client.ask("GET", "/v1/jobs/phones/reports"), "method"),
            (await client.ask("POST", "/v1/jobs/phones", kind, body=good), "method"),
            (await client.ask("POST", "/v1/jobs/phones/unlisted", kind, body=good), "not-found"),
            (await client.ask("GET", "/v1/jobs//time"), "not-found"),
            (await client.ask("GET", "/v1/jobs/phones/"), "not-found"),
            (await client.ask("DELETE", "/v1/jobs"), "method"),
            (await client.report(b"x"), "malformed"),
            (await client.report(body(job, 3)), "early"),
        ]
        for reply, problem in requested:
            assert reply.problem == f"/problems/{problem}"
            # No part of the request is echoed.
            assert b"unlisted" not in reply.body
        server.service.clock.note(BEGIN + DAY + LATE, 0.0)
        assert (await client.report(good)).problem == "/problems/late"
        assert server.batch_writer.counters.rejected == {
            "media_type": 1,
            "malformed": 1,
            "early": 1,
            "late": 1,
        }


async def test_requests_can_be_retried_until_jobs_and_time_are_known(job: DeployedJob) -> None:
    async with collecting(job, now=None) as server:
        client = await server.connect()
        for reply in (
            await client.report(body(job)),
            await client.ask("GET", "/v1/jobs/phones/time"),
            await client.ask("GET", "/readyz"),
        ):
            assert reply.problem == "/problems/not-ready"
            assert reply.headers["retry-after"] == "1"
        server.service.jobs, server.service.informed = {}, False
        for path in ("/v1/jobs", "/v1/jobs/phones"):
            assert (await client.ask("GET", path)).problem == "/problems/not-ready"
        assert (await client.report(body(job))).problem == "/problems/not-ready"


async def test_responses_follow_the_jobs_phase_and_end(job: DeployedJob) -> None:
    async with collecting(job) as server:
        client = await server.connect()
        served = server.service.jobs["phones"]
        for phase, status in (
            (Phase.PAUSED, 202),
            (Phase.DRAINING, 503),
            (Phase.DRAINED, 503),
            (Phase.RUNNING, 202),
        ):
            served.phase = phase
            assert (await client.report(body(job))).status == status
        waiting = await server.connect()
        server.writer.gate = asyncio.Event()
        waiting.send(report(body(job)))
        while not server.batch_writer.is_open(1):
            await asyncio.sleep(0.001)
        server.service.stopping = True
        server.connections.close_idle()
        assert await client.closed()
        late = await server.connect()
        assert (await late.report(body(job))).problem == "/problems/stopping"
        assert await late.closed()
        assert (await (await server.connect()).ask("GET", "/readyz")).status == 503
        server.writer.gate.set()
        assert (await waiting.reply()).status == 202
        assert await waiting.closed()


async def test_cross_origin_requests_require_an_allowed_origin(job: DeployedJob) -> None:
    preflight = ("OPTIONS", "/v1/jobs/phones/reports", "Access-Control-Request-Method: POST")
    async with collecting(job, access=Access(frozenset({APP}))) as server:
        client = await server.connect()
        reply = await client.ask(*preflight, f"Origin: {APP}")
        assert reply.status == 204
        assert reply.headers["access-control-allow-origin"] == APP
        assert "POST" in reply.headers["access-control-allow-methods"]
        assert "Content-Type" in reply.headers["access-control-allow-headers"]
        reply = await client.report(body(job), f"Origin: {APP}")
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (202, APP)
        assert reply.headers["vary"] == "Origin"
        for foreign in ("https://evil.example", "null", f"{APP}.evil.example"):
            reply = await client.ask(*preflight, f"Origin: {foreign}")
            assert reply.problem == "/problems/origin"
            assert "access-control-allow-origin" not in reply.headers
    async with collecting(job) as server:
        client = await server.connect()
        assert (await client.ask(*preflight, f"Origin: {APP}")).status == 403
        reply = await client.report(body(job), f"Origin: {APP}")
        assert "access-control-allow-origin" not in reply.headers
        for path, methods in (
            ("/v1/jobs", "GET, HEAD, OPTIONS"),
            ("/v1/jobs/phones/reports", "POST, OPTIONS"),
        ):
            reply = await client.ask("OPTIONS", path)
            assert (reply.status, reply.headers["allow"]) == (204, methods)
            assert (await client.ask("DELETE", path)).headers["allow"] == methods
        for method in ("OPTIONS", "DELETE"):
            assert (await client.ask(method, "/v1/none")).problem == "/problems/not-found"


async def test_rate_limits_apply_to_each_address(job: DeployedJob) -> None:
    access = Access(proxies=networks(["127.0.0.1"]))
    rates = Rates(1.0, lambda: 0.0, burst=2)
    async with collecting(job, rates=rates, access=access) as server:
        statuses = []
        for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2", "1.2.3.4, 192.0.2.1"):
            client = await server.connect()
            reply = await client.report(body(job), f"X-Forwarded-For: {address}")
            statuses.append(reply.status)
        assert statuses == [202, 202, 202, 429]
        assert reply.headers["retry-after"] == "1"
        assert (await (await server.connect()).ask("GET", "/healthz")).status == 200


async def _no_answer_or(client: Client, *problems: str) -> None:
    reply = await client.reply()
    assert reply.problem.removeprefix("/problems/") in problems
    assert reply.headers["connection"] == "close"
    client.writer.close()


async def test_endless_bodies_are_rejected(job: DeployedJob) -> None:
    async with collecting(job) as server:
        head = f"POST /v1/jobs/phones/reports HTTP/1.1\r\nContent-Type: {CONTENT_TYPE}\r\n"
        large = head + f"Content-Length: {BODY_MAX + 1}\r\n\r\n"
        client = await server.connect()
        client.send(large.encode())
        await _no_answer_or(client, "too-large")
        client = await server.connect()
        client.send(f"{head}Expect: 100-continue\r\nContent-Length: {1 << 40}\r\n\r\n".encode())
        await _no_answer_or(client, "too-large")
        chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()
        for chunk in (b"10000\r\n" + bytes(1 << 16) + b"\r\n", b"1\r\nx\r\n" * 10_000):
            client = await server.connect()
            client.send(chunked + chunk * 40)
            await _no_answer_or(client, "too-large")
        # Chunks with long extensions, and trailers, are rejected in the same way.
        for piece in (b"1;" + b"e" * 60_000 + b"\r\nx\r\n", b"0\r\nx: " + b"y" * 60_000):
            client = await server.connect()
            for _ in range(60):
                client.send(piece)
            await _no_answer_or(client, "too-large", "headers", "malformed")
        client = await server.connect()
        client.send(chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (BODY_MAX + 1, bytes(BODY_MAX + 1)))
        await _no_answer_or(client, "too-large")
        client = await server.connect()
        client.send(chunked + b"0\r\nx: " + b"y" * (8 * BODY_MAX))
        await _no_answer_or(client, "too-large")
        client = await server.connect()
        good = body(job)
        client.send(chunked + b"%x\r\n%b\r\n0\r\n\r\n" % (len(good), good))
        assert (await client.reply()).status == 202
        client.send(report(good, "Expect: 100-continue"))
        assert (await client.reply()).status == 202


async def test_endless_heads_are_rejected(job: DeployedJob) -> None:
    async with collecting(job) as server:
        for start, piece, problems in (
            (b"GET /v1/jobs HTTP/1.1\r\n", b"x: " + b"y" * 1000 + b"\r\n", ("headers",)),
            (b"GET /v1/jobs HTTP/1.1\r\nx: ", b"y" * 1000, ("headers",)),
            (b"GET /", b"y" * 1000, ("uri", "headers")),
            (b"", b"G" * 1000, ("malformed",)),
        ):
            client = await server.connect()
            client.send(start)
            for _ in range(300):
                client.send(piece)
            await _no_answer_or(client, *problems)


async def test_ambiguous_requests_are_rejected(job: DeployedJob) -> None:
    async with collecting(job) as server:
        for lines in (
            "Content-Length: 3\r\nTransfer-Encoding: chunked",
            "Content-Length: 3\r\nContent-Length: 4",
            "Content-Length: -1",
            "Transfer-Encoding: chunked, identity",
            "Upgrade: h2c\r\nConnection: Upgrade",
        ):
            client = await server.connect()
            client.send(f"POST /v1/jobs HTTP/1.1\r\n{lines}\r\n\r\nabcd".encode())
            assert (await client.reply()).status == (405 if "h2c" in lines else 400)
            client.writer.close()


@pytest.mark.parametrize("requests", [300, pytest.param(20_000, marks=pytest.mark.verify)])
async def test_mutated_requests_are_answered_with_documented_statuses(
    job: DeployedJob, requests: int
) -> None:
    generator = np.random.default_rng(7)
    originals = [
        report(body(job, epoch, [envelope(job, epoch) for _ in range(n)]))
        for epoch, n in ((1, 1), (1, 20), (3, 1))
    ]
    async with collecting(job) as server:
        statuses = set()
        for _ in range(requests):
            data = bytearray(originals[generator.integers(3)])
            for _ in range(generator.integers(1, 5)):
                data[generator.integers(len(data))] = generator.integers(256)
            client = await server.connect()
            client.send(bytes(data))
            client.writer.write_eof()
            said = await client.reader.read()
            client.writer.close()
            server.clients.clear()
            if said:
                statuses.add(int(said.split(b" ", 2)[1]))
            assert b"Traceback" not in said
        assert 202 in statuses
        assert statuses <= {202, 400, 404, 405, 409, 410, 413, 414, 415, 417, 431}
        client = await server.connect()
        assert (await client.report(body(job))).status == 202


BAD_ORIGIN = b"Host: collector\r\nOrigin: https://\xe9.example"
CHUNKED = (
    f"POST /v1/jobs/phones/reports HTTP/1.1\r\nContent-Type: {CONTENT_TYPE}\r\n"
    "Transfer-Encoding: chunked\r\n\r\n"
).encode()


def raw(server: Server) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", server.port))
    made.setblocking(False)
    return made


async def test_unencodable_origin_does_not_affect_other_clients(job: DeployedJob) -> None:
    for origins in ({"*"}, {APP}):
        async with collecting(job, access=Access(frozenset(origins))) as server:
            clients = [await server.connect() for _ in range(3)]
            clients[0].send(report(body(job)))
            clients[1].send(report(body(job)).replace(b"Host: collector", BAD_ORIGIN))
            clients[2].send(report(body(job), f"Origin: {APP}"))
            replies = [await client.reply() for client in clients]
            assert [reply.status for reply in replies] == [202] * 3
            said = [reply.headers.get("access-control-allow-origin") for reply in replies]
            assert said == [None, None, "*" if "*" in origins else APP]
            ask = request("OPTIONS", "/v1/jobs", "Access-Control-Request-Method: POST")
            clients[1].send(ask.replace(b"Host: collector", BAD_ORIGIN))
            assert (await clients[1].reply()).problem == "/problems/origin"


async def test_failed_response_does_not_affect_other_clients(
    job: DeployedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose response cannot be encoded is disconnected; other clients are answered."""
    async with collecting(job) as server:
        before, bad, after = [await server.connect() for _ in range(3)]

        def broken(answer: HttpResponse, more: object, **how: bool) -> bytes:
            if answer.status == 202 and not failed:
                failed.append(True)
                raise ValueError("private")
            return written(answer, (), **how)

        failed: list[bool] = []
        monkeypatch.setattr("dpstream.pipeline.collector.http_connection.written", broken)
        for client in (bad, before, after):
            client.send(report(body(job)))
            await until(lambda: True)
        ended = [asyncio.create_task(client.reader.read(12)) for client in (before, bad, after)]
        answers = await asyncio.gather(*ended)
        assert sorted(answers) == [b"", b"HTTP/1.1 202", b"HTTP/1.1 202"]
        assert [type(error) for error in server.failed] == [ValueError]
        server.failed.clear()


async def test_failed_reply_does_not_end_other_replies(job: DeployedJob) -> None:
    async with collecting(job) as server:
        answers: list[HttpResponse] = []

        def broken(answer: HttpResponse) -> None:
            raise RuntimeError

        for reply in (answers.append, broken, answers.append):
            assert server.batch_writer.offer(body(job), None, NOW, reply) is None
        await server.batch_writer.finish()
        assert [answer.status for answer in answers] == [202, 202]
        assert [type(error) for error in server.failed] == [RuntimeError]
        server.failed.clear()


async def test_requests_time_out(job: DeployedJob) -> None:
    async with collecting(job) as server:
        server.writer.gate = asyncio.Event()
        client = await server.connect()
        client.send(report(body(job)))
        await until(lambda: server.batch_writer.is_open(1))
        server.connections.tick(59.0)
        assert len(server.connections.open) == 1
        server.connections.tick(61.0)
        assert await client.closed()
        assert not server.connections.open
        server.writer.gate.set()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_collector_stops_answering_a_client_that_does_not_read_responses(
    job: DeployedJob, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Seven thousand requests at once, with 60 MB of answers: few answers are buffered."""

    async def work() -> None:
        async with collecting(job) as server:
            answered = 0
            handle = server.connections.handle

            def counted(requested: object, slot: object) -> None:
                nonlocal answered
                answered += 1
                handle(requested, slot)  # type: ignore[arg-type]

            server.connections.handle = counted
            sockets = [raw(server) for _ in range(3)]
            most = 0
            for made in sockets:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                made.send(request("GET", "/v1/openapi.json") * 7000)
            before = -1
            while before < answered:
                before = answered
                for _ in range(200):
                    await asyncio.sleep(0)
                held = sum(
                    each._transport.get_write_buffer_size()
                    for each in server.connections.open
                    if each._transport is not None
                )
                most = max(most, held)
            assert len(server.connections.open) == 3
            assert all(len(each._slots) <= 128 for each in server.connections.open)
            assert most < 3 * 64 << 10
            held = sum(len(each._unread) for each in server.connections.open)
            assert server.connections.transit_bytes == held > 0
            client = await server.connect()
            assert (await client.report(body(job))).status == 202
            for made in sockets:
                made.close()
            await until(lambda: len(server.connections.open) == 1)
            assert server.connections.transit_bytes == 0

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(work(), 60))


async def test_pipelined_requests_do_not_starve_other_clients(job: DeployedJob) -> None:
    async with collecting(job) as server:
        many, other = await server.connect(), await server.connect()
        many.send((request("GET", "/healthz") * 500 + report(body(job))) * 4)
        other.send(request("GET", "/v1/jobs"))
        assert (await other.reply()).status == 200
        statuses = [(await many.reply()).status for _ in range(2004)]
        assert statuses == ([200] * 500 + [202]) * 4


async def test_incomplete_bodies_share_one_memory_limit(job: DeployedJob) -> None:
    limits = replace(HttpLimits(), transit_bytes=100_000)
    async with collecting(job, limits=limits) as server:
        clients = [await server.connect() for _ in range(4)]
        for client in clients:
            client.send(CHUNKED + b"2\r\nab\r\n" * 20_000)
        await until(lambda: server.connections.transit_bytes >= 80_000)
        kinds = {type(each._body) for each in server.connections.open}
        assert kinds <= {bytes, bytearray}
        rejected = 0
        for client in clients[2:]:
            reply = await client.reply()
            assert reply.problem == "/problems/busy"
            assert reply.headers["retry-after"] == "5"
            rejected += 1
        assert rejected == 2
        assert server.connections.transit_bytes == 80_000
        other = await server.connect()
        assert (await other.report(body(job))).status == 202
        clients[0].send(b"0\r\n\r\n")
        assert (await clients[0].reply()).problem == "/problems/malformed"
        clients[1].writer.close()
        await until(lambda: server.connections.transit_bytes == 0)


async def test_slow_requests_are_evicted_under_load(job: DeployedJob) -> None:
    limits = replace(HttpLimits(), connections=100)
    async with collecting(job, limits=limits) as server:
        server.writer.gate = asyncio.Event()
        waiting = await server.connect()
        waiting.send(report(body(job)))
        await until(lambda: server.batch_writer.is_open(1))
        slow = [await server.connect() for _ in range(99)]
        for index, client in enumerate(slow):
            client.send(b"P" if index % 2 else report(body(job))[:-1])
        await until(lambda: len(server.connections.unfinished) == 99)
        client = await server.connect()
        client.send(report(body(job)))
        assert await slow[0].closed()
        server.writer.gate.set()
        assert (await client.reply()).status == 202
        assert (await waiting.reply()).status == 202
        assert len(server.connections.open) == 100


async def test_connections_per_address_are_limited(job: DeployedJob) -> None:
    limits = replace(HttpLimits(), by_address=5)
    async with collecting(job, limits=limits) as server:
        clients = [await server.connect() for _ in range(5)]
        for client in clients:
            assert (await client.ask("GET", "/healthz")).status == 200
        assert await (await server.connect()).closed()
        clients[0].writer.close()
        await until(lambda: len(server.connections.open) == 4)
        assert (await (await server.connect()).ask("GET", "/healthz")).status == 200
    access = Access(proxies=networks(["127.0.0.0/8"]))
    async with collecting(job, limits=limits, access=access) as server:
        for _ in range(8):
            assert (await (await server.connect()).ask("GET", "/healthz")).status == 200


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_unfinished_handshakes_are_counted_and_closed(
    job: DeployedJob, tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    certificate, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    write_certificate(certificate, key)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def work() -> None:
        limits = replace(HttpLimits(), connections=20, head_seconds=1000)
        async with collecting(job, limits=limits, tls=tls) as server:
            before = descriptors()
            silent = [raw(server) for _ in range(100)]
            last = silent[-1].getsockname()
            handshakes = server.connections.handshakes
            await until(lambda: last in [each.getpeername() for each in handshakes])
            # The server has closed the dropped connections.
            await until(lambda: descriptors() - before - len(silent) <= 21)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting)
            writer.write(report(body(job)))
            assert (await reader.readline()).startswith(b"HTTP/1.1 202")
            writer.close()
            for made in silent:
                made.close()
        limits = replace(HttpLimits(), connections=20, head_seconds=0.2)
        async with collecting(job, limits=limits, tls=tls) as server:
            before = descriptors()
            silent = [raw(server) for _ in range(10)]
            seen: set[socket.socket] = set()
            while len(seen) < len(silent):
                seen.update(server.connections.handshakes)
                await asyncio.sleep(0.001)
            # Handshakes end at their timeout, without any periodic task.
            await until(lambda: not server.connections.handshakes)
            await until(lambda: descriptors() - before <= len(silent))
            for made in silent:
                made.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(work(), 60))


async def test_rejections_have_cors_headers(job: DeployedJob) -> None:
    access = Access(frozenset({APP}))
    rates = Rates(1.0, lambda: 0.0, burst=1)
    async with collecting(job, access=access, rates=rates) as server:
        assert (await (await server.connect()).report(body(job), f"Origin: {APP}")).status
        for ask in (report(body(job), f"Origin: {APP}"), request("GET", "/", f"Origin: {APP}")):
            client = await server.connect()
            client.send(ask)
            reply = await client.reply()
            assert reply.problem == "/problems/rate"
            assert reply.headers["access-control-allow-origin"] == APP
            assert reply.headers["access-control-expose-headers"] == "Retry-After"
    async with collecting(job, access=access) as server:
        slow, large, late = [await server.connect() for _ in range(3)]
        slow.send(report(body(job), f"Origin: {APP}")[:-1])
        large.send(request("POST", "/", f"Origin: {APP}", f"Content-Length: {1 << 30}"))
        await until(lambda: any(each._in_body for each in server.connections.open))
        assert (await large.reply()).headers["access-control-allow-origin"] == APP
        server.connections.tick(31.0)
        reply = await slow.reply()
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (408, APP)
        server.service.stopping = True
        reply = await (await server.connect()).report(body(job), f"Origin: {APP}")
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (503, APP)
        late.writer.close()


async def test_http_trailers_are_not_used_as_headers(job: DeployedJob) -> None:
    async with collecting(job, access=Access(frozenset({APP}))) as server:
        client = await server.connect()
        data = body(job)
        head = CHUNKED.replace(f"Content-Type: {CONTENT_TYPE}\r\n".encode(), b"")
        trailer = f"0\r\nContent-Type: {CONTENT_TYPE}\r\n\r\n"
        client.send(head + b"%x\r\n%b\r\n" % (len(data), data) + trailer.encode())
        assert (await client.reply()).problem == "/problems/media-type"


@pytest.mark.parametrize("length", ["", "1_0", "+5", "0x5", " ", "9" * 5000])
async def test_invalid_content_lengths_are_rejected(job: DeployedJob, length: str) -> None:
    async with collecting(job) as server:
        client = await server.connect()
        client.send(f"POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode())
        assert (await client.reply()).status in (400, 404, 413)


def test_client_address_is_taken_only_from_trusted_proxies() -> None:
    access = Access(proxies=networks(["10.0.0.0/8", "192.0.2.1"]))

    def of(peer: str, *said: str) -> str:
        headers = {b"x-forwarded-for": ", ".join(said).encode()} if said else {}
        return access.address_of(SimpleNamespace(peer=peer, headers=headers))  # type: ignore[arg-type]

    assert of("198.51.100.7", "1.2.3.4") == "198.51.100.7"
    assert of("10.0.0.1", "1.2.3.4", "198.51.100.7") == "198.51.100.7"
    assert of("::ffff:10.0.0.1", "198.51.100.7", "192.0.2.1") == "198.51.100.7"
    assert of("10.0.0.1") == of("10.0.0.1", "") == "10.0.0.1"
