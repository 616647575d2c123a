"""The model of the commands that embed many images."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dml.inference import ImageEmbedder


def load_for_many_images(place: str, device: str, *, trust: bool = False) -> "ImageEmbedder":
    """Open a model as `dml.inference.load` does, and keep the memory of each batch for the next one.

    Args:
        place: folder of a run or of a saved model, or a checkpoint.
        device: device that embeds.
        trust: whether the model's files may run code that dml doesn't know.

    Raises:
        InputError: if there is no such model.
    """
    from dml.inference import load  # these take seconds
    from dml.ops.freed_memory import keep_freed_memory

    model = load(place, device=device, trust=trust)
    keep_freed_memory(model.device)
    return model
