"""Rows about a data set's folder: links, replaced images, two preparations at a time, names and paths."""

import os
import shutil
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from PIL import Image

from faults.commands import EndedCommand, RunningCommand, run
from faults.files import find_cache_difference
from faults.fixtures import Fixtures, cache_folder, prepare_arguments, train_arguments
from faults.rows import FailedError, Fault, Try
from faults.rules import check_done, check_told, check_unchanged_or_told

SECRET = b"a file outside of the data set\n"


def _copy_fixture(attempt: Try, name: str) -> Path:
    """Copy the fixture of a name, such as "images", into the folder of the try."""
    copy = attempt.folder / name
    shutil.copytree(attempt.fixtures / name, copy, symlinks=True)
    return copy


LINKED = ("table.parquet", "verified.jsonl", "warp-32.pixels", "warp-32.parquet", "warp-32.progress", "sheet_test.png")


def _link_outside(attempt: Try) -> str:
    """Prepare a data set in which a name in ``.dml/`` is a link that leads out of the data set."""
    images, outside = _copy_fixture(attempt, "images"), attempt.folder / "outside"
    outside.mkdir()
    names = [".dml", ".dml/folder", *(f".dml/folder/{name}" for name in LINKED)]
    name = names[attempt.number % len(names)]
    is_folder = name in names[:2]
    for file in LINKED if is_folder else [""]:
        (outside / file if file else outside / "file").write_bytes(SECRET)
    before = _read_contents(outside)
    (images / name).parent.mkdir(parents=True, exist_ok=True)
    (images / name).symlink_to(outside if is_folder else outside / "file")
    ended = run("scripts/prepare.py", *prepare_arguments(images), folder=attempt.folder)
    if _read_contents(outside) != before:
        raise FailedError(f"{name}: files outside the data set are written to", ended)
    expected = cache_folder(Fixtures(attempt.fixtures).prepared)
    return check_unchanged_or_told(ended, lambda: find_cache_difference(expected, cache_folder(images)), images)


def _read_contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _replace_image(attempt: Try) -> str:
    """Replace an image by another of the same size and time; prepare has to write what it writes for a new data set."""
    images = _copy_fixture(attempt, "prepared")
    chosen = sorted(path for path in images.rglob("*.webp"))[int(attempt.rng.integers(60))]
    state = chosen.stat()
    with Image.open(chosen) as image:
        other = Image.eval(image.convert("RGB"), lambda value: 255 - value)
    chosen.write_bytes(_encode_with_size(other, state.st_size))
    os.utime(chosen, ns=(state.st_atime_ns, state.st_mtime_ns))
    if chosen.stat().st_size != state.st_size or chosen.stat().st_mtime_ns != state.st_mtime_ns:
        raise FailedError("the injector made another size or time")
    anew = attempt.folder / "anew"
    shutil.copytree(images, anew, ignore=shutil.ignore_patterns(".dml"))
    check_done(run("scripts/prepare.py", *prepare_arguments(anew), folder=attempt.folder))
    ended = run("scripts/prepare.py", *prepare_arguments(images, "verify=content"), folder=attempt.folder)
    if ended.code and chosen.name not in ended.err:
        raise FailedError("refused without naming the image", ended)
    return check_unchanged_or_told(
        ended, lambda: find_cache_difference(cache_folder(anew), cache_folder(images)), images
    )


def _encode_with_size(image: Image.Image, size: int) -> bytes:
    """Encode an image as a file of a certain size; the bytes at the end are padding that no decoder reads."""
    for quality in range(60, 0, -5):
        buffer = BytesIO()
        image.save(buffer, "WEBP", quality=quality)
        if len(buffer.getvalue()) <= size:
            return buffer.getvalue().ljust(size, b"\0")
    raise FailedError("the injector found no smaller image")


def _two_prepares(attempt: Try) -> str:
    """Start two preparations of one folder up to a third of a second apart."""
    images = _copy_fixture(attempt, "images")
    first = RunningCommand("scripts/prepare.py", prepare_arguments(images, "processes=2"), attempt.folder)
    time.sleep(attempt.rng.uniform(0, 0.35))
    second = RunningCommand("scripts/prepare.py", prepare_arguments(images, "processes=2"), attempt.folder)
    ends = [first.wait(), second.wait()]
    expected = cache_folder(Fixtures(attempt.fixtures).prepared)
    if all(ended.code for ended in ends):
        raise FailedError("both refused", ends[1])
    ways = [
        check_unchanged_or_told(ended, lambda: find_cache_difference(expected, cache_folder(images)), images)
        for ended in ends
    ]
    return "one made it, one was told" if "told" in ways else "both made it"


BAD_NAMES = (b"\xff.webp", b"caf\xe9.webp", b"\xed\xa0\x80.webp", b"\xe9/picture.webp")
COMMANDS = ("train.py", "scripts/prepare.py")


def _use_bad_name(attempt: Try) -> str:
    """Train on, or prepare, a data set with the name of a file or a folder that isn't UTF-8."""
    images = _copy_fixture(attempt, "images")
    name = BAD_NAMES[attempt.number % len(BAD_NAMES)]
    script = COMMANDS[attempt.number // len(BAD_NAMES) % 2]
    chosen = sorted(path for path in images.iterdir() if path.is_dir())[int(attempt.rng.integers(10))]
    if b"/" in name:
        os.rename(chosen, os.fsencode(images) + b"/" + name.split(b"/")[0])
    else:
        os.rename(min(chosen.iterdir()), os.fsencode(chosen) + b"/" + name)
    folder = attempt.folder / "run"
    arguments = train_arguments(images, folder) if script == "train.py" else prepare_arguments(images)
    ended = run(script, *arguments, folder=attempt.folder)
    if ended.code == 0:
        check_done(ended, images, folder)
        if script == "train.py" and not (folder / "report.html").exists():
            raise FailedError("no report", ended)
        return "shown escaped"
    if "step " in ended.out:
        raise FailedError("refused after the training", ended)
    return check_told(ended, (2,), images)


def _use_tagged_name(attempt: Try) -> str:
    """Run a command on a name with ``[/red]`` in it, which the command has to show as it is."""
    commands: list[Callable[[Try], tuple[EndedCommand, str]]] = [
        *(
            _train_on_tagged_root,
            _train_into_tagged_run,
            _prepare_tagged_class,
            _prepare_tagged_root,
            _sweep_in_tagged_folder,
            _evaluate_tagged_run,
            _train_with_tagged_name,
        )
    ]
    ended, shown = commands[attempt.number % len(commands)](attempt)
    if shown not in (ended.out + ended.err).replace("\n", "").replace(" ", ""):
        raise FailedError(f"{shown} isn't shown as it is", ended)
    if ended.code == 2:
        return check_told(ended)
    check_done(ended)
    return "shown"


TAG = "a[/red]b[bold]c"


def _train_on_tagged_root(attempt: Try) -> tuple[EndedCommand, str]:
    """Train on a data set with the tag in its path, of which one image can't be decoded."""
    images = attempt.folder / TAG
    shutil.copytree(attempt.fixtures / "images", images)
    next(images.rglob("*.webp")).write_bytes(b"no image")
    return run("train.py", *train_arguments(images, attempt.folder / "run"), folder=attempt.folder), TAG


def _train_into_tagged_run(attempt: Try) -> tuple[EndedCommand, str]:
    folder = attempt.folder / TAG
    return run("train.py", *train_arguments(attempt.fixtures / "images", folder), folder=attempt.folder), TAG


def _prepare_tagged_class(attempt: Try) -> tuple[EndedCommand, str]:
    """Prepare a data set with a tag in the name of a class, of which one image can't be decoded."""
    images = _copy_fixture(attempt, "images")
    chosen = min(path for path in images.iterdir() if path.is_dir())
    tagged = chosen.rename(images / "a[red]b")
    min(tagged.iterdir()).write_bytes(b"no image")
    return run("scripts/prepare.py", *prepare_arguments(images), folder=attempt.folder), "a[red]b"


def _prepare_tagged_root(attempt: Try) -> tuple[EndedCommand, str]:
    images = attempt.folder / TAG
    shutil.copytree(attempt.fixtures / "images", images)
    return run("scripts/prepare.py", *prepare_arguments(images), folder=attempt.folder), TAG


def _sweep_in_tagged_folder(attempt: Try) -> tuple[EndedCommand, str]:
    folder = attempt.folder / TAG
    arguments = ["-m", *train_arguments(attempt.fixtures / "images", None, f"hydra.sweep.dir={folder}", "seed=0")]
    run("train.py", *arguments, folder=attempt.folder)
    return run("train.py", *arguments, folder=attempt.folder), TAG  # the second one prints that it skips a finished run


def _evaluate_tagged_run(attempt: Try) -> tuple[EndedCommand, str]:
    folder = attempt.folder / TAG
    shutil.copytree(attempt.fixtures / "run", folder)
    arguments = [f"checkpoint={folder / 'checkpoints' / 'best.ckpt'}", f"hydra.run.dir={folder / 'evaluation'}"]
    return run("evaluate.py", *arguments, folder=attempt.folder), TAG


def _train_with_tagged_name(attempt: Try) -> tuple[EndedCommand, str]:
    arguments = train_arguments(attempt.fixtures / "images", attempt.folder / "run", "dataset.name='a[/red]b'")
    return run("train.py", *arguments, folder=attempt.folder), "a[/red]b"


FAULTS = [
    Fault(
        "links",
        "a link in a data set's .dml/, or instead of .dml/, that leads out of the data set",
        16,
        "prepare writes nothing outside the data set, and ends well or with one line and exit code 2",
        "prepare refuses links, and creates every file anew.",
        _link_outside,
    ),
    Fault(
        "replaced",
        "an image replaced by another of the same size and time",
        6,
        "prepare with verify=content writes what a first preparation of the new images writes",
        "the inode and the time of change tell; verify=content compares the contents of all.",
        _replace_image,
    ),
    Fault(
        "two-prepares",
        "two preparations of one folder at a time",
        24,
        "each writes the right bytes or ends with one line and exit code 2; at least one writes them",
        "One takes the lock and works; the other ends with one line.",
        _two_prepares,
    ),
    Fault(
        "names",
        "names of images and of their folders that aren't UTF-8",
        16,
        "one line and exit code 2 before any training, or a run with its report",
        "The reader refuses such names before the training.",
        _use_bad_name,
    ),
    Fault(
        "markup",
        "[/red] in the path of a data set, a run, a sweep, a class, or in a data set's name",
        16,
        "the command does its work, or ends with one line; it shows the path as it is",
        "The output escapes all paths and names.",
        _use_tagged_name,
    ),
]
