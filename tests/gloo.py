"""Runs a function in several processes that are joined by gloo."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes


def on_processes(count: int, folder: Path, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """function(*arguments) in each of ``count`` processes -> what each of them gave, in the order of ranks.

    They are copies of this process, which has imported everything: importing torch takes longer than the tests.
    """
    start_processes(_one, (count, folder, function, arguments), nprocs=count, start_method="fork")
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(count)]


def _one(rank: int, count: int, folder: Path, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    # what Lightning takes for a launcher's word that all processes run already
    os.environ |= {"LOCAL_RANK": str(rank), "NODE_RANK": "0", "WORLD_SIZE": str(count)}
    meeting = f"file://{folder / f'meeting of {count}'}"
    dist.init_process_group("gloo", meeting, timedelta(seconds=60), rank=rank, world_size=count)
    torch.save(function(*arguments), folder / f"{rank}.pt")
    dist.destroy_process_group()
