"""The page and the JSON API of an index, as an application of FastAPI."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib import resources
from io import BytesIO
from typing import Annotated, Any, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dml.evaluation.threshold import describe_choice
from dml.inference.certificates import describe
from dml.inference.serving.image_search import ImageSearch, Item, Neighbor, RefusedRequestError, ServedIndex

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

OTHER_SITES = ("cross-site", "same-site")
"""The values of ``Sec-Fetch-Site`` with which browsers mark the requests of other pages.

Where the server has a name of its own, and no TLS, they send none.
"""


class RequestGuard:
    """A layer around an application that adds `HEADERS`, and refuses API requests of other web pages.

    A page on the internet can make its visitor's browser send requests to the visitor's own machine. The browser
    wouldn't show that page the answers, but the network would compute them.

    A request that states the length of its body in two ways is refused, and its connection closed: a proxy in between
    may read the other one, and take the end of the body for the next request.

    A request that takes longer than the server waits for at its end is told so: that is no error of the application.
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

        if scope["type"] == "http" and (refusal := _refuse(scope["path"], Headers(scope=scope))):
            await refusal(scope, receive, send_with_headers)
            return
        try:
            await self.app(scope, receive, send_with_headers)
        except asyncio.CancelledError:
            if has_started:
                raise
            refusal = JSONResponse({"error": "the server was stopped meanwhile"}, status_code=503)
            await refusal(scope, receive, send_with_headers)


def _refuse(path: str, headers: Headers) -> JSONResponse | None:
    if "content-length" in headers and "transfer-encoding" in headers:
        line = "a request with both Content-Length and Transfer-Encoding; send one of them"
        return JSONResponse({"error": line}, status_code=400, headers={"Connection": "close"})
    if path.startswith("/api/") and _is_of_another_page(headers):
        return JSONResponse({"error": "requests of other web pages are refused"}, status_code=403)
    return None


def _is_of_another_page(headers: Headers) -> bool:
    """Return whether a browser marked a request as that of another page; programs mark none."""
    if site := headers.get("sec-fetch-site"):
        return site in OTHER_SITES
    page = headers.get("origin") or headers.get("referer")  # an address such as http://nas:8000/, or null
    return page is not None and page.lower().split("/")[2:3] != [headers.get("host", "").lower()]


THREADS = 2
"""The number of requests that are worked on at a time; each may hold a decoded image in memory."""
LARGEST_UPLOADS = 16
"""The number of uploads of the largest size that fit into the memory for all uploads together."""
FILES = {"page.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
"""The files of the page and their types."""

DESCRIPTION = """\
Search the images of an index by an image: POST the bytes of an image file to /api/search.
"""

Result = TypeVar("Result")


class Problem(BaseModel):
    """An answer with a status of 400 or more."""

    error: str = Field(description="what is wrong, in one line")


class IndexFacts(BaseModel):
    """What the index is made of."""

    images: int
    labels: int = Field(description="number of different labels")
    model: str = Field(description="name of the network")
    fingerprint: str = Field(description="identifier of the model that embedded the images")
    dimension: int = Field(description="size of the vectors")
    certificate: str = Field(description="share of the true nearest that is found; empty if it wasn't measured")
    kind: str = Field(description='kind of the index; "Flat" is exact')
    threshold: float | None = Field(description="score from which on an image is judged to be of the query's class")
    threshold_choice: str = Field(description="which threshold was chosen, as the end of a sentence")
    threshold_errors: dict[str, float] = Field(description="error rates of the threshold on the test classes")
    prior: float | None = Field(description="share of pairs of one class for which probabilities are")
    prior_is_of_labels: bool = Field(description="whether it is that of the labels, and not of the validation classes")
    max_upload_bytes: int
    max_upload_pixels: int


class LabelCount(BaseModel):
    """A label and the number of its images."""

    label: str
    images: int


class ItemPage(BaseModel):
    """Some items of the index, in its order."""

    total: int = Field(description="number of all items with the label")
    items: list[Item]


class Neighbors(BaseModel):
    """The images that are most similar to the query, best first."""

    neighbors: list[Neighbor]
    space: str = Field(description="fingerprint of the model whose vectors were compared, as that of the index")


def _find_search(request: Request) -> ImageSearch:
    """Return the search that answers the whole request, so that an answer is of one state of the index."""
    searched: ImageSearch | ServedIndex = request.app.state.searched
    return searched.find_search() if isinstance(searched, ServedIndex) else searched


def _find_limiter(request: Request) -> CapacityLimiter:
    limiter: CapacityLimiter = request.app.state.limiter
    return limiter


Search = Annotated[ImageSearch, Depends(_find_search)]
Limiter = Annotated[CapacityLimiter, Depends(_find_limiter)]
Number = Annotated[int, Path(ge=0, lt=2**63, description="number of the item")]
Count = Annotated[int, Query(ge=1, le=1000, description="largest number of neighbors")]
Label = Annotated[str | None, Query(max_length=1000, description="label that the images shall have")]

router = APIRouter(prefix="/api", responses={status: {"model": Problem} for status in (403, 404, 422)})


async def _compute(limiter: CapacityLimiter, work: Callable[[], Result]) -> Result:
    """Do work in a thread, as soon as one is free, while other requests are read and answered."""
    return await to_thread.run_sync(work, limiter=limiter)


@router.get("/index")
def describe_index(search: Search) -> IndexFacts:
    """Return the size of the index, the model that embedded its images, and the limits of requests."""
    index = search.index
    return IndexFacts(
        images=len(index),
        labels=len(search.count_by_label),
        model=index.model.settings.name,
        fingerprint=index.space,
        dimension=index.vectors.dimension if index.adapter else index.model.dimension,
        kind=index.vectors.factory,
        certificate=describe(index.certificate, index.state) if index.certificate else "",
        threshold=index.threshold,
        threshold_choice=describe_choice(index.model.threshold_errors, of_nearest=True),
        threshold_errors={} if index.threshold is None else index.model.threshold_errors,
        prior=calibration.prior if (calibration := index.calibration) else None,
        prior_is_of_labels=index.items.same_share is not None,
        max_upload_bytes=search.limits.max_image_bytes,
        max_upload_pixels=search.limits.max_pixels,
    )


@router.get("/labels")
def list_labels(search: Search) -> list[LabelCount]:
    """List the labels of the index; images without a label count for none."""
    return [LabelCount(label=label, images=count) for label, count in search.count_by_label.items()]


@router.get("/items")
def list_items(
    search: Search,
    offset: Annotated[int, Query(ge=0, lt=2**63, description="number of items to leave out")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="largest number of items")] = 24,
    label: Label = None,
) -> ItemPage:
    """List items of the index."""
    total, items = search.list_items(offset, limit, label)
    return ItemPage(total=total, items=items)


@router.get("/items/{item}")
def get_item(search: Search, item: Number) -> Item:
    """Return an item."""
    return search.get_item(item)


@router.get(
    "/items/{item}/image",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}}, 410: {"model": Problem}},
)
async def get_image(
    search: Search,
    limiter: Limiter,
    item: Number,
    size: Annotated[int, Query(ge=16, le=2048, description="largest height and width in pixels")] = 256,
) -> Response:
    """Return the picture of an item, scaled down."""
    content = await _compute(limiter, partial(search.draw_item, item, size))
    return Response(content, media_type="image/jpeg")


@router.get("/items/{item}/neighbors", responses={410: {"model": Problem}})
async def search_by_item(
    search: Search, limiter: Limiter, item: Number, k: Count = 10, label: Label = None
) -> Neighbors:
    """Find the images that are most similar to an item, which finds itself first."""
    neighbors = await _compute(limiter, partial(search.find_similar_to_item, item, k, label))
    return Neighbors(neighbors=neighbors, space=search.index.space)


@router.post(
    "/search",
    responses={status: {"model": Problem} for status in (400, 413, 415, 503)},
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "the bytes of an image file",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)
async def search_by_upload(
    request: Request, search: Search, limiter: Limiter, k: Count = 10, label: Label = None
) -> Neighbors:
    """Find the images that are most similar to the image in the body of the request."""
    if request.headers.get("content-type", "").startswith("multipart/"):
        raise RefusedRequestError(415, "upload: a form; send the bytes of the image file as the body of the request")
    content = BytesIO()  # its bytes are taken out without a copy of them
    try:
        await _read_body(request, content, search.limits.max_image_bytes)
        neighbors = await _compute(limiter, partial(search.find_similar, content.getvalue(), k, label))
    finally:
        request.app.state.upload_bytes -= content.tell()
    return Neighbors(neighbors=neighbors, space=search.index.space)


async def _read_body(request: Request, content: BytesIO, most: int) -> None:
    """Append a request's body of ``most`` bytes or fewer to ``content``, and count it among all uploads under way."""
    state = request.app.state
    refusal = RefusedRequestError(413, f"upload: more than {most:,} bytes; send a smaller image")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > most):
        raise refusal
    async for part in request.stream():
        state.upload_bytes += content.write(part)
        if content.tell() > most:
            raise refusal
        if state.upload_bytes > LARGEST_UPLOADS * most:
            raise RefusedRequestError(503, "upload: others fill the server's memory; send it again in some seconds")


def create_app(searched: ImageSearch | ServedIndex, hosts: Sequence[str]) -> FastAPI:
    """Make the application that answers requests.

    Args:
        hosts: names by which browsers may call the server. Without this check, a page of another origin could lead a
            name of its own to this machine (DNS rebinding), and read the answers.
    """
    app = FastAPI(
        title="dml serve",
        description=DESCRIPTION,
        docs_url=None,  # these pages load scripts from the internet
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.searched, app.state.limiter, app.state.upload_bytes = searched, CapacityLimiter(THREADS), 0
    app.include_router(router)
    for name, kind in FILES.items():
        path = "/" if kind == "text/html" else f"/{name}"
        app.add_api_route(path, _make_file_route(name, kind), include_in_schema=False)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*hosts], www_redirect=False)
    app.add_middleware(RequestGuard)
    app.add_exception_handler(RefusedRequestError, _answer_refusal)
    app.add_exception_handler(HTTPException, _answer_refusal)
    app.add_exception_handler(RequestValidationError, _answer_refusal)
    app.add_exception_handler(ClientDisconnect, _answer_refusal)
    app.add_exception_handler(Exception, _answer_bug)
    return app


def _make_file_route(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    text = (resources.files("dml.inference.serving") / "assets" / name).read_text(encoding="utf-8")

    async def send_file() -> Response:
        return Response(text, media_type=kind)

    return send_file


async def _answer_refusal(_request: Request, error: Exception) -> JSONResponse:
    """Answer a request that is wrong with one line of JSON."""
    status, line, headers = 400, "the connection was closed before the request was complete", None
    if isinstance(error, RefusedRequestError):
        status, line = error.status, str(error)
    elif isinstance(error, HTTPException):
        status, line, headers = error.status_code, error.detail, error.headers
    elif isinstance(error, RequestValidationError):
        fault: dict[str, Any] = error.errors()[0]
        status, line = 422, f"{'.'.join(map(str, fault['loc'][1:]))}: {fault['msg']}"
    return JSONResponse({"error": line}, status_code=status, headers=headers)


async def _answer_bug(_request: Request, _error: Exception) -> JSONResponse:
    """Answer a request that met a bug; the server logs the trace."""
    return JSONResponse({"error": "the server failed; its log says why"}, status_code=500)
