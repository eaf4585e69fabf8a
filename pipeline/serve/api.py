"""The JSON API of ``dpstream serve``.

The API is read-only and uses only estimates and manifests: it contains no content of reports.
User counts are floating point, times are milliseconds since 1970 (UTC), and unknown values are
``null``, never 0. Responses are JSON; errors have a status of 400 or more and an ``error`` (a
sentence). Epochs without an estimate, and those flagged ``gap``, have ``null`` as value and
interval; ``/estimates`` has the published record.

``GET /api/jobs``
    ``{"run", "kafka", "login": bool (true if the client is logged in by password), "jobs":
    [SUMMARY, ...]}``, sorted by name. ``run`` identifies this run of the server. ``kafka`` is
    ``{"answers": true|false, "since"}``; while it does not answer, numbers are stale.

    SUMMARY: ``{"job", "protocol", "deployment", "deployed_at", "phase", "ended" (whether its last
    epoch is published), "replay_of" (a job or null), "epochs" (the last epoch of the job, or null),
    "counted_from" (the deployment's first epoch), "horizon" (epochs per horizon), "population" (the
    population that it charges), "position" (text, or null), "unit_of_value" ("users", or "percent"
    for jobs that learn), "domain": {"kind": "value"|"items"|"numbers"|"found", "items": [label,
    ...] or null, "crowds": [label, ...] if there are any, "measure": the published measure, if a
    model is learned}, "first_epoch" (stored here), "last_epoch", "closed_at", "window_status",
    "flags", "headline" (text), "estimate": {"value", "ci95_low", "ci95_high"} or null, "title",
    "description" (or null), "people" (noun for the users), "period" ("week", or "epoch"),
    "calendar": {"zone", "days" (whether epochs are whole days there), "seconds" (whether times have
    them)} or null, "sentence": [text, number, text, ...] (for readers; parts at odd positions are
    emphasized), "sentence_epoch": {"epoch", "name", "at" (the name with its preposition),
    "contributors", "population"} or null (the epoch that the sentence describes: the last complete
    one), "assumption" (a sentence on the
    changes per user that intervals assume, or null), "warning" (if reports show that users may have
    made more changes, or null), "change": {"number", "description"} or null (since the previous
    epoch, with its own interval), "issues": [sentence, ...], "lag_seconds" (age of the oldest
    waiting record, in the stage where it is highest; 0 if nothing waits, null if unknown), "loss":
    {"epsilon", "delta", "each": "epoch"|"horizon" or null} (privacy cost of this job alone),
    "budget" (text, over all jobs of its population)}``. ``items`` lists up to 64 items here, up to
    4,096 in ``/api/jobs/J``, and is null for larger domains.

``GET /api/jobs/J``
    SUMMARY and ``{"guarantee": {...}, "guarantee_description": [sentence, ...], "budget":
    {"population", "declared": {"epsilon", "delta"}, "charged": {"epsilon" or null, "delta"},
    "filtered": total epsilon if the budget composes charges to less than their sum, or null,
    "remaining": as charged or null without a budget, "allowed": the same or null, "description":
    [sentence, ...]}, "exposure": {"reports": [t, ...], "epsilons": [...], "likely": [text, ...],
    "limit", "description": sentences} or null (for jobs whose devices report the same value several
    times: epsilon of a user against an observer who links t of the reports, and the maximum
    posterior of a guess that was 50 % likely), "series": [{"id", "label", "unit":
    "users"|"value"|"percent", "crowd" if there are any}, ...], "chosen": [id, ...] (drawn by
    default), "smoothed": bool, "changes": bool (whether changes have intervals), "ground_truth":
    bool, "ground_truth_note" (text or null), "trust": {"parties": [{"name", "sees",
    "trusted", "either": bool (one of several parallel parties, of which one suffices)}, ...],
    "description"}, "simultaneous": {"epochs", "widening", "description"} or null}``: 95 % intervals
    widened by the factor ``widening`` hold at all epochs of a horizon together, in 19 of 20 runs.

    Series ids: ``value``; for items their number from 1, such as ``17``; for numbers ``q0.5`` for a
    quantile (0.25, 0.5 and 0.75) and ``r10:20`` for a range between bucket edges.

``GET /api/recent?epochs=N``
    ``{"jobs": {J: {"id", "label", "unit", "epochs": [...], "begins": [...] or null, "value": [...],
    "ci95_low": [...], "ci95_high": [...], "population": [...] or null}}}``: the latest N epochs
    (100, at most 1,000) of one series of every job with an estimate: the value, the largest item by
    its mean, or the median.

``GET /api/jobs/J/curve?series=ID,ID&from=&to=&columns=N&change=N``
    ``{"job", "from", "to", "last_epoch", "reduced": bool, "ground_truth_note", "series": [{"id",
    "label", "unit", "epochs": [...], "begins": [...] (milliseconds, or null without a calendar),
    "value": [...], "ci95_low": [...], "ci95_high": [...], "own_ci95_low": [...], "own_ci95_high":
    [...], "population": [...] (upper limit for display, or null), "simultaneous_low": [...] or
    null, "simultaneous_high", "smoothed": [...] or null, "smoothed_ci95_low", "smoothed_ci95_high",
    "ground_truth": [...] or null}]}``: at most 12 series, chosen automatically if none is named.
    With N columns (default 1,000, 16 to 4,096) and more than 2N epochs, every column keeps the
    epochs of its smallest and largest value, with the band of the whole column, and the first epoch
    of a gap; ``own_ci95_low`` and ``own_ci95_high`` are those of the epoch itself. Request again
    with ``from`` and ``to`` for more detail. With ``change``, numbers and ground truth are changes
    since N epochs earlier, with their own intervals, starting at the first epoch with such a
    predecessor.

``GET /api/jobs/J/top?epoch=E&count=N``
    ``{"epoch", "window_status", "flags", "population", "name", "kind": "item", "items": [{"id",
    "label", "value", "ci95_low", "ci95_high", "ground_truth", "places": [first, last] or null
    (possible ranks among all items)}], "simultaneous_half_width" or null, "detection_threshold" or
    null, "notes": [...]}``: the largest items of an epoch, by default 10 (at most 100) of the last
    one. For numbers: the buckets, in order.

``GET /api/jobs/J/quantiles?epoch=E``
    ``{"epoch", "window_status", "flags", "population", "name", "quantiles": [{"id", "share",
    "value", "ci95_low", "ci95_high", "ground_truth"}]}``, for numbers only.

``GET /api/jobs/J/sparklines?count=N``
    ``{"last_epoch", "population", "columns", "series": [{"id", "label", "unit", "last": [value,
    low, high] or null, "points": [...]}]}``: the N (200, at most 1,000) series with the largest
    mean, each reduced to at most 64 points, null at gaps.

``GET /api/jobs/J/table?series=&from=&to=&limit=N&change=N``
    ``{"rows": [{"epoch", "begins", "window_status", "flags", "closed_at", "contributors",
    "population", "series": {id: [value, low, high] or null}}]}``: the numbers behind a chart, for
    the latest N (200, at most 2,000) requested epochs, latest first; ``change`` as for ``curve``.

``GET /api/jobs/J/pipeline``
    ``{"at", "workers_needed" (false if the job needs no worker: it is paused or drained, its last
    epoch is published, or it is a replay with nothing waiting), "stages": [{"stage", "reads" (the
    last part of a topic's name), "workers": [{"name", "up", "idle" (ended, started on demand),
    "age" (seconds since its latest heartbeat), "partitions", "records_per_second",
    "reports_per_second"}], "lag" (records), "waiting" (seconds) or null, "epoch" (the latest one
    finalized, aggregated or published), "up" (whether any worker is)}], "windows": [{"epoch",
    "reports", "devices", "waits_for": [producer, ...], "grace_left" (seconds)}], "open_windows",
    "finalized_windows": {window_status: count} (for a long history {} until a shuffle worker
    reports them), "producers" (null if devices report for themselves), "missing_producers":
    [producer, ...], "collectors": [{"name", "up", "age", "stored" (reports), "stored_per_second",
    "waiting" (requests), "rejected": {reason: requests}}] or null if producers report,
    "dead_letters": {reason: count}, "late_reports", "unusable_reports", "issues": [sentence, ...],
    "notes": [sentence, ...]}`` or ``{"at": null}`` before anything is known; a replay has no
    shuffle stage. If the guarantee relies on the shuffler, its records and reports are null: they
    would be counts of raw messages. Devices and seconds are shown.

``GET /api/jobs/J/estimates?from=&to=&series=&format=json|csv|parquet``
    A download, read from Kafka for each request. JSON: ``{"job", "assumes_changes" (or null),
    "estimates": [{"epoch", "window_status", "closed_at", "contributors", "population", "flags",
    "estimate": as published, "ground_truth"}]}``. CSV: byte for byte the output of ``dpstream
    estimates J --format csv`` for these epochs. Parquet: the same rows, with types. ``series``
    applies to JSON; the other formats contain everything.

``GET /charts.json?job=J&theme=light|dark&series=ID,ID&curves=N&axis=dates|numbers``
    The description of an empty chart for N curves, by default one for each series. The series
    determine its unit; its axis has dates if the job has them. See
    `dpstream.pipeline.serve.charts`.

``GET /ws?job=J&after=E&start=RUN&deployment=D&series=ID,ID`` (a WebSocket)
    Messages of the server, each a JSON object with a ``type``:

    * ``hello``: ``{"run", "kafka", "job", "last_epoch", "jobs": [SUMMARY, ...]}``, the first one.
    * ``epoch``: ``{"job", "epoch", "begins", "window_status", "flags", "closed_at", "contributors",
      "population", "headline", "estimate", "sentence", "sentence_epoch", "series": {id: [value,
      low, high] or null}, "ground_truth": {id: number}}``: every epoch after E, then each new one
      when it is published. ``series`` has the requested ones; by default all, or the chosen ones if
      there are more than 256.
    * ``smoothed``: ``{"job", "epoch"}``: the smoothed curve has changed; request it.
    * ``budget``: ``{"job", "budget"}``, the latter as in ``/api/jobs/J``: initially, and when its
      population is charged or its budget changes, at most once a second.
    * ``pipeline``: as ``/api/jobs/J/pipeline``, on changes, at most once a second.
    * ``jobs``: ``{"jobs": [SUMMARY, ...]}``, when any of them changes, at most once a second.
    * ``kafka``: ``{"answers", "since"}``, when it stops or resumes answering.
    * ``heartbeat``: ``{"at", "kafka"}``, every 10 s.
    * ``reload``: ``{"run", "why"}``: the server was restarted (another RUN), the job was deployed
      again (another deployment D, as in its SUMMARY), or the job is gone. The connection is closed
      afterwards: reconnect without ``after``, ``start`` and ``deployment``.

    Without ``job`` there are no ``epoch``, ``smoothed``, ``budget`` and ``pipeline`` messages.
    Messages from clients are ignored. A client that reads nothing for 2 s is dropped: reconnect
    with the last epoch received. Close code 1013: too many viewers; 1001: the server ends.

``/`` is the page, ``/static/...`` its files, ``/bokeh/VERSION/bokeh.min.js`` BokehJS, whose path
replaces the text ``BOKEH_JS`` in ``index.html``. ``/api`` is this text.

Limits: 2,000 characters of path and query, 12 series, integers from 0 to 2^53. Statuses: 400
invalid request; 401 not logged in, if the server has a password (``POST /login`` with ``password``
sets a cookie, ``POST /logout`` ends it), or not named by the proxy; 403 an ``Origin`` that this
server does not know (``--allow-host``); 404 not found; 405 a method other than GET and HEAD; 413 a
body; 414 address too long; 421 a ``Host`` that it does not know (``--allow-host``); 429 too many
wrong passwords; 431 head too long; 503 too many connections, viewers or downloads, or a download
while Kafka does not answer; 500 a server fault, described by a line of its log.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeAlias

from aiohttp import hdrs, web
from kafka.errors import KafkaError

from dpstream.pipeline.errors import error_line
from dpstream.pipeline.jobs.deployed_job import DeployedJob
from dpstream.pipeline.jobs.epoch_words import period
from dpstream.pipeline.kafka.cluster import ClusterError
from dpstream.pipeline.results.changes import ChangeError
from dpstream.pipeline.results.series import SeriesError
from dpstream.pipeline.serve import curve_view, views
from dpstream.pipeline.serve.assets import Asset, load_assets
from dpstream.pipeline.serve.charts import MOST_CURVES, Theme, curves
from dpstream.pipeline.serve.connections import ConnectionLimiter
from dpstream.pipeline.serve.downloads import TYPES, Download, Format
from dpstream.pipeline.serve.history import Point
from dpstream.pipeline.serve.job_store import JobStore, encode
from dpstream.pipeline.serve.login import PATH as LOGIN_PATH
from dpstream.pipeline.serve.login import LoginHandler
from dpstream.pipeline.serve.query_strings import (
    InvalidQueryError,
    epoch_range,
    one_of,
    series_ids,
    whole,
)
from dpstream.pipeline.serve.security import Gatekeeper, headers_for
from dpstream.pipeline.serve.sockets import Sockets, ViewerRequest
from dpstream.pipeline.serve.views import JobState
from dpstream.pipeline.stages.estimate_records import EstimateRecord

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
Records: TypeAlias = Callable[[DeployedJob], Iterator[EstimateRecord]]
"""Function that returns all published records of a job; called and iterated in a thread."""

_CHUNK_SECONDS = 30.0
# Computing the columns of this many epochs takes at most about 50 ms.
_EPOCHS_AT_ONCE = 500
_COMPRESSED_FROM = 1_000
_LONGEST_CHANGE = 1 << 16
_NOTHING = object()
_AWAY = "Kafka does not respond; try again later"
_LOG = logging.getLogger(__name__)


class ProblemError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    def __init__(
        self,
        job_store: JobStore,
        records: Records,
        gatekeeper: Gatekeeper,
        sockets: Sockets,
        downloads: int,
        login_handler: LoginHandler,
        frame_ancestors: Sequence[str] = (),
    ) -> None:
        self._job_store = job_store
        self._records = records
        self._gatekeeper = gatekeeper
        self._sockets = sockets
        self._assets = load_assets()
        self._login_handler = login_handler
        self._headers = headers_for(frame_ancestors)
        self._headers_of_form = headers_for(frame_ancestors, form=True)
        self._most_downloads = downloads
        self._downloads = 0
        self._begun: dict[int, bool] = {}
        self._drawing = asyncio.Lock()
        self._encoded_charts: dict[tuple[Theme, int, str, str | None], str] = {}
        self._pool = ThreadPoolExecutor(downloads, "download")

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.on_response_prepare.append(self._secure)
        app.on_response_prepare.append(self._begin)
        job = "/api/jobs/{job}"
        app.router.add_get("/api", self._about)
        app.router.add_get("/api/jobs", self._jobs)
        app.router.add_get("/api/recent", self._recent)
        app.router.add_get(job, self._details)
        app.router.add_get(f"{job}/curve", self._curve)
        app.router.add_get(f"{job}/top", self._top)
        app.router.add_get(f"{job}/quantiles", self._quantiles)
        app.router.add_get(f"{job}/sparklines", self._sparklines)
        app.router.add_get(f"{job}/table", self._table)
        app.router.add_get(f"{job}/pipeline", self._pipeline)
        app.router.add_get(f"{job}/estimates", self._estimates)
        app.router.add_get("/charts.json", self._chart)
        app.router.add_get("/ws", self._ws)
        app.router.add_get("/{path:.*}", self._asset)
        app.on_shutdown.append(self._shut)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        limiter = None if request.transport is None else request.transport.get_protocol()
        if isinstance(limiter, ConnectionLimiter):
            limiter.started()
        self._begun[id(request)] = False
        try:
            has_body = request.body_exists or request.headers.get("Content-Length", "0") != "0"
            # Login and logout are the only requests accepted with POST.
            given = self._login_handler.takes(request)
            rejection = self._gatekeeper.reject(
                "GET" if given else request.method,
                request.raw_path,
                request.headers,
                has_body=has_body and not (given and request.path == LOGIN_PATH),
            )
            if rejection is not None:
                return _problem(rejection.status, rejection.message, close=True)
            stopped = await self._login_handler.answer(request)
            return await handler(request) if stopped is None else stopped
        except ProblemError as error:
            return _problem(error.status, str(error))
        except (InvalidQueryError, SeriesError) as error:
            return _problem(400, str(error))
        except web.HTTPException as error:
            return _problem(error.status, error.reason)
        except (ConnectionError, TimeoutError):
            # The client is gone, or reads nothing.
            raise
        except Exception as error:
            _LOG.error("%s %a failed: %s", request.method, request.path[:100], error_line(error))
            if self._begun[id(request)]:
                # A truncated response must not look complete.
                if request.transport is not None:
                    request.transport.abort()
                raise
            return _problem(500, "internal error; see the server log")
        finally:
            del self._begun[id(request)]
            if isinstance(limiter, ConnectionLimiter):
                limiter.finished()

    async def _begin(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        if id(request) in self._begun:
            self._begun[id(request)] = True

    async def _secure(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        is_form = request.path == LOGIN_PATH
        response.headers.update(self._headers_of_form if is_form else self._headers)
        response.headers.popall(hdrs.SERVER, None)

    async def _shut(self, app: web.Application) -> None:
        await self._sockets.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _state(self, request: web.Request) -> JobState:
        return await self._job(request.match_info["job"])

    async def _shown(self, request: web.Request) -> JobState:
        state = await self._state(request)
        lag = whole(request.query, "change", 1, _LONGEST_CHANGE)
        if lag is None:
            return state
        try:
            # A long history takes a moment: do not block the event loop.
            return await asyncio.to_thread(views.changed, state, list(state.history.points), lag)
        except ChangeError as error:
            raise ProblemError(404, str(error)) from None

    async def _job(self, name: str) -> JobState:
        if name not in self._job_store.jobs:
            await self._job_store.first_look()
        state = self._job_store.jobs.get(name)
        if state is not None:
            self._job_store.record_request(name)
        else:
            known = ", ".join(sorted(self._job_store.jobs)[:10]) or "none"
            raise ProblemError(404, f"job {name[:60]!a} not found; jobs on this server: {known}")
        return state

    def _point(self, state: JobState, request: web.Request) -> Point:
        epoch = whole(request.query, "epoch", 1)
        point = state.history.last if epoch is None else state.history.at(epoch)
        if point is None:
            which = "no epoch" if epoch is None else f"epoch {epoch:,}"
            published = "is published yet" if epoch is None else "is not available"
            raise ProblemError(404, f"{which} of job {state.job.name} {published}")
        return point

    async def _about(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=__doc__ or "", content_type="text/plain")

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        job_store = self._job_store
        job_store.record_request()
        text = (
            f'{{"run": {json.dumps(job_store.run)}, "kafka": {encode(job_store.kafka)}, '
            f'"login": {json.dumps(self._login_handler.knows(request))}, "jobs": '
            f"{job_store.summaries()}}}"
        )
        return _json_text(text)

    async def _recent(self, request: web.Request) -> web.StreamResponse:
        job_store = self._job_store
        job_store.record_request()
        count = whole(request.query, "epochs", 1, 1_000) or 100
        recent = {name: curve_view.recent(state, count) for name, state in job_store.jobs.items()}
        return _json({"jobs": {name: body for name, body in recent.items() if body}})

    async def _details(self, request: web.Request) -> web.StreamResponse:
        return _json(views.details(await self._state(request)))

    async def _curve(self, request: web.Request) -> web.StreamResponse:
        state, query = await self._shown(request), request.query
        columns = whole(query, "columns", 1)
        first, last = whole(query, "from"), whole(query, "to")
        series = views.requested_series(state.history, series_ids(query))
        for _ in range(len(state.history.points) // _EPOCHS_AT_ONCE):
            state.history.triples(series, _EPOCHS_AT_ONCE)
            # Yield to other requests, also when a long curve is computed for the first time.
            await asyncio.sleep(0)
        count = 1_000 if columns is None else min(max(columns, 16), 4_096)
        return _json(curve_view.curve(state, series, first, last, count))

    async def _top(self, request: web.Request) -> web.StreamResponse:
        state = await self._state(request)
        if state.history.kind.single:
            raise ProblemError(404, f"job {state.job.name} counts a single value and has no items")
        count = whole(request.query, "count", 1, 100)
        return _json(views.top(state, self._point(state, request), count or 10))

    async def _quantiles(self, request: web.Request) -> web.StreamResponse:
        state = await self._state(request)
        if not state.history.kind.quantiles:
            raise ProblemError(
                404, f"job {state.job.name} does not count numbers and has no quantiles"
            )
        return _json(views.quantiles(state, self._point(state, request)))

    async def _sparklines(self, request: web.Request) -> web.StreamResponse:
        state = await self._state(request)
        return _json(curve_view.sparklines(state, whole(request.query, "count", 1, 1_000) or 200))

    async def _table(self, request: web.Request) -> web.StreamResponse:
        state, query = await self._shown(request), request.query
        series = views.requested_series(state.history, series_ids(query))
        limit = whole(query, "limit", 1, 2_000) or 200
        return _json(views.table(state, series, whole(query, "from"), whole(query, "to"), limit))

    async def _pipeline(self, request: web.Request) -> web.StreamResponse:
        return _json((await self._state(request)).pipeline or {"at": None})

    async def _chart(self, request: web.Request) -> web.StreamResponse:
        theme: Theme = one_of(request.query, "theme", "light", "dark")
        name = request.query.get("job")
        if not name:
            raise InvalidQueryError("parameter 'job' is missing; expected ?job=NAME")
        state = await self._job(name)
        series = views.requested_series(state.history, series_ids(request.query))
        units = {each.unit for each in series}
        unit: str = units.pop() if len(units) == 1 else "value"
        if unit == "users":
            unit = state.job.people
        calendar = state.job.epochs.calendar
        times = None
        if calendar is not None and one_of(request.query, "axis", "dates", "numbers") == "dates":
            zone = "UTC" if calendar.zone is None else calendar.zone.key
            times = f"{period(state.job)} ({zone})"
        count = whole(request.query, "curves", 1, MOST_CURVES) or max(1, len(series))
        return _json_text(await self._encoded_chart(theme, count, unit, times))

    async def _encoded_chart(self, theme: Theme, count: int, unit: str, times: str | None) -> str:
        async with self._drawing:
            key = theme, count, unit, times
            if key not in self._encoded_charts:
                described = await asyncio.to_thread(curves, theme, count, unit=unit, times=times)
                self._encoded_charts[key] = encode(described)
            return self._encoded_charts[key]

    async def _ws(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        ids, after = series_ids(query), whole(query, "after") or 0
        name = query.get("job") or None
        view = ViewerRequest(
            name, after, query.get("start") or None, ids, query.get("deployment") or None
        )
        job_store = self._job_store
        # After the server starts, jobs are unknown until Kafka responds.
        outdated = job_store.answers and view.outdated(job_store) is not None
        if name is not None and not outdated:
            views.requested_series((await self._job(name)).history, ids)
        if self._sockets.full:
            raise ProblemError(
                503, f"the limit of {self._job_store.viewers:,} viewers is reached; try again later"
            )
        return await self._sockets.serve(request, view)

    async def _estimates(self, request: web.Request) -> web.StreamResponse:
        state, query = await self._state(request), request.query
        format: Format = one_of(query, "format", "json", "csv", "parquet")
        ids = series_ids(query)
        download = Download(
            state.job,
            *epoch_range(query),
            views.requested_series(state.history, ids) if ids else (),
            state.ground_truths,
        )
        if not self._job_store.answers:
            raise ProblemError(503, _AWAY)
        if self._downloads >= self._most_downloads:
            raise ProblemError(503, "too many concurrent downloads; try again in a moment")
        self._downloads += 1
        chunks = download.chunks(self._records(state.job), format)
        try:
            return await self._send(request, state.job, chunks, format)
        finally:
            self._downloads -= 1
            with suppress(RuntimeError):
                self._pool.submit(_close, chunks)

    async def _send(
        self, request: web.Request, job: DeployedJob, chunks: Iterator[bytes], format: Format
    ) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        try:
            chunk = await loop.run_in_executor(self._pool, next, chunks, _NOTHING)
        except (KafkaError, ClusterError):
            raise ProblemError(503, _AWAY) from None
        response = web.StreamResponse(
            headers={
                hdrs.CONTENT_TYPE: TYPES[format],
                hdrs.CACHE_CONTROL: "no-store",
                hdrs.CONTENT_DISPOSITION: f'attachment; filename="{job.name}.{format}"',
            }
        )
        if format != "parquet":
            response.enable_compression()
        await response.prepare(request)
        while isinstance(chunk, bytes):
            await asyncio.wait_for(response.write(chunk), _CHUNK_SECONDS)
            try:
                chunk = await loop.run_in_executor(self._pool, next, chunks, _NOTHING)
            except (KafkaError, ClusterError):
                # A truncated file must not look complete.
                if request.transport is not None:
                    request.transport.abort()
                return response
        await response.write_eof()
        return response

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        asset = self._assets.get(request.path)
        if asset is None:
            raise ProblemError(404, f"page {request.path[:100]!a} not found")
        return _asset_response(request, asset)


def _asset_response(request: web.Request, asset: Asset) -> web.Response:
    headers = {
        hdrs.ETAG: asset.tag,
        hdrs.CACHE_CONTROL: asset.caching,
        hdrs.VARY: "Accept-Encoding",
    }
    known = request.headers.get(hdrs.IF_NONE_MATCH, "")
    if asset.tag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
        return web.Response(status=304, headers=headers)
    headers[hdrs.CONTENT_TYPE] = asset.type
    if asset.compressed is not None and "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
        headers[hdrs.CONTENT_ENCODING] = "gzip"
        return web.Response(body=asset.compressed, headers=headers)
    return web.Response(body=asset.content, headers=headers)


def _close(chunks: Iterator[bytes]) -> None:
    close: Any = getattr(chunks, "close", None)
    if close is not None:
        close()


def _json(body: object, status: int = 200) -> web.Response:
    return _json_text(encode(body), status)


def _json_text(text: str, status: int = 200) -> web.Response:
    response = web.Response(
        text=text,
        status=status,
        content_type="application/json",
        headers={hdrs.CACHE_CONTROL: "no-store"},
    )
    if len(text) >= _COMPRESSED_FROM:
        response.enable_compression()
    return response


def _problem(status: int, message: str, *, close: bool = False) -> web.Response:
    response = _json({"error": message}, status)
    if status == 405:
        response.headers[hdrs.ALLOW] = "GET, HEAD"
    if close:
        response.force_close()
    return response
