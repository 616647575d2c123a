"""The callback that draws data sets with a larger loss more often."""

from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from dml.runtime.errors import InputError
from dml.samplers.many import ManySetsSampler
from dml.training.callbacks.embedding_bank import get_training_data


def make_set_share_updates(shares: Any, sampler_object: str | None = None) -> "SetShareUpdates | None":
    """Make the callback if the shares follow the losses, or if a sampler from Python may have such shares."""
    return SetShareUpdates() if shares == "loss" or sampler_object is not None else None


class SetShareUpdates(Callback):
    """Gives the losses, which all processes have, to a sampler whose shares follow them; for others it does nothing."""

    def __init__(self) -> None:
        self._sampler: ManySetsSampler | None = None
        self._state: dict[str, Any] = {}

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        """Give the sampler of a resumed run its state, and let the loader wait for the shares of the next epoch.

        Raises:
            InputError: if the resumed run had another number of data sets.
        """
        data = get_training_data(trainer)
        if isinstance(data.sampler, ManySetsSampler) and data.sampler.follows_loss:
            self._sampler, data.stream.pause_every = data.sampler, len(data.sampler)
            if self._state:
                state = self._state["state"].numpy()
                if state.shape != data.sampler.state.shape:
                    raise InputError("dataset.sets: another number of data sets than the run has trained on so far")
                data.sampler.state = state

    def on_train_batch_end(
        self, _trainer: Trainer, _module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Give the sampler the loss of the batch."""
        if self._sampler is not None:
            self._sampler.add_loss(int(batch[2][0]), outputs["loss"].item(), batch_idx + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler for the checkpoint."""
        return {} if self._sampler is None else {"state": torch.tensor(self._sampler.state)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state of the sampler until the training starts."""
        self._state = state_dict
