"""Write miniatures of the benchmark's data sets below a folder: PYTHONPATH=tests python -m miniatures FOLDER."""

import sys
from importlib import import_module
from pathlib import Path

from dml.studies.runs import DATASET_FOLDERS

MODULES = {"cub200": "cub200", "cars196": "cars196", "sop": "sop", "inshop": "inshop", "inat_base": "inat2018_base"}


def write_trees(folder: Path) -> None:
    for dataset, module in MODULES.items():
        root = folder / DATASET_FOLDERS[dataset]
        root.mkdir(parents=True, exist_ok=True)
        import_module(f"trees.{module}").TREE.build(root)


if __name__ == "__main__":
    write_trees(Path(sys.argv[1]))
