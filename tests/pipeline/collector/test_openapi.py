"""Test a collector against its own OpenAPI description, including invalid requests."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings

from dpstream.topics.envelopes import CONTENT_TYPE
from tests.support.collector_server import collecting
from tests.support.device_jobs import device_job

# Bodies that are too large get a separate error response.
REJECTED = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429]
CONFIG = schemathesis.Config.from_dict(
    {"checks": {"negative_data_rejection": {"expected-statuses": REJECTED}}}
)
INTERFACE = json.loads(files("dpstream.pipeline.collector").joinpath("openapi.json").read_text())
schema = schemathesis.openapi.from_dict(INTERFACE, config=CONFIG)


@schemathesis.serializer(CONTENT_TYPE)
def as_they_are(context: schemathesis.SerializationContext, value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    begun, ended = threading.Event(), asyncio.Event()
    said: list[str] = []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with collecting(device_job()) as server:
            said.append(f"http://127.0.0.1:{server.port}")
            begun.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert begun.wait(60)
    yield said[0]
    loop.call_soon_threadsafe(ended.set)
    thread.join()
    loop.close()


@pytest.mark.verify
@schema.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)
def test_responses_match_the_schema(case: Any, url: str) -> None:
    case.call_and_validate(base_url=url)
