"""Print the time to read and check the table of the largest data set, and the memory that this adds.

python scripts/bench_tables.py    # half a minute on two cores

The script makes up lists and a ``train2018.json`` of the size of iNaturalist-2018 (461,939 images, 8,142 species),
without images. Each row is measured in a new process. MB are what reading adds to the memory of the process: the peak,
and at the end.
"""

from dml.runtime.signals import handle_signals

if __name__ == "__main__":
    handle_signals()  # before imports that take seconds

import json
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np
from process_memory import AddedMemory

from dml.data.readers.inat2018 import RANKS, read
from dml.data.table import load

IMAGES = {"train": 325846, "test": 136093}
SPECIES = {"train": 5690, "test": 2452}
TAXA = {"kingdom": 6, "phylum": 25, "class": 57, "order": 272, "family": 1118, "genus": 4401}
SUPER_CATEGORIES = 14
LIMITS = "limits: 10 s, 400 MB"


def write_files(root: Path) -> None:
    """Write the lists and the json file; the taxa of a species are nested, its super-category is arbitrary."""
    total = sum(SPECIES.values())
    order = np.random.default_rng(0).permutation(total)
    (root / "Inat_dataset_splits").mkdir()
    records = []
    for split, species in (("train", order[: SPECIES["train"]]), ("test", order[SPECIES["train"] :])):
        paths = [
            f"train_val2018/{'Actinopterygii'[: 5 + number % SUPER_CATEGORIES]}/{number}/{i:032x}.jpg"
            for i, number in enumerate(np.resize(species, IMAGES[split]).tolist())
        ]
        (root / "Inat_dataset_splits" / f"Inaturalist_{split}_set1.txt").write_text("\n".join(paths) + "\n")
        records += [
            {"id": i, "width": 800, "height": 600, "file_name": path, "license": 3, "rights_holder": "Anyone At All"}
            for i, path in enumerate(paths)
        ]
    categories = [
        {"id": i, "name": f"Genus species {i}"}
        | {rank: f"{rank.title()} {i * number // total}" for rank, number in TAXA.items()}
        for i in range(total)
    ]
    annotations = [{"id": i, "image_id": i, "category_id": i % total} for i in range(len(records))]
    contents = {"images": records, "annotations": annotations, "categories": categories}
    (root / "train2018.json").write_text(json.dumps(contents))


def measure(root: Path, variant: str, checks: bool) -> None:
    """Measure one reading and print its row."""
    reader = partial(read, variant=variant)
    with AddedMemory() as added:
        started = perf_counter()
        table = load(reader, str(root), name="inat") if checks else reader(root)
        seconds = perf_counter() - started
    print(
        f"{variant + (', with the checks of load' if checks else ', read alone'):<32}{len(table):>8}{seconds:>7.1f}"
        f"{added.peak:>9.0f}{added.left:>8.0f}",
        flush=True,
    )


def main() -> None:
    """Print the table; with arguments, measure and print one row of it."""
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "checks")
        return
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        print(f"{LIMITS}; {RANKS[0]} to {RANKS[-1]}")
        print(f"{'iNaturalist-2018':<32}{'images':>8}{'s':>7}{'MB most':>9}{'MB left':>8}")
        for variant in ("base", "full"):
            for checks in ("alone", "checks"):
                subprocess.run([sys.executable, __file__, folder, variant, checks], check=True)  # noqa: S603


if __name__ == "__main__":
    main()
