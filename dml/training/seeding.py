import random
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback, LightningModule, Trainer


class StepSeed(Callback):
    """Seeds every step's random numbers, dropout included, by (seed, step, rank).

    A resumed run thus draws what the uninterrupted one drew, and a checkpoint needs no generator's state.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,
    ) -> None:
        """Seeds torch, and NumPy and Python for libraries that draw from their global generators."""
        entropy = np.random.SeedSequence((self.seed, batch_idx, trainer.global_rank))
        step_seed = int(entropy.generate_state(1)[0])
        torch.manual_seed(step_seed)
        np.random.seed(step_seed)  # noqa: NPY002
        random.seed(step_seed)
