from .kmeans_clusters import kmeans as kmeans
from .rows import unit_rows as unit_rows
from .search import nearest_neighbors as nearest_neighbors
