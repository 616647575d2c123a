from trees.inat2018 import LISTS_ALONE, build
from trees.tree import Tree

TREE = Tree(
    dataset="inat_base",
    build=build,
    counts={
        "train": {"images": 9, "species": 5, "super_category": 3},
        "test": {"images": 6, "species": 4, "super_category": 3},
    },
    faults=LISTS_ALONE,
)
