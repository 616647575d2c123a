"""Runs a function in several processes that are joined by gloo."""

import os
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

PRELOADED = ["dml.run.jobs", "pytorch_metric_learning.losses"]


def on_processes(
    count: int, folder: Path, function: Callable[..., Any], *arguments: Any, method: str = "forkserver"
) -> list[Any]:
    """function(*arguments) in each of ``count`` processes -> what each of them gave, in the order of ranks.

    A server that has imported everything once forks them: importing torch takes longer than the tests. The method
    "fork" makes them copies of this process, for a function that needs what only this process has imported.
    """
    get_context("forkserver").set_forkserver_preload(PRELOADED)
    start_processes(_one, (count, folder, function, arguments), nprocs=count, start_method=method)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]


def _one(rank: int, count: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    # what Lightning takes for a launcher's word that all processes run already
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(count)}
    meeting = f"file://{folder / f'meeting of {count}'}"
    dist.init_process_group("gloo", meeting, timedelta(seconds=60), rank=rank, world_size=count)
    torch.save(function(*arguments), folder / f"{rank}.pt")
    dist.destroy_process_group()
