"""Deadlines for the connections of the HTTP server, so that clients that send or read nothing don't keep them."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
"""Seconds in which a request has to arrive as a whole, and in which a client has to take what is sent to it."""


class DeadlineProtocol(H11Protocol):
    """HTTP as uvicorn speaks it, with a deadline while the server waits for a client.

    uvicorn alone closes connections that are idle after an answer, and waits for all else as long as a client likes:
    for the first byte, for the rest of a request, and for the client to read.
    """

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """Wait on for the same request, or no longer if it is complete."""
        super().data_received(data)
        self._set_deadline()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request, and for the client to take the answer."""
        self._stop_waiting()
        super().on_response_complete()
        self._set_deadline()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read: what was sent fills the buffers."""
        super().pause_writing()
        self._start_waiting()

    def resume_writing(self) -> None:
        """Wait no longer for the client to read."""
        super().resume_writing()
        self._stop_waiting()
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _set_deadline(self) -> None:
        """Wait for the client, unless the server is at work on a complete request."""
        cycle: Any = self.cycle
        if cycle is not None and not cycle.more_body and not cycle.response_complete:
            self._stop_waiting()
        else:
            self._start_waiting()

    def _start_waiting(self) -> None:
        if self.deadline is None:
            self.deadline = self.loop.call_later(REQUEST_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
        self.deadline = None
