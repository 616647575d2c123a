"""The processes that torchrun or srun started side by side: the first one names the run's folder to the others.

Lightning passes the folder to the processes that it starts itself. Those of a launcher would each compose their own,
with their own clock in its name.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from dml.commands.arguments import asks_for_sweep
from dml.ops.errors import InputError
from dml.run.config_folders import quote

WITHIN = timedelta(seconds=120)
KEY = "dml/folder"
ENDED = "dml/ended"
ENDED_WITHIN = timedelta(seconds=10)
"""How long the first process waits for the others before it removes a folder that nothing was written into."""
FOLLOWS = "hydra.output_subdir=null"
"""What Lightning, and `follow`, put on the command line of all processes of a job but the first."""

_store: Any = None  # it lives in the first process if the launcher keeps none, so it is held until the end
_rank, _world_size = 0, 1


def follow(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of the command line; a process that isn't the first gets the first one's folder.

    Raises:
        InputError: if the first process names none, or for a sweep.
    """
    global _store, _rank, _world_size
    environment = _environment(arguments)
    if environment is None or environment.world_size() == 1:
        return list(arguments)
    if asks_for_sweep(arguments):
        raise InputError("--multirun: torchrun and srun start the processes of one run")
    from torch.distributed import DistError
    from torch.distributed.rendezvous import rendezvous

    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = environment.main_address, str(environment.main_port)
    rank = _rank = environment.global_rank()
    _world_size = environment.world_size()
    _store, _, _ = next(rendezvous("env://", rank, _world_size))
    if rank == 0:
        return list(arguments)
    try:
        _store.wait([KEY], WITHIN)
    except DistError as error:
        raise InputError(f"process {rank}: process 0 named no run folder within {WITHIN.seconds} s") from error
    folder = _store.get(KEY).decode()
    # as Lightning does: the folder is the first process's, which writes .hydra/; the log is its own
    return [*arguments, f"hydra.run.dir={quote(folder)}", FOLLOWS, f"hydra.job.name=process_{rank}"]


def is_follower(hydra_overrides: Sequence[str]) -> bool:
    """Return whether this process is not the first of its job."""
    return FOLLOWS in hydra_overrides


def announce_folder(folder: Path) -> None:
    """Tell the folder of the run to the other processes, if there are any."""
    if _store is not None:
        _store.set(KEY, str(folder))


@contextmanager
def announcing_end() -> Iterator[None]:
    """Tell the first process when the body of the ``with`` statement has ended, if this is another one."""
    try:
        yield
    finally:
        if _store is not None and _rank:
            with suppress(RuntimeError):  # the first process has ended, and the store with it
                _store.set(f"{ENDED}/{_rank}", "")


def wait_for_ends() -> None:
    """Wait until the other processes have ended, for `ENDED_WITHIN` at most; only the first process has to."""
    if _store is not None and not _rank and _world_size > 1:
        with suppress(RuntimeError):  # they go on, or were killed
            _store.wait([f"{ENDED}/{rank}" for rank in range(1, _world_size)], ENDED_WITHIN)


def _environment(arguments: Sequence[str]) -> Any:
    """Return Lightning's environment of the launcher; None if Lightning starts the processes, or there is only one.

    Under srun processes that are no job together are common, one of each of many seeds, so trainer=slurm must say it.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment

        return TorchElasticEnvironment()
    if "trainer=slurm" in arguments and "SLURM_PROCID" in os.environ:
        from dml.training.processes import slurm

        return slurm()
    return None
