from .image_embedder import ImageEmbedder as ImageEmbedder
from .image_index import Index as Index
from .loading import load as load
