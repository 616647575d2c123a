"""What a trained model is used with: load it, embed images, and save it for others."""

from dml.inference.image_embedder import ImageEmbedder
from dml.inference.loading import load

__all__ = ["ImageEmbedder", "load"]
