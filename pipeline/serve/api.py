"""The JSON API of ``dpstream serve``, as described in ``static/api.txt``."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
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
from dpstream.pipeline.results.cohorts import CohortError, Cohorts
from dpstream.pipeline.results.derived_queries import pair_query
from dpstream.pipeline.results.epoch_cells import Side
from dpstream.pipeline.results.measure_rows import rows_of
from dpstream.pipeline.results.measure_series import ChosenRows, totals_of, with_rows
from dpstream.pipeline.results.pairs import Pair, Statistic
from dpstream.pipeline.results.periods import Aggregate, Periods
from dpstream.pipeline.results.roll_ups import RollUpError
from dpstream.pipeline.results.series import Series, SeriesError
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
from dpstream.pipeline.serve.views import MOST_SERIES, JobState
from dpstream.pipeline.stages.estimate_records import EstimateRecord
from dpstream.pipeline.values.boxes import QueryError

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
        app.router.add_get("/api", self._asset)
        app.router.add_get("/api/jobs", self._jobs)
        app.router.add_get("/api/recent", self._recent)
        app.router.add_get(job, self._details)
        app.router.add_get(f"{job}/curve", self._curve)
        app.router.add_get(f"{job}/top", self._top)
        app.router.add_get(f"{job}/quantiles", self._quantiles)
        app.router.add_get(f"{job}/sparklines", self._sparklines)
        app.router.add_get(f"{job}/table", self._table)
        app.router.add_get(f"{job}/ratio", self._ratio)
        app.router.add_get(f"{job}/difference", self._difference)
        app.router.add_get(f"{job}/cohorts", self._cohorts)
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
        periods = self._periods(state, request, _series(state, request.query, views.MOST_SENT))
        if periods.change is None and periods.interval is None:
            return state
        # A long history takes a moment: do not block the event loop.
        points = list(state.history.points)
        return await asyncio.to_thread(views.derived, state, points, periods)

    def _periods(self, state: JobState, request: web.Request, series: Sequence[Series]) -> Periods:
        lag = whole(request.query, "change", 1, _LONGEST_CHANGE)
        interval = whole(request.query, "interval", 2, _LONGEST_CHANGE)
        aggregate = Aggregate(one_of(request.query, "aggregate", "mean", "last", "sum"))
        rows = with_rows(series) if aggregate is Aggregate.sum else []
        measures = tuple(dict.fromkeys(row.measure for _, row in rows))
        try:
            return Periods(state.job, interval, lag, aggregate, measures=measures)
        except (ChangeError, RollUpError) as error:
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
        series = _series(state, query, MOST_SERIES)
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
        series = _series(state, query, views.MOST_SENT)
        limit = whole(query, "limit", 1, 2_000) or 200
        return _json(views.table(state, series, whole(query, "from"), whole(query, "to"), limit))

    async def _ratio(self, request: web.Request) -> web.StreamResponse:
        return await self._pair(request, "ratio", "numerator", "denominator")

    async def _difference(self, request: web.Request) -> web.StreamResponse:
        return await self._pair(request, "difference", "first", "second")

    async def _pair(
        self, request: web.Request, statistic: Statistic, *sides: str
    ) -> web.StreamResponse:
        if "change" in request.query:
            raise InvalidQueryError(f"change: a {statistic} has no changes")
        state, query = await self._state(request), request.query
        series = [_summed(state, query, side) for side in sides]
        sums = [self._sum(state, each) for each in series]
        periods = self._periods(state, request, [one for each in series for one in each])
        first, last = epoch_range(query)
        separator = " / " if statistic == "ratio" else " - "
        name = separator.join(side.name for side in sums)
        try:
            requested = pair_query(state.job, statistic, (Pair(name, sums[0], sums[1]),))
        except QueryError as error:
            raise ProblemError(404, str(error)) from None
        limit = whole(query, "limit", 1, 2_000) or 200
        points = list(state.history.points)

        def answer() -> dict[str, Any]:
            records = (
                record
                for record in periods.records(points)
                if (first or 0) <= record.epoch and (last is None or record.epoch <= last)
            )
            return curve_view.pairs(state.job, requested, records, limit)

        return _json(await asyncio.to_thread(answer))

    def _sum(self, state: JobState, series: Sequence[Series]) -> Side:
        name = "+".join(each.label for each in series)
        items = tuple(item for each in series for item in each.items or (each.number,))
        rows = {row.items: row for row in rows_of(state.job)}
        return Side(name, items, rows[items].whole if items in rows else ())

    async def _cohorts(self, request: web.Request) -> web.StreamResponse:
        state, query = await self._state(request), request.query
        attribute = query.get("attribute", "")
        if not attribute:
            raise InvalidQueryError("parameter 'attribute' is missing; expected ?attribute=NAME")
        points = list(state.history.points)
        try:
            cohorts = Cohorts.of(state.job, attribute, query.get("measure") or None)
            shares = await asyncio.to_thread(lambda: list(cohorts.shares(points)))
        except (CohortError, QueryError) as error:
            raise ProblemError(404, str(error)) from None
        return _json({"job": state.job.name, "measure": cohorts.measure, "rows": shares})

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


def _series(state: JobState, query: Mapping[str, str], most: int) -> tuple[Series, ...]:
    found = _chosen(state, query, most)
    if one_of(query, "statistic", "published", "total") == "published":
        return found
    if "change" in query:
        raise InvalidQueryError("change: a total has no changes")
    totals = totals_of(state.job, found)
    if not totals:
        raise InvalidQueryError(
            "statistic: a total requires means of measures of type count or sum; select them with "
            "measure"
        )
    return totals


def _chosen(state: JobState, query: Mapping[str, str], most: int) -> tuple[Series, ...]:
    ids = series_ids(query)
    asked = (query.get(name, "") for name in ("measure", "by", "where", "value"))
    selection = ChosenRows.parse(*asked)
    if not selection:
        return views.requested_series(state.history, ids)
    if ids:
        raise InvalidQueryError("series cannot be combined with measure, by, where or value")
    found = selection.of(state.history.rows)
    if len(found) > most:
        raise InvalidQueryError(
            f"by: {len(found):,} series match; expected at most {most}. Use where=ATTRIBUTE=VALUE, "
            "value=VALUE, or series=ID,ID"
        )
    return found


def _summed(state: JobState, query: Mapping[str, str], side: str) -> Sequence[Series]:
    """Return the series whose sum is one side of a ratio or difference."""
    ids = tuple(dict.fromkeys(filter(None, query.get(side, "").split(","))))
    if not ids:
        raise InvalidQueryError(f"{side}: expected IDs of items, such as {side}=1,2")
    return state.history.find_all(ids)


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
