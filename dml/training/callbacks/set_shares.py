"""The callback that draws data sets with a larger loss more often."""

from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer
from torch import Tensor

from dml.samplers.many import ManySetsSampler
from dml.training.callbacks.embedding_bank import get_training_data


class SetShareUpdates(Callback):
    """Gives a `ManySetsSampler` with ``shares`` "loss" the mean loss of each data set after each of its epochs.

    The losses are the same in all processes. Checkpoints hold the shares, and the sums of the losses in the epoch so
    far, so that a resumed run goes on with them. With another sampler this callback does nothing.
    """

    def __init__(self) -> None:
        self.state: dict[str, Tensor] = {}

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Give the sampler of a resumed run its shares, and keep the loader from going beyond the end of an epoch."""
        sampler = find_sampler(trainer)
        if sampler is None:
            return
        get_training_data(trainer).stream.pause_every = len(sampler)
        if self.state:
            sampler.weights, sampler.offsets = (self.state[name].numpy() for name in ("weights", "offsets"))
        else:
            self._start_epoch(sampler)

    def on_train_batch_end(
        self, trainer: Trainer, _module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the loss to those of the batch's data set; at the end of an epoch, change the shares."""
        sampler = find_sampler(trainer)
        if sampler is None:
            return
        domain = get_training_data(trainer).train_table.domain[int(batch[2][0])]
        number = sampler.domains.index(str(domain))
        self.state["sums"][number] += outputs["loss"].detach().double().cpu()
        self.state["counts"][number] += 1
        if (batch_idx + 1) % len(sampler) == 0:
            sampler.update_shares((self.state["sums"] / self.state["counts"]).numpy(), (batch_idx + 1) // len(sampler))
            self._start_epoch(sampler)

    def _start_epoch(self, sampler: ManySetsSampler) -> None:
        nothing = torch.zeros(len(sampler.domains), dtype=torch.float64)
        self.state = {"weights": torch.from_numpy(sampler.weights), "offsets": torch.from_numpy(sampler.offsets)}
        self.state |= {"sums": nothing, "counts": nothing.clone()}

    def state_dict(self) -> dict[str, Any]:
        """Return the shares and the losses of the epoch so far for the checkpoint."""
        return dict(self.state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.state = dict(state_dict)


def find_sampler(trainer: Trainer) -> ManySetsSampler | None:
    """Return the sampler of a training if its shares follow the losses."""
    sampler = get_training_data(trainer).sampler
    return sampler if isinstance(sampler, ManySetsSampler) and sampler.adapts else None
