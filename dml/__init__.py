"""Deep metric learning: train, judge and use networks for image retrieval."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dml.inference import ImageEmbedder, load

__all__ = ["ImageEmbedder", "load"]


def __getattr__(name: str) -> Any:
    """Import the names of `dml.inference` when they are used: PyTorch takes seconds."""
    if name in __all__:
        from dml import inference

        return getattr(inference, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
