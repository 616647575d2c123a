"""What a command does before Hydra composes: it silences libraries, and joins the other processes of its job."""

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from dml.commands.arguments import asks_for_sweep, find_path
from dml.run.config_folders import quote
from dml.runtime import processes
from dml.runtime.errors import InputError

EXPECTED = (
    r".*does not have many workers.*",  # two cores are enough for small images; data.num_workers says how many
    r".*module\(s\) in eval mode at the start of training.*",  # frozen batch normalization
    r"Checkpoint directory .* exists and is not empty.*",  # a resumed run
    r".*LeafSpec.*is deprecated.*",  # Lightning's own
    r"The dirpath has changed from .*",  # a run folder that was moved
    r"torch.distributed.nn.functional.all_gather is deprecated.*",  # Lightning's own
    r"It is recommended to use .*sync_dist=True.*",  # every process has the metrics of all
    r"The AccumulateGrad node's stream does not match.*",  # Lightning's own, with trainer=ddp on GPUs
    r"GPU available but not used.*",  # trainer.accelerator=cpu
    r"TensorFloat32 tensor cores .* available but not enabled.*",  # matmul_precision=high enables them
)


def quiet() -> None:
    """Silence the warnings of libraries about choices that are deliberate here."""
    for name in ("pytorch_lightning", "lightning_fabric", "faiss"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in EXPECTED:
        warnings.filterwarnings("ignore", message=message)


def import_from_working_folder() -> None:
    """Let ``_target_`` name modules in the working folder, behind all others, however the command was started.

    ``python -m dml`` alone finds them by itself. Like there, ``python -P`` and PYTHONSAFEPATH=1 turn it off.
    """
    folder = str(Path.cwd())
    if not sys.flags.safe_path and folder not in sys.path:
        sys.path.append(folder)


def follow(arguments: Sequence[str]) -> list[str]:
    """Join the other processes of the job -> the arguments of the command line, with the run folder of rank 0.

    Processes that torchrun, srun or `processes.launch` started side by side would otherwise each compose a folder of
    their own, with their own clock in its name.
    """
    rank, world_size = _find_rank(arguments)
    if world_size == 1:
        return [*arguments]
    if asks_for_sweep(arguments):
        raise InputError("--multirun: torchrun and srun start the processes of one run")
    processes.join(rank, world_size)
    if rank == 0:
        return [*arguments]
    typed = find_path(arguments, "hydra.run.dir")
    folder = processes.wait_for_folder() if typed is None or "${" in str(typed) else str(typed)
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
