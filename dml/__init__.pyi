from .inference.image_embedder import ImageEmbedder as ImageEmbedder
from .inference.image_index import Index as Index
from .inference.loading import load as load
