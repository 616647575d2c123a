import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Printed
from PIL import Image, ImageColor
from report_runs import MakeRun

from dml.commands.start import quiet
from dml.evaluation.per_query import write_queries
from dml.report.pictures import COARSER, COLORS, OTHER, SAME
from dml.run import jobs
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder
from dml.studies import figures
from dml.studies.catalog import find_studies, read_figures
from dml.studies.engine import Engine
from dml.studies.experiments import compose
from dml.studies.figures import (
    PLANE_MAP,
    PlaneEmbeddings,
    Value,
    csv_rows,
    draw_figure,
    draw_planes,
    draw_run_figures,
    embed_test_images,
    euclidean_map,
    read_values,
)
from dml.studies.results import Results
from dml.studies.runs import Plan, Run, check_data
from dml.studies.study import Study, Training
from dml.studies.study_command import run_study

pytest_plugins = ("report_runs",)
pytestmark = pytest.mark.pipeline

NAMES = ("nra_3", "happier_4", "nra_4")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Empty folders where the papers' data sets would be."""
    for name in ("cars196", "inat2018", "mnist"):
        (tmp_path / "data" / name).mkdir(parents=True)
    return tmp_path / "data"


def figure(name: str, data: Path | None = None) -> Study:
    (found,) = find_studies(name, data=data)
    return found


def find_figures() -> list[Study]:
    return [study for study in read_figures(None) if study.cells]


def trainings(figure: Study, part: str) -> dict[str, Training]:
    return {cell.row: cell.training for cell in figure.cells if cell.condition == part}


def list_runs(figure: Study, plan: Plan) -> list[Run]:
    runs = {run.folder: run for cell in figure.cells for run in plan.list_runs(cell.training)}
    return sorted(runs.values(), key=lambda run: run.seed)


def draw(figure: Study, plan: Plan, path: Path) -> list[Value]:
    return draw_figure(figure, Results(Engine(figure, plan, []).collect()), plan, path)


def entries(*names: str) -> dict[str, Mapping[str, object]]:
    return {study.name: study.content for study in read_figures(None) if study.name in names}


def point(figure: Study, part: str, name: str) -> dict[str, object]:
    config = compose(trainings(figure, part)[name])
    return {"dataset": config.dataset.name, "loss": config.loss, "steps": config.trainer.max_steps, "config": config}


def test_the_figures_are_the_papers() -> None:
    assert tuple(own.name for own in find_figures()) == NAMES
    assert [float(alpha) for alpha in trainings(figure("nra_3"), "alpha")] == [1, 2, 3, 4, 5, 6]
    alpha, weight = (trainings(figure("happier_4"), part) for part in ("alpha", "lambda"))
    assert {float(value) for value in alpha} >= {1, 3, 5}  # HAPPIER's, HAPPIER_F's
    assert {float(value) for value in weight} >= {0, 0.1, 0.5, 0.9}  # below, at and above what the text names
    assert len(figure("nra_4").cells) == 4


def test_every_point_sets_what_it_is_called() -> None:
    for own in find_figures():
        for cell in own.cells:
            loss, name = compose(cell.training).loss, cell.row
            if own.name == "nra_3":
                assert loss.alpha == float(name)
            elif own.name == "nra_4":
                assert own.content["parts"][cell.condition]["curves"] == {"mAP": PLANE_MAP}
            elif cell.condition == "alpha":
                assert loss.terms.h_ap.alpha == float(name)
                assert loss.weights == {"h_ap": 0.9, "cluster": 0.1}
            else:
                assert loss.weights == {"h_ap": pytest.approx(1 - float(name)), "cluster": float(name)}
                assert loss.terms.h_ap.alpha == 1


def test_the_small_settings_are_small(tmp_path: Path) -> None:
    plan = Plan(tmp_path, seeds=2)
    sweeps = [run for name in ("nra_3", "happier_4") for run in list_runs(figure(name), plan)]
    assert len({run.folder for run in sweeps}) == len(sweeps) == 30  # alpha = 1 and lambda = 0.1 are one training
    for run in sweeps:
        config = compose(run.training)
        assert (config.dataset.name, config.trainer.max_steps) == ("emoji", 40)
    for run in list_runs(figure("nra_4"), plan):
        config = compose(run.training)
        assert (config.dataset.name, config.trainer.max_steps, config.transform.size) == ("digits", 1000, 8)
        assert config.model.embed_dim == 2
        assert list(config.model.heads) == ["H"]
    assert [run.seed for run in list_runs(figure("nra_3"), plan)] == [0] * 6 + [1] * 6  # a whole set a seed


def test_curves_are_what_the_runs_are_tested_by() -> None:
    for own in (figure("nra_3"), figure("happier_4")):
        for part, plot in own.content["parts"].items():
            evaluation = compose(next(iter(trainings(own, part).values()))).evaluation
            for metric in plot["curves"].values():
                name, _, k = metric.rpartition("/")[2].partition("@")
                assert name in evaluation.metrics
                assert not k or int(k) in evaluation.recall_at


def test_the_papers_settings(data: Path) -> None:
    own = point(figure("nra_3", data), "alpha", "4")
    assert (own["dataset"], own["steps"]) == ("cars196", 20000)
    own = point(figure("happier_4", data), "lambda", "0.1")
    assert own["dataset"] == "inat_base"
    own = point(figure("nra_4", data), "loss", "NRA")
    assert (own["dataset"], own["steps"]) == ("mnist", 20000)  # "exactly 20 000 iterations"
    (run, *_) = list_runs(figure("nra_4", data), Plan(Path("outputs"), seeds=1))
    assert f"dataset.root='{data / 'mnist'}'" in run.train_arguments(data)
    for other in (figure("nra_3", data), figure("happier_4", data)):
        check_data(other.name, list_runs(other, Plan(Path("outputs"), seeds=1)), data)


@pytest.mark.parametrize("folder", ["mnist", "MNIST"])
def test_digits_stand_in_where_there_is_no_mnist(tmp_path: Path, folder: str) -> None:
    assert figure("nra_4", tmp_path).content["data"] == "digits"
    (tmp_path / folder).mkdir()
    assert figure("nra_4", tmp_path).content["data"] == "MNIST"


def test_the_four_losses_of_the_map_are_of_embeddings_as_they_are(data: Path) -> None:
    points = trainings(figure("nra_4", data), "loss")
    losses = {name: compose(training).loss for name, training in points.items()}
    assert losses["Softmax cross entropy"]._target_ == "dml.losses.softmax.SoftmaxLoss"
    triplet, lifted = losses["Triplet, semi-hard"], losses["Lifted structured"]
    assert triplet._target_ == "dml.losses.triplet_semihard.TripletSemihardLoss"  # which doesn't normalize
    assert (triplet.margin, lifted.loss.neg_margin) == (1, 1)  # "set to 1 for the Triplet and Lifted Structured"
    assert not lifted.normalize
    assert not lifted.loss.distance.normalize_embeddings
    assert losses["NRA"].alpha == 4
    configs = [compose(training) for training in points.values()]
    for config in configs:  # nothing else tells them apart
        config.loss = None
    assert all(config == configs[0] for config in configs)


def test_a_folder_of_data_may_have_signs_of_hydras_grammar(tmp_path: Path) -> None:
    folder = tmp_path / "a (copy), {x}=1"
    (folder / "mnist").mkdir(parents=True)
    assert compose(figure("nra_4", folder).cells[0].training).dataset.root == str(folder / "mnist")


def test_what_is_missing_is_one_line(tmp_path: Path, data: Path) -> None:
    (data / "cars196").rmdir()
    own = figure("nra_3", data)
    with pytest.raises(InputError, match=r"^--data .*: no cars196 in it, which nra_3 wants"):
        check_data("nra_3", list_runs(own, Plan(tmp_path, seeds=1)), data)
    check_data("nra_3", list_runs(figure("nra_3"), Plan(tmp_path, seeds=1)), None)  # small, it needs none


def finish(own: Study, plan: Plan, points: int) -> None:
    """Writes an invented metrics.json for the first points of each part: rising with the point, and with the seed."""
    for part, plot in own.content["parts"].items():
        for i, training in enumerate([*trainings(own, part).values()][:points]):
            for run in plan.list_runs(training):
                path = run.folder / "metrics.json"
                known = json.loads(path.read_text()) if path.exists() else {}
                run.folder.mkdir(parents=True, exist_ok=True)
                mine = dict.fromkeys(plot["curves"].values(), 0.5 + 0.05 * i + 0.01 * run.seed)
                path.write_text(json.dumps(known | mine))


@pytest.mark.parametrize("name", ["nra_3", "happier_4"])
def test_a_sweep_is_drawn_from_what_is_done(tmp_path: Path, name: str) -> None:
    own, plan = figure(name), Plan(tmp_path / "runs", seeds=2)
    nothing = draw(own, plan, tmp_path / "empty" / f"{name}.png")
    assert nothing == []
    finish(own, plan, points=2)
    found = draw(own, plan, tmp_path / "some" / f"{name}.png")
    expected = {
        (part, p, curve, seed): 0.5 + 0.05 * i + 0.01 * seed
        for part, plot in own.content["parts"].items()
        for i, p in enumerate([*trainings(own, part)][:2])
        for curve in plot["curves"]
        for seed in (0, 1)
    }
    drawn = {(one.plot, one.point, one.curve, one.seed): one.value for one in found}
    assert drawn == expected
    assert len(csv_rows(own, found)) == 1 + len(found)
    first, second = tmp_path / "some" / f"{name}.png", tmp_path / "again" / f"{name}.png"
    draw(own, plan, second)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != (tmp_path / "empty" / f"{name}.png").read_bytes()
    with Image.open(first) as image:
        assert image.size[0] > 900
        assert not image.info.keys() & {"Software", "Date", "Creation Time"}


def test_a_run_without_the_metric_is_named(tmp_path: Path) -> None:
    own, plan = figure("nra_3"), Plan(tmp_path, seeds=1)
    (run, *_) = list_runs(own, plan)
    run.folder.mkdir(parents=True)
    (run.folder / "metrics.json").write_text("{}")
    with pytest.raises(InputError, match=r"^nra_3: a run of 1 has no level0/recall@1, which the figure wants"):
        read_values(own, Results(Engine(own, plan, []).collect()))


def test_pictures_show_those_that_are_there(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    places, classes = rng.normal(size=(60, 2)), (np.arange(60) % 10).astype(str)
    for name, move in (("one.png", 0), ("two.png", 0), ("three.png", 1)):
        planes = {"NRA": PlaneEmbeddings(places + move, classes, "NRA, mAP 12.3 %"), "Triplet": None, "Lifted": None}
        draw_planes("NRA, Fig. 4", planes, tmp_path / name, legend_title="digit")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert (tmp_path / "one.png").read_bytes() != (tmp_path / "three.png").read_bytes()


@pytest.mark.parametrize("seed", range(5))
def test_the_maps_map_is_that_of_the_plane(seed: int) -> None:
    rng = np.random.default_rng(seed)
    places, labels = rng.integers(-2, 3, (40, 2)).astype(float) + seed, rng.integers(0, 4, 40)  # with ties
    precisions = []
    for i in range(40):
        others = sorted((float(np.hypot(*(places[i] - places[j]))), j) for j in range(40) if j != i)
        hits, own = 0, []
        for rank, (_, j) in enumerate(others, 1):
            if labels[j] == labels[i]:
                hits += 1
                own.append(hits / rank)
        if own:
            precisions.append(sum(own) / len(own))
    assert euclidean_map(places, labels) == pytest.approx(sum(precisions) / len(precisions))
    moved = 3 * places @ np.array([[0.6, -0.8], [0.8, 0.6]]) + 100  # unlike cosines'
    assert euclidean_map(moved, labels) == pytest.approx(euclidean_map(places, labels), abs=0.05)


def test_a_map_of_digits_is_trained_and_drawn(tmp_path: Path) -> None:
    quiet()
    own, plan = figure("nra_4"), Plan(tmp_path / "runs", seeds=1, overrides=("trainer.max_steps=2",))
    root = (f"dataset.root={tmp_path}",)  # with the archive of digits in a folder of the test's
    own = replace(own, cells=tuple(replace(cell, training=cell.training.extended(root)) for cell in own.cells))
    (run,) = plan.list_runs(trainings(own, "loss")["NRA"])
    run.folder.mkdir(parents=True)
    jobs.train(compose(run.training), RunFolder(run.folder), list(run.training.overrides))
    assert run.is_finished
    places, labels = embed_test_images(run)
    assert places.shape == (450, 2)
    assert sorted(set(labels.tolist())) == list(range(10))
    assert not np.allclose(np.linalg.norm(places, axis=1), 1)
    found = draw(own, plan, tmp_path / "nra_4.png")
    assert [(one.point, one.curve, one.seed) for one in found] == [("NRA", "mAP", 0)]
    assert found[0].value == euclidean_map(places, labels)
    assert (tmp_path / "nra_4.png").exists()
    unit = torch.nn.functional.normalize(torch.from_numpy(places), dim=1).numpy()
    assert run.metrics["level0/ap"] == pytest.approx(euclidean_map(unit, labels), abs=1e-3)  # cosines are ranked alike


def test_the_commands_are_those_of_what_is_missing(printed: Printed, tmp_path: Path) -> None:
    outputs = str(tmp_path / "runs")
    lines = printed("figures", "run", "--commands", "--outputs", outputs).splitlines()
    assert len(lines) == 30 + 8
    assert all(line.startswith("python -m dml train experiment=") for line in lines)
    finish(figure("nra_3"), Plan(Path(outputs), seeds=2), points=4)
    assert len(printed("nra_3", "run", "--commands", "--outputs", outputs).splitlines()) == 4


def test_showing_draws_and_writes_the_numbers(printed: Printed, tmp_path: Path) -> None:
    outputs, images = tmp_path / "runs", tmp_path / "images" / "figures"
    finish(figure("nra_3"), Plan(outputs, seeds=1), points=6)
    said = printed("nra_3", "page", "seeds=1", "--outputs", str(outputs), "--docs", str(tmp_path))
    assert said == f"{images / 'nra_3.png'}: NRA, Fig. 3 on emoji, 6 runs are done\n"
    assert (images / "nra_3.png").exists()
    with (outputs / "nra_3.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert len(rows) == 6 * 4
    assert (rows[0]["point"], rows[0]["curve"], float(rows[0]["value"])) == ("1", "recall@1", 0.5)


def test_without_a_run_a_picture_stays_as_it_is(printed: Printed, tmp_path: Path) -> None:
    picture = tmp_path / "images" / "figures" / "nra_3.png"
    picture.parent.mkdir(parents=True)
    picture.write_bytes(b"drawn before")
    folders = ["--outputs", str(tmp_path / "runs"), "--docs", str(tmp_path)]
    said = printed("nra_3", "page", "seeds=1", *folders)
    assert said == "nra_3: none of its runs is done; no picture is drawn\n"
    assert picture.read_bytes() == b"drawn before"


# figures of runs


def test_all_figures_are_listed_with_what_they_show(printed: Printed) -> None:
    lines = printed("figures", "list").splitlines()[1:-1]
    names = [
        *NAMES,
        "rll_5",
        "rll_6",
        "lns_3.4",
        "lns_3.5",
        "lns_3.6",
        "lns_3.7",
        "lns_3.8",
        "lns_4.2",
        "lns_4.3",
        "lns_4.4",
    ]
    assert {line.split()[0] for line in lines} == {*names, "happier_5", "happier_6"}
    assert all(": " in line and "Fig. " in line for line in lines)


def count_pixels(path: Path, relation: str) -> int:
    with Image.open(path) as image:
        return int((np.asarray(image) == ImageColor.getrgb(COLORS[relation])).all(axis=2).sum())


def test_sheets_are_drawn_of_any_number_of_runs(make_run: MakeRun, printed: Printed, tmp_path: Path) -> None:
    folders = [str(make_run(name, seed=seed)) for seed, name in enumerate(("a", "b", "c"))]
    heights = []
    for number in (1, 2, 3):
        images = tmp_path / str(number)
        said = printed("rll_5", *folders[:number], "--outputs", str(images))
        assert said.startswith(f"{images / 'rll_5.png'}: RLL, Fig. 5, ")
        with Image.open(images / "rll_5.png") as image:
            heights.append(image.height)
        assert count_pixels(images / "rll_5.png", SAME)
        assert not count_pixels(images / "rll_5.png", COARSER)  # the paper's marks are of the class alone
    assert heights[2] - heights[1] == heights[1] - heights[0] > 500  # eight rows for each run


@pytest.fixture
def compared(make_run: MakeRun) -> tuple[Path, Path]:
    """Two runs: of query 0, the first finds images of its class, the second none; of query 4, the second does."""
    first, second = make_run("first"), make_run("second")
    for run, better in ((first, 0), (second, 4)):
        table = figures.read_run(run).queries
        rows = np.stack([np.r_[8:13]] * 24)  # images of the classes 2 and 3
        rows[better, :3] = [better + 1, better + 2, better + 3]
        write_queries(
            run / "per_query.parquet",
            replace(table, neighbors=table.paths[rows], neighbor_labels=table.labels[rows]),
        )
    return first, second


@pytest.mark.parametrize(
    ("name", "query"), [("lns_3.7", 0), ("lns_4.3", 0), ("lns_3.8", 4), ("lns_4.4", 4), ("happier_6", 4)]
)
def test_a_sheet_of_two_runs_shows_where_one_beats_the_other(
    compared: tuple[Path, Path], name: str, query: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(
        figures, "draw_queries", lambda tables, queries, *_, **options: drawn.append((queries, options))
    )
    draw_run_figures(entries(name), compared, tmp_path)
    ((queries, options),) = drawn
    assert queries == [query]
    assert options["neighbors"] == (8 if name == "happier_6" else 7)


def test_errors_are_shown_by_severity(compared: tuple[Path, Path], printed: Printed, tmp_path: Path) -> None:
    first, second = compared
    table = figures.read_run(second).queries
    rows = np.stack([np.r_[8:13]] * 24)
    rows[0] = [4, 5, 6, 7, 8]  # of the other class in the family of query 0
    better = replace(table, neighbors=table.paths[rows], neighbor_labels=table.labels[rows])
    write_queries(second / "per_query.parquet", better)
    far = np.stack([rows[1]] * 24)
    write_queries(
        first / "per_query.parquet", replace(table, neighbors=table.paths[far], neighbor_labels=table.labels[far])
    )
    printed("happier_6", str(first), str(second), "--outputs", str(tmp_path))
    assert all(count_pixels(tmp_path / "happier_6.png", relation) for relation in (COARSER, OTHER))
    assert count_pixels(tmp_path / "happier_6.png", SAME) < 500  # in the legend alone
    with pytest.raises(InputError, match=r"^lns_3\.8: the second run finds more for no query among its 7 nearest"):
        draw_run_figures(entries("lns_3.8"), [first, second], tmp_path)


def test_maps_show_the_pictures_at_their_places(make_run: MakeRun, printed: Printed, tmp_path: Path) -> None:
    folders = [str(make_run(name, seed=seed)) for seed, name in enumerate(("a", "b", "c"))]
    for number in (1, 3):
        printed("rll_6,lns_3.4", *folders[:number], "--outputs", str(tmp_path))
        with Image.open(tmp_path / "rll_6.png") as image:
            assert image.size == (1650 * min(2, number), 1650 * (1 + number // 3))
            assert len(image.convert("RGB").getcolors(2**24)) > 24
    assert (tmp_path / "lns_3.4.png").exists()
    run = figures.read_run(Path(folders[0]))
    write_queries(Path(folders[0]) / "per_query.parquet", replace(run.queries, positions=None))
    with pytest.raises(InputError, match=r"a: no map in its report; .*evaluation\.report\.map=true"):
        draw_run_figures(entries("rll_6"), [Path(folders[0])], tmp_path)


class FakeEmbedder:
    """Embeds the picture NN.png as NN in the first of three dimensions, beside a one."""

    def embed(self, paths: list[str]) -> np.ndarray:
        return np.array([[int(Path(path).stem), 1.0, 0.0] for path in paths])


def test_class_means_are_embedded_and_colored_by_the_coarsest_level(
    make_run: MakeRun, printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, placed, drawn = make_run("a"), [], []
    monkeypatch.setattr(figures, "load", lambda _: FakeEmbedder())
    monkeypatch.setattr(figures, "embedding_map", lambda means: placed.append(means) or means[:, :2])
    printed("happier_5", str(folder), "--outputs", str(tmp_path))
    assert (tmp_path / "happier_5.png").exists()
    np.testing.assert_allclose(placed[0][:, 0], [4 * number + 1.5 for number in range(6)])  # four pictures a class
    monkeypatch.setattr(figures, "draw_planes", lambda _, planes, *__, **___: drawn.extend(planes.values()))
    printed("happier_5", str(folder), "--outputs", str(tmp_path))
    assert drawn[0].classes.tolist() == ["x", "x", "y", "y", "z", "z"]
    table = figures.read_run(folder).queries
    flat = replace(
        table, levels=("shape",), labels=table.labels[:, :1], neighbor_labels=table.neighbor_labels[:, :, :1], names=()
    )
    write_queries(folder / "per_query.parquet", flat)
    with pytest.raises(InputError, match=r"a: 6 classes of shape; at least 5 are drawn, colored by a coarser level"):
        draw_run_figures(entries("happier_5"), [folder], tmp_path)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nra_5"], "nra_5: no study of this name; nearest: nra_"),
        (["rll_7", "{run}"], "rll_7: no study of this name; nearest: rll_"),
        (["rll_5"], "rll_5: figures of runs, and no others, take folders, as in dml study rll_5 outputs/RUN"),
        (["nra_3", "{run}"], "nra_3 {run}: figures of runs, and no others, take folders"),
        (["nra_3", "--data", "/none"], "--data /none: no such folder"),
        (["lns_3.7", "{run}"], "lns_3.7: shows what one of two runs finds and the other doesn't; 1 given"),
        (["rll_5", "{empty}"], "{empty}: metrics.json, per_query.parquet, .hydra/config.yaml missing"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], line: str, make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    names = {"run": str(make_run("run")), "empty": str(tmp_path / "empty")}
    with pytest.raises(SystemExit, match="2"):
        run_study([argument.format(**names) for argument in arguments])
    assert capsys.readouterr().err.startswith(f"error: {line.format(**names)}")
