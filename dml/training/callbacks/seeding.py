import random
from typing import Any

import numpy as np
import torch
from pytorch_lightning import Callback, LightningModule, Trainer


class StepSeed(Callback):
    """Seeds the random number generators before every step from (seed, step, rank), for dropout and the like.

    So a resumed run draws the same numbers as an uninterrupted one, and checkpoints need no state of a generator.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,  # noqa: ARG002
        batch_idx: int,
    ) -> None:
        """Seed the global generators of torch, NumPy and Python."""
        entropy = np.random.SeedSequence((self.seed, batch_idx, trainer.global_rank))
        step_seed = int(entropy.generate_state(1)[0])
        if pl_module.device.type == "cpu":
            torch.default_generator.manual_seed(step_seed)  # to seed generators of absent GPUs takes 1 ms
        else:
            torch.manual_seed(step_seed)
        np.random.seed(step_seed)  # noqa: NPY002
        random.seed(step_seed)
