"""The page and the JSON API of an index: an application of FastAPI, and the server that runs it."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from typing import Annotated, Any, TypeVar

import uvicorn
from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dml.evaluation.threshold import describe_choice
from dml.inference.certificates import describe
from dml.inference.serving.image_search import ImageSearch, Item, Neighbor, ServedIndex
from dml.runtime.errors import InputError
from dml.runtime.text import printable

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",  # another index may answer at this port tomorrow
}
"""The headers of all answers: the page loads nothing from elsewhere, and no other page may load what it shows."""

THREADS = 2  # requests that are worked on at a time; each may hold a decoded image in memory

LIMITS = {"limit_concurrency": 64, "timeout_graceful_shutdown": 3}
"""The connections, idle ones too, from which on others are told to come back, as each may hold an upload in memory; and
the seconds that requests under way may take after a signal.
"""

Result = TypeVar("Result")


class RequestGuard:
    """A layer around an application that adds `HEADERS`, and refuses API requests of other web pages.

    A page on the internet can make its visitor's browser send requests to the visitor's own machine. The browser
    wouldn't show that page the answers, but the network would compute them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request as ASGI says."""
        has_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        app = self.app
        if scope["type"] == "http" and scope["path"].startswith("/api/") and _is_foreign(Headers(scope=scope)):
            app = JSONResponse({"error": "requests of other web pages are refused"}, status_code=403)
        try:
            await app(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # it takes longer than the server waits at its end, which is no bug
            if has_started:
                raise
            stopped = JSONResponse({"error": "the server was stopped meanwhile"}, status_code=503)
            await stopped(scope, receive, send_with_headers)


def _is_foreign(headers: Headers) -> bool:
    """Return whether a browser marked a request as that of another page; programs mark none.

    Where the server has a name of its own, and no TLS, browsers send no ``Sec-Fetch-Site``.
    """
    if site := headers.get("sec-fetch-site"):
        return site in ("cross-site", "same-site")
    page = headers.get("origin") or headers.get("referer")  # an address such as http://nas:8000/, or null
    return page is not None and page.lower().split("/")[2:3] != [headers.get("host", "").lower()]


def _find_search(request: Request) -> ImageSearch:
    """Return the search that answers the whole request, so that an answer is of one state of the index."""
    searched: ImageSearch | ServedIndex = request.app.state.searched
    return searched.find_search() if isinstance(searched, ServedIndex) else searched


Search = Annotated[ImageSearch, Depends(_find_search)]
Number = Annotated[int, Path(ge=0, lt=2**63, description="number of the item")]
Count = Annotated[int, Query(ge=1, le=1000, description="largest number of neighbors")]
Neighbors = dict[str, list[Neighbor] | str]  # and the space, the fingerprint of the model whose vectors were compared
Label = Annotated[str | None, Query(max_length=1000, description="label that the images shall have")]

router = APIRouter(prefix="/api")


async def _compute(request: Request, work: Callable[[], Result]) -> Result:
    """Do work in a thread, as soon as one is free, while other requests are read and answered."""
    return await to_thread.run_sync(work, limiter=request.app.state.limiter)


@router.get("/index")
def describe_index(search: Search) -> dict[str, Any]:
    """Return what the index is made of, the model that embedded its images, and the limits of requests."""
    index, calibration = search.index, search.index.calibration
    return {
        "images": len(index),
        "labels": len(search.count_by_label),
        "model": index.model.settings.name,
        "fingerprint": index.space,
        "dimension": index.vectors.dimension if index.adapter else index.model.dimension,
        "kind": index.vectors.factory,  # "Flat" is exact
        "certificate": describe(index.certificate, index.state) if index.certificate else "",
        "threshold": index.threshold,  # score from which on an image is judged to be of the query's class
        "threshold_choice": describe_choice(index.model.threshold_errors, of_nearest=True),
        "threshold_errors": {} if index.threshold is None else index.model.threshold_errors,
        "prior": calibration.prior if calibration else None,  # share of pairs of one class for which probabilities are
        "prior_is_of_labels": index.items.same_share is not None,  # and not of the validation classes
        "max_upload_bytes": search.limits.max_image_bytes,
        "max_upload_pixels": search.limits.max_pixels,
    }


@router.get("/labels")
def list_labels(search: Search) -> list[dict[str, str | int]]:
    """List the labels of the index with the numbers of their images; images without a label count for none."""
    return [{"label": label, "images": count} for label, count in search.count_by_label.items()]


@router.get("/items")
def list_items(
    search: Search,
    offset: Annotated[int, Query(ge=0, lt=2**63, description="number of items to leave out")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="largest number of items")] = 24,
    label: Label = None,
) -> dict[str, int | list[Item]]:
    """List items of the index in its order, and the total of all with the label."""
    total, items = search.list_items(offset, limit, label)
    return {"total": total, "items": items}


@router.get("/items/{item}")
def get_item(search: Search, item: Number) -> Item:
    """Return an item."""
    return search.get_item(item)


@router.get("/items/{item}/image", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}})
async def get_image(
    request: Request,
    search: Search,
    item: Number,
    size: Annotated[int, Query(ge=16, le=2048, description="largest height and width in pixels")] = 256,
) -> Response:
    """Return the picture of an item, scaled down."""
    content = await _compute(request, partial(search.draw_item, item, size))
    return Response(content, media_type="image/jpeg")


@router.get("/items/{item}/neighbors")
async def search_by_item(
    request: Request, search: Search, item: Number, k: Count = 10, label: Label = None
) -> Neighbors:
    """Find the images that are most similar to an item, which finds itself first."""
    neighbors = await _compute(request, partial(search.find_similar_to_item, item, k, label))
    return {"neighbors": neighbors, "space": search.index.space}


IMAGE_BODY = {
    "required": True,
    "description": "the bytes of an image file",
    "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
}


@router.post("/search", openapi_extra={"requestBody": IMAGE_BODY})
async def search_by_upload(request: Request, search: Search, k: Count = 10, label: Label = None) -> Neighbors:
    """Find the images that are most similar to the image in the body of the request."""
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise HTTPException(415, "upload: a form; send the bytes of the image file as the body of the request")
    content = await _read_body(request, search.limits.max_image_bytes)
    neighbors = await _compute(request, partial(search.find_similar, content, k, label))
    return {"neighbors": neighbors, "space": search.index.space}


async def _read_body(request: Request, most: int) -> bytes:
    """Read a request's body of ``most`` bytes or fewer."""
    content = BytesIO()  # its bytes are taken out without a copy of them
    refusal = HTTPException(413, f"upload: more than {most:,} bytes; send a smaller image")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > most):
        raise refusal
    async for part in request.stream():
        if content.tell() + len(part) > most:
            raise refusal
        content.write(part)
    return content.getvalue()


def create_app(searched: ImageSearch | ServedIndex, hosts: Sequence[str]) -> FastAPI:
    """Make the application that answers requests.

    Args:
        hosts: names by which browsers may call the server. Without this check, a page of another origin could lead a
            name of its own to this machine (DNS rebinding), and read the answers.
    """
    words = "Search the images of an index by an image: POST the bytes of an image file to /api/search."
    # the pages of the documentation would load scripts from the internet
    app = FastAPI(title="dml serve", description=words, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.searched, app.state.limiter = searched, CapacityLimiter(THREADS)
    app.include_router(router)
    app.mount("/", StaticFiles(packages=[("dml.inference.serving", "assets")], html=True))
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*hosts], www_redirect=False)
    app.add_middleware(RequestGuard)
    for kind in (HTTPException, RequestValidationError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _answer_error)
    return app


async def _answer_error(_request: Request, error: Exception) -> JSONResponse:
    """Answer a request that is wrong, or met a bug, whose trace the server logs, with one line of JSON."""
    status, line = 500, "the server failed; its log says why"
    if isinstance(error, HTTPException):
        status, line = error.status_code, error.detail
    elif isinstance(error, RequestValidationError):
        fault: dict[str, Any] = error.errors()[0]
        status, line = 422, f"{'.'.join(map(str, fault['loc'][1:]))}: {fault['msg']}"
    elif isinstance(error, ClientDisconnect):
        status, line = 400, "the connection was closed before the request was complete"
    return JSONResponse({"error": line}, status_code=status, headers=getattr(error, "headers", None))


def open_listener(host: str, port: int) -> socket.socket:
    """Open the socket on which a server listens: "0.0.0.0" is all IPv4 addresses, "::" those of IPv6, 0 a free port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address, family=family)  # of IPv6 it has four parts
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name"
        line = f"--host {printable(host)} --port {port}: {reason}"
        raise InputError(f"{line}; 127.0.0.1 is this machine, and --port 0 takes any that is free") from error
    # Connections inherit it. asyncio sets it only where the protocol is named, which create_server doesn't, and an
    # answer of two packets would wait 40 ms for the client's acknowledgement of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


@contextmanager
def running_server(app: ASGIApp, listener: socket.socket) -> Iterator[Future[None]]:
    """Serve an application in the ``with`` body, in a thread of its own: in the main one it would take the signals.

    The future that it yields is done if the server ends by itself, with an error.
    """
    quiet = {"log_config": None, "log_level": "warning", "access_log": False, "server_header": False}
    plain = {"http": "h11", "loop": "asyncio", "ws": "none", "lifespan": "off", "proxy_headers": False}
    server = uvicorn.Server(uvicorn.Config(app, **quiet, **plain, **LIMITS))  # type: ignore[arg-type]
    with ThreadPoolExecutor(1, "http") as executor:
        running = executor.submit(server.run, [listener])
        try:
            yield running
        finally:
            server.should_exit = True
