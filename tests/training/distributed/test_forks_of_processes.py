import os
import sys
from collections.abc import Iterator

import pytest

from dml.training.distributed import forks


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """What is called around a fork."""
    registered: dict[str, object] = {}
    monkeypatch.setattr(os, "register_at_fork", registered.update)
    forks.pause_before_forks.cache_clear()
    yield registered
    forks.pause_before_forks.cache_clear()


def test_an_old_python_pauses_before_each_fork(monkeypatch: pytest.MonkeyPatch, hooks: dict[str, object]) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 11, 7))
    slept: list[float] = []
    monkeypatch.setattr(forks, "sleep", slept.append)
    forks.pause_before_forks()
    before = hooks.pop("before")
    assert callable(before)
    before()
    assert slept == [forks.PAUSE]
    forks.pause_before_forks()
    assert not hooks  # one pause is enough


def test_a_newer_python_takes_care_itself(monkeypatch: pytest.MonkeyPatch, hooks: dict[str, object]) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 0))
    forks.pause_before_forks()
    assert not hooks
