"""What stands between the web and the application: headers, refusals of other pages, and the server's end."""

import asyncio

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

    Args:
        app: application behind the guard.
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
    """Return the answer to a request that is refused; None for any other."""
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
