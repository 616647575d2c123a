from .base import EpochSampler as EpochSampler
from .class_balanced import ClassBalancedSampler as ClassBalancedSampler
from .hard_class import HardClassSampler as HardClassSampler
from .hierarchical import HierarchicalSampler as HierarchicalSampler
from .image_balanced import ImageBalancedSampler as ImageBalancedSampler
from .local_neighborhood import LocalNeighborhoodSampler as LocalNeighborhoodSampler
from .local_neighborhood import hard_shares as hard_shares
