"""The choice of the step at which all processes of a job stop, without communication in each step."""

from collections.abc import Callable, Mapping
from threading import Condition
from typing import Any

from dml.ops.process import process_end, signals

NOT_TRAINING = -1
"""The value that a process sends in place of a step while it isn't training."""


class StepAgreement:
    """Chooses, together with the other processes, the step after which all of them stop.

    Four kinds of messages are sent:

    1. ``["request", signum]``: a process that got a signal sends it to the first process.
    2. ``["signal", signum]``: the first process sends it to all others.
    3. ``["wait", step]``: each process answers with the next step that it will finish. If it finishes that step before
       it gets the last message, it waits.
    4. ``["stop", step]``: the first process sends the largest of these steps, after which all of them stop.

    Threads that receive messages send the answers. So a main thread waits only if it finishes its step while the
    messages are on their way, and without a signal a step costs the reading of one variable.

    Args:
        rank: number of this process; 0 is the first.
        world_size: number of processes.
        send: function that sends a message, from the first process to all others, from any other to the first.
        start_time_limit: function that the first process calls when it learns of a signal; it ends the job if the
            processes take too long.
    """

    def __init__(
        self, rank: int, world_size: int, send: Callable[..., bool], start_time_limit: Callable[[], None]
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._send, self._start_time_limit = send, start_time_limit
        self._changed = Condition()
        self._step = NOT_TRAINING
        self._wait_step: int | None = None
        self._stop_step: int | None = None
        self._wait_steps: dict[int, int] = {}

    @property
    def is_decided(self) -> bool:
        """Whether the step has been chosen."""
        return self._stop_step is not None

    def begin(self, step: int) -> None:
        """Take part with steps from now on.

        Args:
            step: number of optimizer steps that this process has finished.
        """
        with self._changed:
            self._step = step

    def end(self) -> None:
        """Take part as a process that isn't training from now on."""
        with self._changed:
            self._step = NOT_TRAINING

    def check(self, step: int) -> bool:
        """Return whether this process stops now; wait for the choice if it may fall on this step.

        Args:
            step: number of optimizer steps that this process has finished.
        """
        with self._changed:
            self._step = step
            if self._wait_step is None:
                return False
            while self._stop_step is None and step >= self._wait_step:
                self._changed.wait()
            return self._stop_step is not None and step >= self._stop_step

    def request(self, signum: int) -> None:
        """Ask all processes to stop, after this one got a signal."""
        if self.rank:
            self._send("request", signum)
        else:
            self._begin_choice(signum)

    def receive(self, peer: int, kind: str, values: list[Any]) -> None:
        """Act on a message.

        Args:
            peer: rank of the process that sent the message.
            kind: first part of the message, such as "request".
            values: parts of the message after its kind: a signal number or a step.
        """
        (value,) = values
        if kind == "request":
            self._begin_choice(value)
        elif kind == "signal":
            signals.state.receive_from_peer(value)
            self._send("wait", self._set_wait_step())
        elif kind == "wait":
            self._collect({peer: value})
        elif kind == "stop":
            self._decide(value)

    def _begin_choice(self, signum: int) -> None:
        """Ask the other processes for their steps; only the first request has an effect."""
        with self._changed:  # Requests of several processes may come at the same time, each in another thread.
            if self._wait_step is not None:
                return
            wait_step = self._set_wait_step()
        self._start_time_limit()
        signals.state.receive_from_peer(signum)
        self._send("signal", signum)
        self._collect({0: wait_step})

    def _set_wait_step(self) -> int:
        """Return the step after which this process waits for the choice: the next one that it will finish."""
        with self._changed:
            self._wait_step = NOT_TRAINING if self._step == NOT_TRAINING else self._step + 1
            return self._wait_step

    def _collect(self, wait_steps: Mapping[int, int]) -> None:
        """Add steps by rank in the first process, and choose the largest once those of all processes have come."""
        with self._changed:
            self._wait_steps |= wait_steps
            if len(self._wait_steps) < self.world_size:
                return
            steps = set(self._wait_steps.values())
        # A process that isn't training takes part in no step, so the others would wait for it without end.
        if NOT_TRAINING in steps:
            process_end.end_at_once()
        self._send("stop", max(steps))
        self._decide(max(steps))

    def _decide(self, step: int) -> None:
        with self._changed:
            self._stop_step = step
            self._changed.notify_all()
