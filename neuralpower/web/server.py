"""The page's addresses, and who may ask.

It listens on this machine alone. A request has to name this host, so that no name that another site has
pointed here is served, and comes from its own pages: another origin's page cannot drive it. A link from
elsewhere opens the page with its controls set, and computes nothing before its user asks.
"""

from __future__ import annotations

import asyncio
import errno
import importlib.resources
import json
import queue
import socket
import threading
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from neuralpower.errors import DeviceError, InputError, NeuralPowerError, one_line, quoted
from neuralpower.files.csv_files import csv_text
from neuralpower.processes.tether import environment, python
from neuralpower.report.page import css
from neuralpower.web.view import MOST_BYTES, Uploads, View, view_of

if TYPE_CHECKING:
    from neuralpower.web.site import Site

T = TypeVar("T")
HOST = "127.0.0.1"
NAMES = ("127.0.0.1", "localhost", "[::1]")
FORM_BYTES = 64 * 2**10  # of a form besides its file
DRAINED_BYTES = 2**31  # of a refused upload that are read and dropped, so that its browser reads the answer
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # without any, browsers hide the origin of a form
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Gone(Exception):  # noqa: N818  # no error: nobody waits for the answer
    """The one who asked has left."""


class Worker:
    """One thread that computes, in turn; it ends with the process."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="answers", daemon=True).start()

    async def __call__(self, request: Request, job: Callable[[], T]) -> T:
        """The job's result; raises Gone where nobody waits for it, and does not begin it then."""
        wanted: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((wanted, job))
        try:
            while not wanted.done():
                await asyncio.wait([wanted], timeout=0.1)
                if not wanted.done() and await request.is_disconnected():
                    raise Gone
        finally:
            wanted.cancel()
        return wanted.result()

    def _work(self) -> None:
        while True:
            wanted, job = self._jobs.get()
            if wanted.cancelled():
                continue
            found: Any = None
            try:
                found, error = job(), None
            except Exception as raised:
                error = raised
            loop = wanted.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, wanted, found, error)


def _settle(wanted: asyncio.Future[Any], found: Any, error: Exception | None) -> None:
    if not wanted.done():
        if error is None:
            wanted.set_result(found)
        else:
            wanted.set_exception(error)


class Guard:
    """Serves requests of this host's own pages alone, with the headers that hold for all answers."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set())
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        if reason := self._refused(scope["method"], headers):
            await PlainTextResponse(f"error: {reason}\n", 403)(scope, receive, sent)
            return
        scope["state"] = {**scope.get("state", {}), "linked": self._linked(headers)}
        await self.app(scope, receive, sent)

    def _refused(self, method: str, headers: Headers) -> str:
        """Why a request is not served; "" where it is."""
        hosts, origin = headers.getlist("host"), headers.get("origin")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return (
                f"host {', '.join(hosts)[:80]!r}: is not this server's; open http://{sorted(self.hosts)[0]}/"
            )
        if origin is not None and origin.lower() not in self.origins:
            return f"origin {origin[:80]!r}: a page from elsewhere cannot use this server"
        if (
            method == "POST"
            and origin is None
            and headers.get("sec-fetch-site", "same-origin") != "same-origin"
        ):
            return "a form from elsewhere cannot use this server"
        if self._linked(headers) and (
            headers.get("sec-fetch-mode") != "navigate" or headers.get("sec-fetch-dest") != "document"
        ):
            return "a page from elsewhere cannot use this server; open it in a tab of its own"
        return ""

    @staticmethod
    def _linked(headers: Headers) -> bool:
        """Whether another site's page asks for this."""
        return headers.get("sec-fetch-site", "none") in ("cross-site", "same-site")


class Pages:
    """The answers to requests."""

    def __init__(self, site: Site) -> None:
        self.site, self.work = site, Worker()

    async def whole(self, request: Request) -> Response:
        """The page; of a link from another site with nothing computed."""
        if request.state.linked:
            return _html(self.site.page(_view(request), wait=True))
        asked = await self.asked(request)
        return _html(await self.work(request, lambda: self.site.page(asked)))

    async def asked(self, request: Request) -> View:
        """The requested view, for what its model takes."""
        asked = _view(request)
        return await self.work(request, lambda: self.site.fitted(asked))

    def part(self, made: Callable[[View], str]) -> Callable[[Request], Awaitable[Response]]:
        """A part of the page, as a function of the view."""

        async def answered(request: Request) -> Response:
            asked = await self.asked(request)
            return self._alone(request, asked, await self.work(request, lambda: made(asked)))

        return answered

    def _alone(self, request: Request, asked: View, part: str) -> Response:
        """A part for the script of the page; within a page for a browser that runs none."""
        opened = "application/xhtml+xml" in request.headers.get("accept", "")
        return _html(self.site.around(asked, part) if opened else part)

    async def traffic(self, request: Request) -> Response:
        """The curve over the rate, which a program of its own refines."""
        asked = await self.asked(request)
        if request.query_params.get("refined"):
            programs = await self.work(request, lambda: self.site.simulations(asked))
            for device, arguments in programs.items():
                if (found := await _simulated(request, arguments)) is not None:
                    self.site.keep(asked, device, found)
        part = await self.work(request, lambda: self.site.traffic(asked))
        return self._alone(request, asked, part)

    async def saved(self, request: Request) -> Response:
        """A chart or a table as a file."""
        asked, part, kind = (
            await self.asked(request),
            request.path_params["part"],
            request.path_params["kind"],
        )
        found = await self.work(request, lambda: self.site.saved(asked, part, kind))
        if found is None:
            return PlainTextResponse("error: the page has no such part\n", 404)
        media = "image/svg+xml" if kind == "svg" else "text/csv"
        text = found if isinstance(found, str) else csv_text(found)
        name = f'attachment; filename="{part}.{kind}"'
        return Response(text, media_type=media, headers={"Content-Disposition": name})

    async def upload(self, request: Request) -> Response:
        """Keep a file, and open its view."""
        try:
            name, content = await _sent(request)
            model = await self.work(request, lambda: self.site.uploads.add(name, content))
        except NeuralPowerError as error:
            status = 413 if isinstance(error, TooLargeError) else 400
            return _html(self.site.refused(one_line(error)), status)
        return RedirectResponse(f"/?{self.site.uploaded(model)}", 303)

    async def refused(self, request: Request, error: Exception) -> Response:
        """An error of a query."""
        assert isinstance(error, NeuralPowerError)
        if request.url.path == "/":
            return _html(self.site.refused(one_line(error)), 400)
        return _html(self.site.failed(one_line(error)))

    async def fault(self, request: Request, error: Exception) -> Response:
        """A fault of neuralpower, as the command prints it."""
        return _html(self.site.failed(f"a fault of neuralpower itself, {quoted(error)}"), 500)


def application(site: Site, port: int) -> ASGIApp:
    """The application: pages, parts of them, files to save, and uploads."""
    pages = Pages(site)
    routes = [
        Route("/", pages.whole),
        Route("/answer", pages.part(site.answer)),
        Route("/details", pages.part(site.details)),
        Route("/printed", pages.part(site.printed)),
        Route("/traffic", pages.traffic),
        Route("/saved/{part:str}.{kind:str}", pages.saved),
        Route("/upload", pages.upload, methods=["POST"]),
        _static("web.js", "text/javascript"),
        _static("web.css", "text/css"),
    ]

    async def gone(request: Request, error: Exception) -> Response:
        return PlainTextResponse("", 499)

    handlers: dict[Any, Any] = {NeuralPowerError: pages.refused, Gone: gone, Exception: pages.fault}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), port)


def _view(request: Request) -> View:
    return view_of(parse_qsl(request.url.query, keep_blank_values=True, max_num_fields=64))


def _static(name: str, media: str) -> Route:
    text = importlib.resources.files("neuralpower.web").joinpath(name).read_text(encoding="utf-8")
    whole = css() + text if name.endswith(".css") else text

    async def served(request: Request) -> Response:
        return Response(whole, media_type=media)

    return Route(f"/{name}", served)


async def _simulated(request: Request, arguments: Sequence[str]) -> Any:
    """What the program prints as JSON; None where it fails. It ends with the request, raising Gone."""
    program = await asyncio.create_subprocess_exec(
        *python("neuralpower"),
        *arguments,
        "--json",
        stdout=PIPE,
        stderr=DEVNULL,
        stdin=DEVNULL,
        env=environment(),
    )
    printed = asyncio.ensure_future(program.communicate())
    try:
        while not printed.done():
            await asyncio.wait([printed], timeout=0.2)
            if not printed.done() and await request.is_disconnected():
                raise Gone
    finally:
        if program.returncode is None:
            program.kill()
    text, _ = printed.result()
    return json.loads(text) if program.returncode == 0 else None


class TooLargeError(InputError):
    """An upload that is too large."""


async def _sent(request: Request) -> tuple[str, bytes]:
    """(name, content) of the file of a form; raises InputError, TooLargeError after dropping what follows."""
    size = max(MOST_BYTES.values())
    most = size + FORM_BYTES
    text = f"the upload has more than {size // 2**20} MiB; give its path to neuralpower predict"
    if int(request.headers.get("content-length") or 0) > most:
        if "expect" not in request.headers:  # such a client waits for the answer before it sends
            await _drained(request.stream())
        raise TooLargeError(text)
    read = 0

    async def bounded() -> Message:
        nonlocal read
        message = await request.receive()
        read += len(message.get("body", b""))
        if read > most:
            raise TooLargeError(text)
        return message

    try:
        async with Request(request.scope, bounded).form(max_files=1, max_fields=4) as form:
            file = form.get("file")
            if not isinstance(file, UploadFile) or not file.filename:
                raise InputError("no file was sent; choose a config.json or an .onnx file")
            return file.filename, await file.read()
    except MultiPartException as error:
        raise InputError(f"the form cannot be read ({error.message}); choose one file") from None


async def _drained(stream: AsyncIterator[bytes]) -> None:
    left = DRAINED_BYTES
    async for part in stream:
        left -= len(part)
        if left < 0:
            return


def _html(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type="text/html")


def bound(port: int) -> socket.socket:
    """A socket of this machine alone; raises DeviceError where the port is in use."""
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
    except OSError as error:
        found.close()
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise DeviceError(
            f"port {port} {reason}; choose --port {port + 1}, or --port 0 for any free one"
        ) from None
    return found


class Server(uvicorn.Server):
    """A server that says when it can be asked."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


def serve(listening: socket.socket, *, trust_code: bool, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `ready` gets the address. Uploads are gone at the end."""
    from neuralpower.web.site import Site  # imports torch: a port in use is refused before

    port = listening.getsockname()[1]
    with Uploads() as uploads:
        site = Site(uploads, trust_code)
        config = uvicorn.Config(
            application(site, port),
            log_level="critical",
            access_log=False,
            timeout_graceful_shutdown=0,
            lifespan="off",
            server_header=False,
            ws="none",
            timeout_keep_alive=30,
        )
        Server(config, partial(ready, f"http://{HOST}:{port}/")).run(sockets=[listening])
