"""The web server of the console: Starlette's application, and how uvicorn serves it.

Handlers that ask the cluster run on threads; the event loop only waits. An open page has one answer
that never ends (server-sent events): each message has the parts of the page that have changed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from regent.client.cluster_connection import Cluster
from regent.cluster.console_child import TOKEN
from regent.console.browser_gate import HEADERS, BrowserGate, is_of_this_machine
from regent.console.operator_actions import OPERATIONS, perform
from regent.console.pages import (
    PAGES,
    STATIC,
    ConsolePage,
    PageLook,
    PageMemory,
    PageNotFoundError,
    Parts,
    parts_of,
    render,
    whole,
)
from regent.console.plan_operations import FOLDER, plans_folder
from regent.console.reports import FRAMED_HEADERS, read_report
from regent.console.view_collector import ViewCollector
from regent.core.errors import RegentError
from regent.transport.local_users import LocalUsers, local_users

logger = logging.getLogger(__name__)

_KEEP_ALIVE_S: Final = 10.0
_OVERVIEW_WAITS_S: Final = 0.4  # for the partitions; it is shown without them, then
_STOP_S: Final = 1
_MAX_FORM_BYTES: Final = 16 * 1024


class Console:
    """The console of one cluster. ``may_write``: it offers what changes the cluster.

    ``reports``, ``plans``: folders, None: those of a cluster on this machine.
    """

    def __init__(
        self,
        cluster: Cluster,
        gate: BrowserGate,
        *,
        may_write: bool = False,
        reports: Path | None = None,
        plans: Path | None = None,
    ) -> None:
        self._reports = reports
        self._plans = plans
        self._cluster = cluster
        self._gate = gate
        self._may_write = may_write
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changes = 0
        self._has_changed = asyncio.Event()
        self._stopping = False
        self._memory = PageMemory()
        self.collector = ViewCollector(cluster, self._on_change)
        routes = [
            Route("/", self._page, name="overview"),
            *(Route(f"/{name}", self._page) for name in PAGES),
            Route("/live/{name}", self._live),
            Route("/report-file", self._report_file),
            Route("/ask/{operation}", self._ask),
            Route("/do/{operation}", self._do, methods=["POST"]),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        self.application: ASGIApp = _Gated(Starlette(routes=routes), gate)

    def stop(self) -> None:
        """End the answers that never end, and the threads."""
        self._stopping = True
        self._wake()
        self.collector.close()

    # --- pages ---

    async def _page(self, request: Request) -> Response:
        name = request.url.path.strip("/") or "overview"
        arguments = dict(request.query_params)
        try:
            parts, look = await run_in_threadpool(self._parts, PAGES[name], arguments)
        except RegentError as error:
            status = 404 if isinstance(error, PageNotFoundError) else 503
            return _refused(status, str(error))
        return HTMLResponse(whole(name, parts, look))

    def _parts(self, page: ConsolePage, arguments: Mapping[str, str]) -> tuple[Parts, PageLook]:
        view = (
            self.collector.current()
            if page.needs_partitions
            else self.collector.current(_OVERVIEW_WAITS_S)
        )
        of_console = self._may_write, self._reports, self._plans, self._memory
        look = PageLook(view, self._cluster, arguments, *of_console)
        return parts_of(page, look), look

    async def _report_file(self, request: Request) -> Response:
        """Send a report as it is, for a frame in which it can do nothing."""
        look = PageLook(self.collector.view, self._cluster, reports=self._reports)
        name = request.query_params.get("name", "")
        try:
            content = await run_in_threadpool(read_report, look.reports_folder, name)
        except RegentError as error:
            return _refused(404, str(error))
        if not name.endswith(".html"):
            return _refused(404, "this report is not a page")
        return HTMLResponse(content, headers=FRAMED_HEADERS)

    async def _live(self, request: Request) -> Response:
        page = PAGES.get(request.path_params["name"])
        if page is None:
            return _refused(404, "there is no such page")
        messages = self._messages(page, dict(request.query_params))
        return StreamingResponse(messages, media_type="text/event-stream")

    async def _messages(
        self, page: ConsolePage, arguments: Mapping[str, str]
    ) -> AsyncIterator[bytes]:
        """Yield the parts that changed, as often as the cluster does or ``every_s`` says."""
        self._loop = asyncio.get_running_loop()
        sent: dict[str, str] = {}
        with self.collector.watched():
            said_at = 0.0
            while not self._stopping:
                seen = self._changes
                try:
                    parts, look = await run_in_threadpool(self._parts, page, arguments)
                except RegentError as error:
                    parts, look = {"problem": render("problem.html", problem=str(error))}, None
                changed = {id: str(part) for id, part in parts.items() if sent.get(id) != part}
                gone = [] if look is None else [id for id in sent if id not in parts]
                if changed or gone or time.monotonic() - said_at > _KEEP_ALIVE_S:
                    said_at = time.monotonic()
                    content = {
                        "parts": changed,
                        "gone": gone,
                        "is_whole": not sent,
                        "now_ms": time.time() * 1000,
                    }
                    yield b"data: " + orjson.dumps(content) + b"\n\n"
                    sent |= changed
                    for name in gone:
                        del sent[name]
                await self._next_change(seen, page.every_s)

    async def _next_change(self, seen: int, every_s: float | None) -> None:
        if every_s:
            await asyncio.sleep(every_s)
            return
        while self._changes == seen and not self._stopping:
            self._has_changed.clear()
            await self._has_changed.wait()

    def _on_change(self) -> None:
        """Wake up the open pages; called by a thread of the collector."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changes += 1
        self._has_changed.set()

    # --- changes ---

    async def _ask(self, request: Request) -> Response:
        operation = OPERATIONS.get(request.path_params["operation"])
        if operation is None or not self._may_write:
            return _refused(404, "this console only shows: --console-write lets it change things")
        given = dict(request.query_params)
        fields, lines = operation.fields_of(given), None
        if operation.preview is not None and "preview" in given:
            try:
                lines = await run_in_threadpool(operation.preview, self._cluster, fields)
            except RegentError as error:
                return _refused(409, str(error))
        return HTMLResponse(
            render(
                "ask.html",
                operation=operation,
                name=request.path_params["operation"],
                fields=fields,
                question=operation.question.format(fields["target"]),
                lines=lines,
                back=operation.page_after(fields["target"]),
                form_token=self._gate.form_token,
            )
        )

    async def _do(self, request: Request) -> Response:
        name = request.path_params["operation"]
        if name not in OPERATIONS or not self._may_write:
            return _refused(404, "this console only shows: --console-write lets it change things")
        if int(request.headers.get("content-length") or _MAX_FORM_BYTES + 1) > _MAX_FORM_BYTES:
            return _refused(413, "this form is too long")
        form = _form(await request.body())
        if (refusal := self._gate.form_refusal(form)) is not None:
            return _refused(*refusal)
        try:
            fields = OPERATIONS[name].fields_of(form)
            if (folder := plans_folder(self._cluster, self._plans)) is not None:
                fields[FOLDER] = str(folder)  # of this process, never of the form
            await run_in_threadpool(perform, self._cluster, name, fields)
        except RegentError as error:
            return _refused(409, str(error))
        self._memory.plans.forget()
        self.collector.refresh()
        return RedirectResponse(OPERATIONS[name].page_after(fields["target"]), status_code=303)


class _Gated:
    """Refuses what the gate refuses, and gives every answer its headers."""

    def __init__(self, inner: ASGIApp, gate: BrowserGate) -> None:
        self._inner = inner
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close"})
            else:
                await self._inner(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._own_answer(Request(scope))
        await (self._inner if answer is None else answer)(scope, receive, send_with_headers)

    def _own_answer(self, request: Request) -> Response | None:
        shown = request.query_params.get(TOKEN)
        if request.method == "GET" and request.url.path == "/" and shown is not None:
            if not is_of_this_machine(request.headers.get("host", "")):
                return _refused(421, "use 127.0.0.1")
            if not self._gate.knows(shown):
                return _refused(403, "this token is not the present one: the command prints it")
            # Not a redirect: a browser would not send the cookie after a link on another site.
            welcome = HTMLResponse(render("welcome.html"))
            welcome.set_cookie(
                self._gate.cookie_name, self._gate.cookie, httponly=True, samesite="strict"
            )
            return welcome
        refusal = self._gate.refusal(request.method, Headers(scope=request.scope), request.cookies)
        return None if refusal is None else _refused(*refusal)


def _refused(status: int, reason: str) -> Response:
    return HTMLResponse(render("refused.html", status=status, reason=reason), status_code=status)


def _form(body: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=10))
    except ValueError:
        return {}


# --- serving --------------------------------------------------------------------------------------


class QuietServer(uvicorn.Server):
    """uvicorn's server, without a timer that wakes it ten times a second."""

    def __init__(self, config: uvicorn.Config, console: Console) -> None:
        super().__init__(config)
        self._console = console
        self._ended = asyncio.Event()
        self._serving_loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        """Wait until somebody asks for the end."""
        self._serving_loop = asyncio.get_running_loop()
        if not self.should_exit:
            await self._ended.wait()
        self._console.stop()

    def handle_exit(self, sig: int, frame: Any) -> None:
        """End after a signal, with status 0."""
        del sig, frame
        self.end()

    def end(self) -> None:
        """End the server; any thread may call it."""
        self.should_exit = True
        if self._serving_loop is not None:
            self._serving_loop.call_soon_threadsafe(self._ended.set)


def server_of(console: Console) -> QuietServer:
    """Return a server; its ``run`` takes sockets that listen, and ends with SIGINT or SIGTERM."""
    users = local_users("same")
    config = uvicorn.Config(
        console.application,
        http=_protocol(users),
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=_STOP_S,
    )
    return QuietServer(config, console)


def _protocol(users: LocalUsers) -> type[asyncio.Protocol]:
    """Return the HTTP protocol that closes connections of other users of this machine."""

    class OfOurUser(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self.is_ours = users.admits(transport.get_extra_info("socket"), "console")
            if self.is_ours:
                super().connection_made(transport)
            else:
                transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.is_ours:
                super().connection_lost(exc)

    return OfOurUser
