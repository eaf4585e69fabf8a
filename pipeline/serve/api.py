"""The JSON API of ``dpstream serve``.

Everything is read-only, and made from estimates and manifests alone: no content of a report is
anywhere in it. Numbers of users are floating point, times are milliseconds since 1970 (UTC), and
where nothing is known stands ``null``, never 0. Answers are JSON, with an ``error`` (a sentence)
and a status of 400 or more where something is wrong. Epochs where nothing can be said, and those
flagged ``gap``, have ``null`` in place of value, low and high; what was published of them is in
``/estimates``.

``GET /api/jobs``
    ``{"run", "kafka", "login": bool (who asks has given the password), "jobs": [SUMMARY, ...]}``,
    by name. ``run`` names this life of the server.
    ``kafka`` is ``{"answers": true|false, "since"}``: while it does not answer, numbers are stale.

    SUMMARY: ``{"job", "protocol", "deployment", "deployed_at", "phase", "ended" (whether
    its last epoch is published), "replay_of" (a job or null), "epochs" (the last one there will be,
    or null), "counted_from" (the deployment's first epoch), "horizon" (epochs of one),
    "population" (the people whom it charges), "position" (in words, or null), "unit_of_value"
    ("users", or "percent" of jobs that learn), "domain": {"kind":
    "value"|"items"|"numbers"|"found", "items": [label, ...] or null, "crowds": [label, ...] where
    there are some, "measure": what is published of a model that is learnt},
    "first_epoch" (held here), "last_epoch", "closed_at", "fate", "flags", "headline" (text),
    "estimate": {"value", "low", "high"} or null, "title", "description" (or null), "people" (what
    they are called), "period" ("week", or "epoch"), "calendar": {"zone", "days" (whether epochs are
    whole days there), "seconds" (whether times have them)} or null, "sentence": [text, number,
    text, ...] (for readers; parts at odd places carry weight), "told": {"epoch", "name",
    "contributors", "population"} or null (the epoch that it is about: the last complete one),
    "assumption" (a sentence: what intervals assume of people's changes, or null), "warning" (where
    reports show that people may have made more, or null),
    "change": {"number", "words"} or null (since the epoch before, with an interval of its own),
    "problems": [sentence, ...], "behind_seconds" (since the oldest record that waits was written,
    of the stage where that is longest; 0 when nothing waits, null when not known), "loss":
    {"epsilon", "delta", "each": "epoch"|"horizon" or null} (what the job costs by itself), "budget"
    (text, of all jobs about its people)}``. Of ``items`` up to 64 are listed here, up to 4,096 in
    ``/api/jobs/J``, of longer domains none.

``GET /api/jobs/J``
    SUMMARY and ``{"guarantee": {...}, "guarantee_words": [sentence, ...], "budget": {"population",
    "stated": {"epsilon", "delta"}, "charged": {"epsilon" or null, "delta"}, "filtered": epsilon of
    all of it where the budget composes charges to less than their sum, or null, "remaining": as
    charged or null without a budget, "allowed": the same or null, "words": [sentence, ...]},
    "exposure":
    {"reports": [t, ...], "epsilons": [...], "likely": [text, ...], "limit", "words": sentences}
    or null (of jobs whose devices report several times of the same: epsilon of a person to whoever
    sees t of the reports together, and how likely a guess becomes that was 50 % likely), "series":
    [{"id", "label", "unit": "users"|"value"|"percent", "crowd" where there are some}, ...],
    "chosen": [id, ...] (what to draw at first), "smoothed": bool, "changes": bool (whether
    there are intervals of changes), "truth": bool, "truth_note" ("not private: ..." or null),
    "trust": {"parties": [{"name", "sees", "trusted", "either": bool (one
    of those beside each other suffices)}, ...], "words"},
    "simultaneous": {"epochs", "widening", "words"} or null}``: intervals so many times as wide as
    those of 95 % hold at all epochs of a horizon at once, in 19 of 20 runs.

    Ids of series: ``value``; of items their number from 1 on, such as ``17``; of numbers ``q0.5``
    for a quantile (0.25, 0.5 and 0.75) and ``r10:20`` for a range between edges of buckets.

``GET /api/recent?epochs=N``
    ``{"jobs": {J: {"id", "label", "unit", "epochs": [...], "begins": [...] or null, "value": [...],
    "low": [...], "high": [...], "population": [...] or null}}}``: of every job with an estimate its
    last N epochs (100, at most 1,000) of one series: the value, the largest item by its mean, or
    the median.

``GET /api/jobs/J/curve?series=ID,ID&from=&to=&columns=N&change=N``
    ``{"job", "from", "to", "last_epoch", "reduced": bool, "truth_note", "series": [{"id", "label",
    "unit", "epochs": [...], "begins": [...] (milliseconds, or null without a calendar), "value":
    [...], "low": [...], "high": [...], "own_low": [...], "own_high": [...], "population": [...] (to
    whom what is shown is cut, or null), "simultaneous_low": [...] or null, "simultaneous_high",
    "smoothed": [...] or null, "smoothed_low", "smoothed_high", "truth": [...] or null}]}``: at most
    12 series, of which some are chosen if none is named. N columns (default 1,000, 16 to 4,096):
    where there are more epochs than two a column, of every column those of the smallest and of the
    largest value stay, with the band of the whole column, and the first one of a gap; ``own_low``
    and ``own_high`` are those of the epoch itself. Ask again
    with ``from`` and ``to`` for a finer part. With ``change`` numbers and truth are changes since
    so many epochs ago, with intervals of their own, from the first epoch that has one so long
    before.

``GET /api/jobs/J/top?epoch=E&count=N``
    ``{"epoch", "fate", "flags", "population", "name", "kind": "item", "items": [{"id", "label",
    "value", "low", "high", "truth", "places": [first, last] or null (those that it may have
    among all items)}], "simultaneous_half_width" or null, "found_above" or null, "notes": [...]}``:
    the largest items of an epoch, by default the last one and 10 (at most 100). Of numbers it is
    the buckets, in their order.

``GET /api/jobs/J/quantiles?epoch=E``
    ``{"epoch", "fate", "flags", "population", "name", "quantiles": [{"id", "share",
    "value", "low", "high", "truth"}]}``, of numbers only.

``GET /api/jobs/J/sparklines?count=N``
    ``{"last_epoch", "population", "columns", "series": [{"id", "label", "unit", "last": [value,
    low, high] or null, "points": [...]}]}``: the N (200, at most 1,000) largest series by
    their mean, each reduced to at most 64 points, null where there is a gap.

``GET /api/jobs/J/table?series=&from=&to=&limit=N&change=N``
    ``{"rows": [{"epoch", "begins", "fate", "flags", "closed_at", "contributors", "population",
    "series": {id: [value, low, high] or null}}]}``: the numbers behind a chart, the latest N (200,
    at most 2,000) of the epochs asked for, the last one first; ``change`` as of ``curve``.

``GET /api/jobs/J/pipeline``
    ``{"at", "workers_needed" (false where it needs nobody that none is alive: the job is paused or
    drained, its last epoch is published, or it is a replay for which nothing waits), "stages":
    [{"stage", "reads" (the last part of a topic's name), "workers": [{"name", "alive",
    "resting" (it has nothing to do, and is started when it has), "age" (seconds since it was heard
    of), "partitions", "records_per_second", "reports_per_second"}],
    "lag" (records), "waiting" (seconds) or null, "epoch" (the latest one that was decided, added up
    or published), "alive" (whether a worker is)}], "windows": [{"epoch", "reports", "devices",
    "waits_for": [producer, ...], "grace_left" (seconds)}], "open_windows", "decided": {fate:
    count} (of a long history {} until a shuffle worker has told them), "producers" (null where
    devices report for themselves), "silent": [producer, ...], "collectors": [{"name", "alive",
    "age", "stored" (reports), "stored_per_second", "waiting" (requests), "refused": {reason:
    requests}}] or null where producers report, "dead_letters": {reason: count}, "late_reports",
    "unusable_reports", "problems": [sentence, ...], "notes": [sentence, ...]}`` or ``{"at": null}``
    before anything is known; a replay has no shuffle stage.
    Where the guarantee rests on the shuffle stage, records and reports of it are null: they would
    be counts of raw messages. Devices and seconds are told.

``GET /api/jobs/J/estimates?from=&to=&series=&format=json|csv|parquet``
    A download, read afresh from Kafka. JSON: ``{"job", "assumes_changes" (or null), "estimates":
    [{"epoch", "fate", "closed_at", "contributors", "population", "flags", "estimate": as published,
    "truth"}]}``. CSV: byte for byte what ``dpstream estimates J --format csv`` prints of these
    epochs. Parquet: the same rows, with types. ``series`` is for JSON; the others have everything.

``GET /figures.json?job=J&theme=light|dark&series=ID,ID&curves=N&axis=dates|numbers``
    The description of an empty figure for N curves, by default as many as there are series, which
    say its unit, with dates on its axis if the job has them; see `dpstream.pipeline.serve.figures`.

``GET /ws?job=J&after=E&start=RUN&deployment=D&series=ID,ID`` (a WebSocket)
    Messages of the server, each a JSON object with a ``type``:

    * ``hello``: ``{"run", "kafka", "job", "last_epoch", "jobs": [SUMMARY, ...]}``, first of all.
    * ``epoch``: ``{"job", "epoch", "begins", "fate", "flags", "closed_at", "contributors",
      "population", "headline", "estimate", "sentence", "told", "series": {id: [value, low, high] or
      null}, "truth": {id: number}}``: every epoch after E, then each new one as it is published.
      ``series`` are those asked for; without ``series`` all there are, or of more than 256 those
      chosen.
    * ``smoothed``: ``{"job", "epoch"}``: the smoothed curve was made anew; ask for it.
    * ``budget``: ``{"job", "budget"}``, the latter as of ``/api/jobs/J``: at first, and when its
      people are charged or another budget binds them, once a second at most.
    * ``pipeline``: as of ``/api/jobs/J/pipeline``, when it changes, once a second at most.
    * ``jobs``: ``{"jobs": [SUMMARY, ...]}``, when one of them changes, once a second at most.
    * ``kafka``: ``{"answers", "since"}``, when it ceases to answer and when it is back.
    * ``heartbeat``: ``{"at", "kafka"}``, every 10 s.
    * ``reload``: ``{"run", "why"}``: RUN is another life of the server, or the job was deployed
      anew (D, as of its SUMMARY, is another deployment) or is gone: begin again without ``after``,
      ``start`` and ``deployment``. The connection is closed after it.

    Without ``job`` there is no ``epoch``, ``smoothed``, ``budget`` and ``pipeline``. What a client
    sends is passed over. One that takes nothing for 2 s is dropped: connect again, with the last
    epoch seen. The close code 1013 says that there are too many viewers; 1001 that the server ends.

``/`` is the page, ``/static/...`` what it loads, ``/bokeh/VERSION/bokeh.min.js`` BokehJS; in
``index.html`` the text ``BOKEH_JS`` becomes its path. ``/api`` is this text.

Limits: 2,000 characters of path and query, 12 series, whole numbers from 0 to 2^53. Refused is with
400 what makes no sense, 401 who has not logged in, where the server asks for that (``POST /login``
with ``password`` gives a cookie, ``POST /logout`` ends it), or is not named by its proxy, 429 too
many wrong passwords, 404 what there is not, 405 any method but GET and HEAD, 413 a body, 414 an
address that is too long, 431 a head that is, 421 a ``Host`` and 403 an ``Origin`` that this server
was not told of (``--allow-host``), 503 what is too much at once (connections, viewers, downloads),
and downloads while Kafka is away. 500 is a fault of the server, of which its log has a line.
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
from dpstream.pipeline.serve.board import Board, encode
from dpstream.pipeline.serve.connections import ConnectionLimiter
from dpstream.pipeline.serve.downloads import TYPES, Download, Format
from dpstream.pipeline.serve.figures import MOST_CURVES, Theme, curves
from dpstream.pipeline.serve.history import Point
from dpstream.pipeline.serve.login import PATH as LOGIN_PATH
from dpstream.pipeline.serve.login import LoginDesk
from dpstream.pipeline.serve.query_strings import (
    AskedWronglyError,
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
"""All that was published of a job; called and iterated in a thread."""

_PIECE_SECONDS = 30.0
# To make the columns of so many takes some 50 ms at most.
_EPOCHS_AT_ONCE = 500
_COMPRESSED_FROM = 1_000
_LONGEST_CHANGE = 1 << 16
_NOTHING = object()
_AWAY = "Kafka does not answer: try again when it is back"
_LOG = logging.getLogger(__name__)


class ProblemError(Exception):
    """A request that is answered by a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """Answers requests from what the board knows.

    Args:
        board: of this event loop.
        records: what downloads read.
        gatekeeper: looks at requests first.
        sockets: of the viewers.
        downloads: how many there may be at once.
        desk: lets in who may see the page.
        embed_in: origins whose pages may have this one in a frame.
    """

    def __init__(
        self,
        board: Board,
        records: Records,
        gatekeeper: Gatekeeper,
        sockets: Sockets,
        downloads: int,
        desk: LoginDesk,
        embed_in: Sequence[str] = (),
    ) -> None:
        self._board = board
        self._records = records
        self._gatekeeper = gatekeeper
        self._sockets = sockets
        self._assets = load_assets()
        self._desk = desk
        self._headers = headers_for(embed_in)
        self._headers_of_form = headers_for(embed_in, form=True)
        self._most_downloads = downloads
        self._downloads = 0
        self._begun: dict[int, bool] = {}
        self._drawing = asyncio.Lock()
        self._figures_made: dict[tuple[Theme, int, str, str | None], str] = {}
        self._pool = ThreadPoolExecutor(downloads, "download")

    def application(self) -> web.Application:
        """The routes."""
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
        app.router.add_get("/figures.json", self._figures)
        app.router.add_get("/ws", self._ws)
        app.router.add_get("/{path:.*}", self._asset)
        app.on_shutdown.append(self._shut)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        gate = None if request.transport is None else request.transport.get_protocol()
        if isinstance(gate, ConnectionLimiter):
            gate.started()
        self._begun[id(request)] = False
        try:
            has_body = request.body_exists or request.headers.get("Content-Length", "0") != "0"
            # A password that is given, and a farewell: nothing else is ever sent here.
            given = self._desk.takes(request)
            refusal = self._gatekeeper.refuse(
                "GET" if given else request.method,
                request.raw_path,
                request.headers,
                has_body=has_body and not (given and request.path == LOGIN_PATH),
            )
            if refusal is not None:
                return _problem(refusal.status, refusal.message, close=True)
            stopped = await self._desk.answer(request)
            return await handler(request) if stopped is None else stopped
        except ProblemError as error:
            return _problem(error.status, str(error))
        except (AskedWronglyError, SeriesError) as error:
            return _problem(400, str(error))
        except web.HTTPException as error:
            return _problem(error.status, error.reason)
        except (ConnectionError, TimeoutError):
            # Who has asked is gone, or takes nothing.
            raise
        except Exception as error:
            _LOG.error("%s %a failed: %s", request.method, request.path[:100], error_line(error))
            if self._begun[id(request)]:
                # Half an answer must not look like a whole one.
                if request.transport is not None:
                    request.transport.abort()
                raise
            return _problem(500, "the server failed to answer this; its log says why")
        finally:
            del self._begun[id(request)]
            if isinstance(gate, ConnectionLimiter):
                gate.finished()

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
            # Over a long history it takes a moment; others have their turn.
            return await asyncio.to_thread(views.changed, state, list(state.history.points), lag)
        except ChangeError as error:
            raise ProblemError(404, str(error)) from None

    async def _job(self, name: str) -> JobState:
        if name not in self._board.jobs:
            await self._board.first_look()
        state = self._board.jobs.get(name)
        if state is not None:
            self._board.asked(name)
        else:
            known = ", ".join(sorted(self._board.jobs)[:10]) or "none at all"
            raise ProblemError(
                404, f"there is no job {name[:60]!a} here, the jobs there are: {known}"
            )
        return state

    def _point(self, state: JobState, request: web.Request) -> Point:
        epoch = whole(request.query, "epoch", 1)
        point = state.history.last if epoch is None else state.history.at(epoch)
        if point is None:
            which = "no epoch" if epoch is None else f"epoch {epoch:,}"
            published = "is published" if epoch is None else "is not published"
            raise ProblemError(404, f"{which} of job {state.job.name} {published} here yet")
        return point

    async def _about(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=__doc__ or "", content_type="text/plain")

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        board = self._board
        board.asked()
        text = (
            f'{{"run": {json.dumps(board.run)}, "kafka": {encode(board.kafka)}, '
            f'"login": {json.dumps(self._desk.knows(request))}, "jobs": {board.summaries()}}}'
        )
        return _json_text(text)

    async def _recent(self, request: web.Request) -> web.StreamResponse:
        board = self._board
        board.asked()
        count = whole(request.query, "epochs", 1, 1_000) or 100
        recent = {name: curve_view.recent(state, count) for name, state in board.jobs.items()}
        return _json({"jobs": {name: body for name, body in recent.items() if body}})

    async def _details(self, request: web.Request) -> web.StreamResponse:
        return _json(views.details(await self._state(request)))

    async def _curve(self, request: web.Request) -> web.StreamResponse:
        state, query = await self._shown(request), request.query
        columns = whole(query, "columns", 1)
        first, last = whole(query, "from"), whole(query, "to")
        series = views.asked_series(state.history, series_ids(query))
        for _ in range(len(state.history.points) // _EPOCHS_AT_ONCE):
            state.history.triples(series, _EPOCHS_AT_ONCE)
            # Others have their turn, also when a long curve is made for the first time.
            await asyncio.sleep(0)
        count = 1_000 if columns is None else min(max(columns, 16), 4_096)
        return _json(curve_view.curve(state, series, first, last, count))

    async def _top(self, request: web.Request) -> web.StreamResponse:
        state = await self._state(request)
        if state.history.kind.single:
            raise ProblemError(404, f"job {state.job.name} counts one value, it has no items")
        count = whole(request.query, "count", 1, 100)
        return _json(views.top(state, self._point(state, request), count or 10))

    async def _quantiles(self, request: web.Request) -> web.StreamResponse:
        state = await self._state(request)
        if not state.history.kind.quantiles:
            raise ProblemError(404, f"quantiles are for jobs over numbers, not {state.job.name}")
        return _json(views.quantiles(state, self._point(state, request)))

    async def _sparklines(self, request: web.Request) -> web.StreamResponse:
        state = await self._state(request)
        return _json(curve_view.sparklines(state, whole(request.query, "count", 1, 1_000) or 200))

    async def _table(self, request: web.Request) -> web.StreamResponse:
        state, query = await self._shown(request), request.query
        series = views.asked_series(state.history, series_ids(query))
        limit = whole(query, "limit", 1, 2_000) or 200
        return _json(views.table(state, series, whole(query, "from"), whole(query, "to"), limit))

    async def _pipeline(self, request: web.Request) -> web.StreamResponse:
        return _json((await self._state(request)).pipeline or {"at": None})

    async def _figures(self, request: web.Request) -> web.StreamResponse:
        theme: Theme = one_of(request.query, "theme", "light", "dark")
        name = request.query.get("job")
        if not name:
            raise AskedWronglyError("name a job: ?job=NAME")
        state = await self._job(name)
        series = views.asked_series(state.history, series_ids(request.query))
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
        return _json_text(await self._figure(theme, count, unit, times))

    async def _figure(self, theme: Theme, count: int, unit: str, times: str | None) -> str:
        async with self._drawing:
            key = theme, count, unit, times
            if key not in self._figures_made:
                described = await asyncio.to_thread(curves, theme, count, unit=unit, times=times)
                self._figures_made[key] = encode(described)
            return self._figures_made[key]

    async def _ws(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        ids, after = series_ids(query), whole(query, "after") or 0
        name = query.get("job") or None
        view = ViewerRequest(
            name, after, query.get("start") or None, ids, query.get("deployment") or None
        )
        board = self._board
        # After a start of the server, jobs are known as soon as Kafka has answered.
        outdated = board.answers and view.outdated(board) is not None
        if name is not None and not outdated:
            views.asked_series((await self._job(name)).history, ids)
        if self._sockets.full:
            raise ProblemError(
                503, f"there are {self._board.viewers:,} viewers already: try again later"
            )
        return await self._sockets.serve(request, view)

    async def _estimates(self, request: web.Request) -> web.StreamResponse:
        state, query = await self._state(request), request.query
        format: Format = one_of(query, "format", "json", "csv", "parquet")
        ids = series_ids(query)
        download = Download(
            state.job,
            *epoch_range(query),
            views.asked_series(state.history, ids) if ids else (),
            state.truths,
        )
        if not self._board.answers:
            raise ProblemError(503, _AWAY)
        if self._downloads >= self._most_downloads:
            raise ProblemError(503, "there are too many downloads at once: try again in a moment")
        self._downloads += 1
        pieces = download.pieces(self._records(state.job), format)
        try:
            return await self._send(request, state.job, pieces, format)
        finally:
            self._downloads -= 1
            with suppress(RuntimeError):
                self._pool.submit(_close, pieces)

    async def _send(
        self, request: web.Request, job: DeployedJob, pieces: Iterator[bytes], format: Format
    ) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        try:
            piece = await loop.run_in_executor(self._pool, next, pieces, _NOTHING)
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
        while isinstance(piece, bytes):
            await asyncio.wait_for(response.write(piece), _PIECE_SECONDS)
            try:
                piece = await loop.run_in_executor(self._pool, next, pieces, _NOTHING)
            except (KafkaError, ClusterError):
                # Half a file must not look like a whole one.
                if request.transport is not None:
                    request.transport.abort()
                return response
        await response.write_eof()
        return response

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        asset = self._assets.get(request.path)
        if asset is None:
            raise ProblemError(404, f"there is no page {request.path[:100]!a} here")
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


def _close(pieces: Iterator[bytes]) -> None:
    close: Any = getattr(pieces, "close", None)
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
