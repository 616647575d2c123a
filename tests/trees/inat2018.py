import json
from pathlib import Path

from trees.tree import Fault, Tree, drop_last_line, edit, overwrite, remove, together, write_images, write_lines

LISTS = {split: f"Inat_dataset_splits/Inaturalist_{split}_set1.txt" for split in ("train", "test")}
RANKS = ("kingdom", "phylum", "class", "order", "family", "genus")
BIRDS = ("Animalia", "Chordata", "Aves", "Passeriformes")
BUTTERFLIES = ("Animalia", "Arthropoda", "Insecta", "Lepidoptera")
PLANTS = ("Plantae", "Tracheophyta", "Magnoliopsida")
# id: (name, super-category, kingdom to genus, split, images); Prunella and Pieris are genera of plants and of animals,
# which HAPPIER's release counts once
SPECIES = {
    0: ("Prunella vulgaris", "Plantae", (*PLANTS, "Lamiales", "Lamiaceae", "Prunella"), "train", 2),
    1: ("Prunella modularis", "Aves", (*BIRDS, "Prunellidae", "Prunella"), "train", 3),
    2: ("Prunella collaris", "Aves", (*BIRDS, "Prunellidae", "Prunella"), "test", 2),
    3: ("Salvia pratensis", "Plantae", (*PLANTS, "Lamiales", "Lamiaceae", "Salvia"), "test", 1),
    4: ("Pieris rapae", "Insecta", (*BUTTERFLIES, "Pieridae", "Pieris"), "train", 1),
    5: ("Pieris japonica", "Plantae", (*PLANTS, "Ericales", "Ericaceae", "Pieris"), "test", 2),
    6: ("Erica carnea", "Plantae", (*PLANTS, "Ericales", "Ericaceae", "Erica"), "train", 2),
    7: ("Pieris napi", "Insecta", (*BUTTERFLIES, "Pieridae", "Pieris"), "test", 1),
    8: ("Pieris brassicae", "Insecta", (*BUTTERFLIES, "Pieridae", "Pieris"), "train", 1),
}


def listed(split: str) -> list[str]:
    return [
        f"train_val2018/{category}/{number}/{number:02x}{i:030x}.jpg"
        for number, (_, category, _, of, images) in SPECIES.items()
        if of == split
        for i in range(images)
    ]


def categories() -> list[dict[str, object]]:
    return [
        {"id": number, "name": name, "supercategory": category} | dict(zip(RANKS, lineage, strict=True))
        for number, (name, category, lineage, _, _) in SPECIES.items()
    ]


def taxonomy() -> dict[str, object]:
    """The keys of the official file, which has a record of each image too."""
    images = [{"id": i, "file_name": path, "license": 3} for i, path in enumerate(listed("train"))]
    info = {"year": 2018, "description": 'all "categories": [sic] of the competition'}
    return {"info": info, "images": images, "licenses": [], "annotations": [], "categories": categories()}


def build(root: Path) -> None:
    for split, name in LISTS.items():
        write_lines(root / name, listed(split))
        write_images(root, listed(split))
    (root / "train2018.json").write_text(json.dumps(taxonomy()))
    (root / "train_val2018" / "Aves" / "1" / "._0.jpg").write_bytes(b"\x00\x05\x16\x07")


LISTS_ALONE = {
    "no_root": Fault(
        remove("."), r"no such folder; .*train_val2018/.*Inaturalist_train_set1\.txt.*\(https://.*/inat_comp/.*\)"
    ),
    "no_list": Fault(remove(LISTS["test"]), r"no Inat_dataset_splits/Inaturalist_test_set1\.txt in it"),
    "broken_line": Fault(
        edit(LISTS["train"], "^train_val2018/Plantae/0/0+.jpg$", "train_val2018/Plantae"),
        r"Inaturalist_train_set1\.txt, line 1: 'train_val2018/Plantae', expected 4 columns",
    ),
    "not_a_number": Fault(
        edit(LISTS["test"], "Insecta/7/", "Insecta/seven/"),
        r"Inaturalist_test_set1\.txt, line \d+: species 'seven', expected a whole number",
    ),
    "fewer_images": Fault(
        drop_last_line(LISTS["test"]), r"5 images in the test split, published 6, in .*Inaturalist_train_set1\.txt and "
    ),
    "label_gap": Fault(
        together(
            edit(LISTS["train"], "Insecta/8/", "Insecta/9/"),
            edit("train2018.json", '"id": 8, "name"', '"id": 9, "name"'),
        ),
        "no image has label 8 of level species, whose labels go to 9",
    ),
    "in_two_splits": Fault(
        edit(LISTS["test"], "Insecta/7/07", "Insecta/4/04"),
        r"image .*/train_val2018/Insecta/4/0{1}4\d+\.jpg is there 2 times, in the test and train split",
    ),
    "class_in_both": Fault(
        edit(LISTS["train"], "Insecta/8/08", "Insecta/7/ff"),
        r"1 class is in training and in test, such as label 7 \(",
    ),
    "missing_image": Fault(remove(listed("test")[-1]), r"image .*/Insecta/7/07\d+\.jpg: no such file"),
    "unreadable_image": Fault(overwrite(listed("train")[0]), r"image .*/Plantae/0/0+\.jpg: cannot be decoded"),
}

TAXA = {"genus": 3, "family": 4, "order": 4, "class": 3, "phylum": 3, "kingdom": 2}
TREE = Tree(
    dataset="inat_full",
    build=build,
    counts={"train": {"images": 9, "species": 5} | TAXA, "test": {"images": 6, "species": 4} | TAXA},
    faults=LISTS_ALONE
    | {"not_a_number": Fault(overwrite("train2018.json"), r"train2018\.json: no list of categories that can be read")},
)
