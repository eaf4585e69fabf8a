"""WebSocket viewers, each of which receives the epochs that it lacks from a shared history.

There is no queue: a viewer has a position in the history, and receives everything after it, even if
it was slow or disconnected. A viewer that reads nothing for two seconds is dropped, and catches up
after reconnecting.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aiohttp import WSCloseCode, web

from dpstream.pipeline.serve.connections import Limits
from dpstream.pipeline.serve.job_store import JobStore, encode

_LONGEST_MESSAGE = 1_024
_ANOTHER = "the job was redeployed or removed"


class BlockedError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class ViewerRequest:
    """Subscription of a viewer to a job, or to the list of jobs (None).

    Attributes:
        after: Last epoch that the viewer has.
        start, deployment: Server run and deployment in which the viewer received that epoch; None
            for any.
        series: IDs of the requested series; empty for the default series.
    """

    job: str | None = None
    after: int = 0
    start: str | None = None
    series: tuple[str, ...] = ()
    deployment: str | None = None

    def outdated(self, job_store: JobStore) -> str | None:
        if self.start is not None and self.start != job_store.run:
            return "the server was restarted"
        if self.job is None or (self.start is None and self.deployment is None):
            return None
        state = job_store.jobs.get(self.job)
        if state is None:
            return _ANOTHER
        last = 0 if state.history.last is None else state.history.last.epoch
        # Within one server run, a deployment only gains epochs.
        if self.start is not None and self.after > last:
            return _ANOTHER
        if self.deployment not in (None, state.job.deployment.hex()):
            return _ANOTHER
        return None


class Sockets:
    def __init__(self, job_store: JobStore, limits: Limits) -> None:
        self._job_store = job_store
        self._limits = limits
        self._open: set[web.WebSocketResponse] = set()

    @property
    def full(self) -> bool:
        return len(self._open) >= self._limits.viewers

    async def serve(self, request: web.Request, view: ViewerRequest) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(
            heartbeat=self._limits.heartbeat_seconds,
            timeout=1.0,
            max_msg_size=_LONGEST_MESSAGE,
            compress=False,
        )
        await socket.prepare(request)
        self._open.add(socket)
        viewer = _Viewer(self._job_store, socket, view, self._limits)
        sending = asyncio.create_task(viewer.send_all())
        receiving = asyncio.create_task(_pass_over(socket))
        try:
            await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and isinstance(sending.exception(), BlockedError):
                if request.transport is not None:
                    request.transport.abort()
            elif not socket.closed:
                await socket.close()
        finally:
            self._open.discard(socket)
            for task in (sending, receiving):
                task.cancel()
            results = await asyncio.gather(sending, receiving, return_exceptions=True)
            for result in results:
                if isinstance(result, Exception) and not isinstance(
                    result, BlockedError | ConnectionError
                ):
                    raise result
        return socket

    async def close(self) -> None:
        await asyncio.gather(
            *(
                socket.close(code=WSCloseCode.GOING_AWAY, message=b"the server is stopping")
                for socket in tuple(self._open)
            ),
            return_exceptions=True,
        )


class _Viewer:
    def __init__(
        self,
        job_store: JobStore,
        socket: web.WebSocketResponse,
        view: ViewerRequest,
        limits: Limits,
    ) -> None:
        self._job_store = job_store
        self._socket = socket
        self._limits = limits
        self._view = view
        self._job = view.job
        self._after = view.after
        self._series = view.series
        self._deployment: bytes | None = None
        self._summaries = ""
        self._pipeline: dict[str, Any] | None = None
        self._smoothed = 0
        self._budget: dict[str, Any] = {}
        self._kafka: dict[str, Any] = {}

    async def send_all(self) -> None:
        job_store, limits = self._job_store, self._limits
        why = self._view.outdated(job_store)
        if why is not None:
            await self._reload(why)
            return
        await self._hello()
        loop = asyncio.get_running_loop()
        with job_store.listen(self._job) as news:
            heartbeat = loop.time() + limits.heartbeat_seconds
            slow_news = 0.0
            while True:
                news.clear()
                if not await self._send_epochs():
                    await self._reload(_ANOTHER)
                    return
                if loop.time() >= slow_news:
                    slow_news = loop.time() + limits.news_seconds
                    await self._send_slow_news()
                if loop.time() >= heartbeat:
                    heartbeat = loop.time() + limits.heartbeat_seconds
                    body = {"type": "heartbeat", "at": job_store.clock(), "kafka": job_store.kafka}
                    await self._send(encode(body))
                waits = (slow_news if self._has_slow_news else heartbeat, heartbeat)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min(waits)):
                        await news.wait()

    async def _hello(self) -> None:
        job_store = self._job_store
        state = None if self._job is None else job_store.jobs.get(self._job)
        self._deployment = None if state is None else state.job.deployment
        last = None if state is None or state.history.last is None else state.history.last.epoch
        self._summaries, self._kafka = job_store.summaries(), job_store.kafka
        about = {
            "type": "hello",
            "run": job_store.run,
            "kafka": self._kafka,
            "job": self._job,
            "last_epoch": last,
        }
        await self._send(f'{encode(about)[:-1]},"jobs":{self._summaries}}}')

    async def _send_epochs(self) -> bool:
        if self._job is None:
            return True
        state = self._job_store.jobs.get(self._job)
        if state is None or state.job.deployment != self._deployment:
            return False
        for point in state.history.after(self._after):
            await self._send(self._job_store.epoch_text(state, point, self._series))
            self._after = point.epoch
            # Yield to other tasks, also while a viewer catches up with thousands of epochs.
            await asyncio.sleep(0)
        return True

    @property
    def _has_slow_news(self) -> bool:
        job_store = self._job_store
        state = None if self._job is None else job_store.jobs.get(self._job)
        return (
            self._kafka != job_store.kafka
            or self._summaries != job_store.summaries()
            or (state is not None and state.pipeline is not self._pipeline)
            or (state is not None and state.smoothed_epoch != self._smoothed)
            or (state is not None and state.budget != self._budget)
        )

    async def _send_slow_news(self) -> None:
        job_store = self._job_store
        if self._kafka != job_store.kafka:
            self._kafka = job_store.kafka
            await self._send(encode({"type": "kafka", **self._kafka}))
        summaries = job_store.summaries()
        if summaries != self._summaries:
            self._summaries = summaries
            await self._send(f'{{"type":"jobs","jobs":{summaries}}}')
        state = None if self._job is None else job_store.jobs.get(self._job)
        if state is None:
            return
        if state.budget != self._budget:
            self._budget = state.budget
            account = {"type": "budget", "job": self._job, "budget": self._budget}
            await self._send(encode(account))
        if state.pipeline is not self._pipeline and state.pipeline is not None:
            self._pipeline = state.pipeline
            await self._send(encode({"type": "pipeline", "job": self._job, **state.pipeline}))
        if state.smoothed_epoch != self._smoothed:
            self._smoothed = state.smoothed_epoch
            body = {"type": "smoothed", "job": self._job, "epoch": self._smoothed}
            await self._send(encode(body))

    async def _reload(self, why: str) -> None:
        await self._send(json.dumps({"type": "reload", "run": self._job_store.run, "why": why}))

    async def _send(self, text: str) -> None:
        try:
            async with asyncio.timeout(self._limits.blocked_seconds):
                await self._socket.send_str(text)
        except TimeoutError:
            raise BlockedError from None


async def _pass_over(socket: web.WebSocketResponse) -> None:
    async for _ in socket:
        pass
