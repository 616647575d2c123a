"""The processes that torchrun, srun or `ranks.launch` started side by side: rank 0 names the run's folder.

They would otherwise each compose their own, with their own clock in its name.
"""

import os
from collections.abc import Sequence

from dml.commands.arguments import asks_for_sweep, find_path
from dml.run.config_folders import quote
from dml.runtime import ranks
from dml.runtime.errors import InputError


def follow(arguments: Sequence[str]) -> list[str]:
    """Join the other processes of the job -> the arguments of the command line, with the run folder of rank 0.

    Raises:
        InputError: if rank 0 names no folder, or for a sweep.
    """
    rank, world_size = _find_rank(arguments)
    if world_size == 1:
        return list(arguments)
    if asks_for_sweep(arguments):
        raise InputError("--multirun: torchrun and srun start the processes of one run")
    ranks.join(rank, world_size)
    if rank == 0:
        return list(arguments)
    typed = find_path(arguments, "hydra.run.dir")
    folder = ranks.wait_for_folder() if typed is None or "${" in str(typed) else str(typed)
    if folder is None:
        raise InputError(f"process {rank}: process 0 named no run folder within {ranks.FOLDER_WITHIN:.0f} s")
    return [*arguments, f"hydra.run.dir={quote(folder)}", f"hydra.job.name=process_{rank}"]  # a log of its own


def _find_rank(arguments: Sequence[str]) -> tuple[int, int]:
    """Return this process's number and the number of processes; (0, 1) for a process alone.

    Under srun processes that are no job together are common, one of each of many seeds, so trainer=slurm must say it.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if "trainer=slurm" in arguments and "SLURM_PROCID" in os.environ:
        from dml.training.hardware import slurm

        environment = slurm()
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = environment.main_address, str(environment.main_port)
        return environment.global_rank(), environment.world_size()
    return 0, 1
