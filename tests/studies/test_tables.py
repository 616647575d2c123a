"""The papers' tables as data, the training behind each of their cells, and the table that comes of finished runs."""

import csv
import json
import statistics
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import Here, Printed
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from scipy.stats import t as students_t

from dml.evaluation.metric import list_evaluated_heads
from dml.run.config_folders import CONF
from dml.run.stored import Stage, list_stages, plain_config
from dml.runtime.configuration import flat
from dml.runtime.errors import InputError
from dml.runtime.run_folder import RunFolder
from dml.studies import runs as study_runs
from dml.studies.engine import Engine
from dml.studies.experiments import compose, count_steps, identify, shrink
from dml.studies.paper_tables import PrintedNumber, Table, read_entries, read_numbers, read_tables
from dml.studies.results import Rows, group_rows
from dml.studies.runs import Plan, Run, check_data
from dml.studies.study import Cell, Training
from dml.studies.study_command import find_studies
from dml.studies.table_pages import csv_rows, render_table_page, reproduce

pytestmark = pytest.mark.pipeline

PAPERS = ("rll", "nra", "lns", "happier")
OWN = {"rll": 15, "nra": 2, "lns": 11, "happier": 6}


def find_tables(name: str) -> list[Table]:
    return [study.content["table"] for study in find_studies(name)]


def list_runs(plan: Plan, table: Table) -> list[Run]:
    """Each run of a table once."""
    return list({run.folder: run for training in table.trainings for run in plan.list_runs(training)}.values())


def find_cells(table: Table, row: str, dataset: str) -> tuple[Cell, ...]:
    return table.find_cells(row, dataset)


def collect(table: Table, plan: Plan) -> Rows:
    study = table.make_study()
    return group_rows(Engine(study, plan, []).collect(), study)


def test_the_reference_is_whole() -> None:
    assert len(read_numbers()) == 1247
    assert sum(cell.value is not None for cell in read_numbers()) == 1230
    assert sum(len(table.numbers) for table in read_tables()) == 1247
    assert sum(len(table.trained) for table in read_tables()) == 805
    assert Counter(table.paper for table in read_tables()) == OWN
    assert [str(table) for table in find_tables("nra")] == ["nra-I", "nra-II"]
    assert [str(table) for table in find_tables("lns-3.6")] == ["lns-3.6"]
    assert len({(cell.paper, cell.table, cell.row, cell.dataset, cell.metric) for cell in read_numbers()}) == 1247
    with pytest.raises(InputError, match=r"rl-I: no study of this name; nearest: rll-I"):
        find_tables("rl-I")


@pytest.mark.parametrize("paper", PAPERS)
def test_every_own_cell_has_an_experiment_that_gives_its_number(paper: str) -> None:
    faults, composed = [], cache(compose)  # a row's cells share their training
    for table in find_tables(paper):
        for cell in table.trained:
            try:
                trained = find_cells(table, cell.row, cell.dataset)
            except KeyError as error:
                faults.append(f"{error}: {cell.metric}")
                continue
            assert trained, cell
            assert bool(cell.statistic) == (len(trained) > 1), cell
            for one in trained:
                if cell.value is not None or one.part != "fixed":  # of fixed neighbors it prints dashes too
                    faults += _faults(cell, composed(one.training), one.part)
    assert not faults, "\n".join(faults)


def _faults(cell: PrintedNumber, config: DictConfig, part: str) -> list[str]:
    named = f"{cell.paper} {cell.table} {cell.row} {cell.dataset} {cell.metric}"
    dataset = config.evaluation.other_labels.get(part, config.dataset).name
    found = [] if dataset == cell.dataset else [f"{named}: on {dataset}"]
    metric, _, k = cell.metric_name.rpartition("/")[2].partition("@")
    if metric not in config.evaluation.metrics:
        found.append(f"{named}: evaluation.metrics has no {metric}")
    if k and int(k) not in config.evaluation.recall_at:
        found.append(f"{named}: evaluation.recall_at has no {k}")
    if metric in ("nmi", "ami", "f1") and not config.evaluation.clustering:
        found.append(f"{named}: evaluation.clustering is off")
    if part.startswith("heads/") and part.removeprefix("heads/") not in list_evaluated_heads(
        config.model.heads, config.evaluation.heads, config.evaluation.head_sets
    ):
        found.append(f"{named}: {part} isn't tested")
    if part == "fixed" and (metric != "recall" or config.evaluation.fixed_neighbors != 16):
        found.append(f"{named}: not among the 16 neighbors")
    return found


def test_an_entry_is_of_a_row_that_there_is() -> None:
    for paper in PAPERS:
        known = {table.name: {cell.row for cell in table.trained} for table in find_tables(paper)}
        for table, rows in read_entries(paper).items():
            assert not set(rows) - known[table], (paper, table)


STATED = {
    "C": "sampler.classes_per_batch",
    "K": "sampler.images_per_class",
    "alpha": "loss.alpha",
    "margin": "loss.margin",
    "t_neg": "loss.negative_temperature",
    "t_pos": "loss.positive_temperature",
    "eps": "loss.epsilon",
    "t1": "scheduler.loss.start",
    "t2": "scheduler.loss.end",
    "lr": "optimizer.lr",
    "K_neighbors": "sampler.num_neighbors",
    "images_per_class": "sampler.images_per_class",
    "lambda": "loss.weights.drift",
    "gamma": "loss.weights.norm",
}
"""Where a setting that the reference states stands in a configuration of RLL, NRA or LNS; where it can't, it is 0."""

ORDERS = {None: "", "farthest_first": "ordered=yes", "random": "ordered=no"}  # of a recurrent model's neighbors
READ_OTHERWISE = {("rll", "XIV", "ck_60x4")}  # 60x4 is not the 180 that is printed beside it


@pytest.mark.parametrize("paper", ["rll", "nra", "lns"])
def test_configurations_hold_what_the_papers_state(paper: str) -> None:
    for table in find_tables(paper):
        for row, dataset in table.rows:
            cell = next(cell for cell in table.trained if (cell.row, cell.dataset) == (row, dataset))
            source = find_cells(table, row, dataset)[0]
            if cell.statistic or (paper, table.name, row) in READ_OTHERWISE:
                continue
            trained = list_stages(compose(source.training))
            config = trained[-1].config
            _check_stated(cell, trained)
            _check_heads(cell, config, source.part)
            plain = "aug=simple" in cell.settings
            assert plain == ("RandomCrop" in str(config.transform.train) and paper == "rll"), cell
            if paper == "rll":
                frozen = "all" if dataset in ("cub200", "cars196") else None
                assert config.model.backbone.freeze_batchnorm == frozen, cell
                assert ("version=simpler" in cell.settings) <= (config.loss.alpha is None), cell


def _check_heads(cell: PrintedNumber, config: DictConfig, part: str) -> None:
    heads = part.removeprefix("heads/").split("+") if part else list(config.model.heads)
    if cell.heads:
        assert cell.heads == "+".join(heads), cell
    if cell.dim:
        assert int(cell.dim) == config.model.embed_dim * len(heads), cell


def _check_stated(cell: PrintedNumber, trained: list[Stage]) -> None:
    config = trained[-1].config
    for name, value in (pair.split("=") for pair in cell.settings.split(";") if "=" in pair):
        if name in STATED:
            assert float(OmegaConf.select(config, STATED[name], default=0)) == float(value), (cell, name)
        if name == "iterations":
            assert sum(count_steps(stage.config) for stage in trained) == int(value), cell
    order = OmegaConf.select(config, "recurrent.recurrent.order")
    assert ("rnn=" in cell.settings) == (order is not None), cell
    assert ORDERS[order] in cell.settings, cell


def test_happiers_configurations_hold_what_the_paper_states() -> None:
    for table in find_tables("happier"):
        for row, dataset in table.rows:
            cell = next(cell for cell in table.trained if (cell.row, cell.dataset) == (row, dataset))
            config = compose(find_cells(table, row, dataset)[0].training)
            assert config.model.backbone.name == cell.backbone, cell
            from_scratch = dataset in ("dyml_vehicle", "dyml_animal")
            assert (config.model.backbone.weights is None) == from_scratch, cell
            assert config.model.backbone.freeze_batchnorm == (None if from_scratch else "statistics"), cell
            released = "hierarchical.HierarchicalSampler" if dataset == "sop" else "image_balanced.ImageBalancedSampler"
            assert config.sampler._target_ == f"dml.samplers.{released}", cell
            stated = dict(pair.split("=") for pair in cell.settings.split(";") if pair)
            assert ("h_ap" in config.loss.get("terms", {})) == ("lambda" in stated), cell
            assert config.evaluation.exclude == (None if dataset.startswith("dyml") else "nearest"), cell
            if row == "csl" and dataset == "dyml_product":
                assert config.optimizer.loss.lr == 0.01  # the release; HAPPIER's own proxies have 0.02
            if "alpha" in stated:
                h_ap = config.loss.terms.h_ap if "lambda" in stated else config.loss
                if row == "sigmoid_no_clust":  # Smooth-AP's sigmoid in both ranks
                    assert config.loss._target_ == "dml.losses.smooth_ap.SmoothAPLoss", cell
                    h_ap = config.loss.relevance
                assert h_ap.alpha == float(stated["alpha"]), cell
            if "lambda" in stated:
                cluster = float(stated["lambda"])
                assert config.loss.weights == {"h_ap": 1 - cluster, "cluster": cluster}, cell


VARIANTS = {
    "happier/2/happier_dyml_animal_release": "happier/2/happier_dyml_animal",
    "happier/3/happier_f_sop_release": "happier/3/happier_f_sop",
}


@pytest.mark.parametrize(("variant", "experiment"), VARIANTS.items())
def test_the_releases_lambda_is_a_variant_of_its_own(variant: str, experiment: str) -> None:
    release, paper = (flat(plain_config(compose(Training(name)))) for name in (variant, experiment))
    differing = {key: value for key, value in release.items() if paper[key] != value}
    assert differing == {"loss.weights.h_ap": 0.5, "loss.weights.cluster": 0.5}
    assert variant not in {one.experiment for table in find_tables("happier") for one in table.trainings}


def test_losses_of_the_species_are_trained_once_for_both_data_sets(tmp_path: Path) -> None:
    plan = Plan(tmp_path, seeds=1)
    of_happier = [cell for cell in read_numbers() if cell.paper == "happier"]
    printed = {(cell.table, cell.row, cell.dataset, cell.metric): cell.value for cell in of_happier}
    base, full = find_tables("happier-3")[0], find_tables("happier-4")[0]
    for row in ("tl_sh", "nsm", "nca_pp", "smooth_ap", "roadmap", "csl", "happier"):
        folders = [
            plan.list_runs(find_cells(table, row, dataset)[0].training)[0].folder
            for table, dataset in ((base, "inat_base"), (full, "inat_full"))
        ]
        same = all(
            printed["3", row, "inat_base", one] == printed["4", row, "inat_full", other]
            for one, other in (("recall@1", "recall@1"), ("ap/fine", "ap/species"))
        )
        assert same == (folders[0] == folders[1]), row


def test_the_weights_of_the_levels_are_those_that_table_3_implies() -> None:
    printed = {
        (cell.table, cell.row, cell.dataset, cell.metric): cell.value
        for cell in read_numbers()
        if cell.paper == "happier"
    }
    (table,) = find_tables("happier-6")
    for training in table.trainings:
        config = compose(training)
        aps = [printed["3", "happier", "inat_base", f"ap/{level}"] or 0.0 for level in ("fine", "coarse")]
        weighted = sum(weight * ap for weight, ap in zip(config.evaluation.level_weights, aps, strict=True))
        assert round(weighted, 1) == printed["6", "train_h_ap", "inat_base", "sum_wap"]
        assert sum(config.evaluation.level_weights) == pytest.approx(1.0)
    assert config.loss.relevance.weights == config.evaluation.level_weights == [0.94, 0.06]


SOME = [
    Training("rll/I/rll_simpler", ("model.embed_dim=64", "model.heads=[L,H]")),
    Training("nra/I/nra_sop", ("model.embed_dim=512", "loss=rll", "optimizer.lr=1e-3")),
    Training("rll/XV/inshop", ("scheduler.loss.start=4",)),
]


@pytest.mark.parametrize("training", SOME, ids=lambda training: training.experiment)
def test_composing_quickly_is_composing_as_hydra_does(training: Training) -> None:
    if training == SOME[-1]:
        training = shrink(training)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        slowly = hydra_compose("train", [f"experiment={training.experiment}", *training.overrides])
    assert OmegaConf.to_container(compose(training)) == OmegaConf.to_container(slowly)


def test_the_same_training_is_recognized() -> None:
    base = identify(compose(Training("rll/VIII/alpha", ("loss.alpha=1.2",))))
    same = [
        Training("rll/IX/t_n", ("loss.negative_temperature=10",)),
        Training("rll/XII/batch", ("sampler.classes_per_batch=60", "data.num_workers=3", "logger=tensorboard")),
        Training("rll/XIII/embed_dim", ("model.embed_dim=512", "seed=7", "dataset.root=/data/sop")),
    ]
    other = [Training("rll/IX/t_n", ("loss.negative_temperature=5",)), Training("rll/I/rll_simpler")]
    assert {identify(compose(training)) for training in same} == {base}
    assert base not in {identify(compose(training)) for training in other}


def test_ones_own_data_sets_share_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def folder(dataset: str, root: str) -> Path:
        return Plan(tmp_path, 1).list_runs(Training("rll/VIII/alpha", (f"dataset={dataset}", root)))[0].folder

    mine, other = (folder("csv", f"dataset.root=/{name}/photos.csv") for name in ("mine", "other"))
    assert mine != other
    assert folder("csv", f"dataset.root={tmp_path}/photos.csv") == folder("csv", "dataset.root=photos.csv")
    assert folder("sop", "dataset.root=/mine") == folder("sop", "dataset.root=/other")


def test_tables_share_their_runs(tmp_path: Path) -> None:
    plan = Plan(tmp_path, seeds=2)
    whole = {run.folder for table in find_tables("nra") for run in list_runs(plan, table)}
    assert len(whole) == 2 * 24  # Table II's trainings are Table I's
    (table,) = find_tables("rll-XV")
    assert len(list_runs(plan, table)) == 2 * 18  # 20 rows, of which T1 = T2 = 12 stands twice for each data set
    shared = {
        plan.list_runs(training)[0].folder
        for name in ("VIII", "IX", "XI")
        for training in find_tables(f"rll-{name}")[0].trainings
    }
    assert len(shared) == 3 + 5 + 14 - 2


def test_pairs_of_heads_cost_nothing(tmp_path: Path) -> None:
    plan = Plan(tmp_path, seeds=1)
    for pairs, whole in (("rll-VI", "rll-I"), ("rll-VII", "rll-II")):
        (table,), (trained,) = find_tables(pairs), find_tables(whole)
        (run,) = list_runs(plan, table)  # all seven rows
        assert run.folder in {other.folder for other in list_runs(plan, trained)}
    parts = [
        find_cells(table, cell.row, cell.dataset)[0].part
        for name in ("VI", "VII")
        for table in find_tables(f"rll-{name}")
        for cell in table.trained
    ]
    assert sum("+" in part for part in parts) == 27


def test_rows_of_a_single_head_choose_their_checkpoint_by_it() -> None:
    parts_of: dict[Training, set[str]] = {}
    for table in find_tables("rll"):
        for cell in (cell for row, dataset in table.rows for cell in find_cells(table, row, dataset)):
            parts_of.setdefault(cell.training, set()).add(cell.part)
    for training, parts in parts_of.items():
        monitor = compose(training).checkpoints.monitor
        assert monitor == ("heads/H/level0/recall@1" if parts == {"heads/H"} else "level0/recall@1"), training


def test_the_first_stage_of_lns_draws_classes_that_violate_the_triplet_constraint() -> None:
    """By embeddings that are computed anew at the end of its epochs; those of the next stage are computed once."""
    trained = [list_stages(compose(training)) for table in find_tables("lns") for training in table.trainings]
    in_stages = [stages for stages in trained if len(stages) > 1]
    assert len(in_stages) == len(trained) - 1  # Table 3.2 has a row without
    for first, second, *_ in in_stages:
        assert first.config.sampler._target_ == "dml.samplers.hard_class.HardClassSampler"
        assert count_steps(first.config) == 10_000
        assert first.config.training.bank_every_n_steps == first.config.sampler.batches_per_epoch
        assert second.config.sampler._target_ == "dml.samplers.local_neighborhood.LocalNeighborhoodSampler"
        assert second.config.training.bank_every_n_steps is None


def test_a_run_is_begun_resumed_or_done(tmp_path: Path) -> None:
    training = Training("rll/IX/t_n", ("loss.negative_temperature=5",))
    run = Plan(tmp_path, seeds=2, overrides=("trainer.precision=bf16-mixed",)).list_runs(training)[1]
    here = ["dataset.root=/d/Stanford_Online_Products", "model.backbone.weights=/d/weights/googlenet_bn.caffemodel"]
    asked = ["experiment=rll/IX/t_n", *training.overrides, "trainer.precision=bf16-mixed", "seed=1"]
    assert run.train_arguments(Path("/d")) == [*asked, *here, f"hydra.run.dir={run.folder}"]
    RunFolder(run.folder).write_configuration("seed: 1", "hydra: {}", "- seed=1")
    assert run.train_arguments(Path("/d")) == [f"resume={run.folder}", "trust=true", *here]
    (run.folder / "metrics.json").write_text("{}")
    assert run.is_finished


def test_missing_data_is_one_line_that_names_it(tmp_path: Path) -> None:
    (table,) = find_tables("rll-V")
    runs = list_runs(Plan(tmp_path / "outputs", seeds=1), table)
    with pytest.raises(InputError, match=r"^rll-V wants Stanford_Online_Products: give --data /data "):
        check_data(str(table), runs, None)
    with pytest.raises(InputError, match=r"^--data .*: no Stanford_Online_Products in it, which rll-V wants$"):
        check_data(str(table), runs, tmp_path)
    (tmp_path / "Stanford_Online_Products").mkdir()
    check_data(str(table), runs, tmp_path)
    with pytest.raises(InputError, match=r"no weights/googlenet_bn\.caffemodel in it, which rll-I wants$"):
        check_data("rll-I", list_runs(Plan(tmp_path, seeds=1), find_tables("rll-I")[0]), tmp_path)


def test_the_list_names_each_table_with_its_cells_and_runs(printed: Printed) -> None:
    first, second = printed("nra", "list", "seeds=2").splitlines()[1:3]
    assert first.split() == ["table-nra-I", "88", "48"]
    assert second.split() == ["table-nra-II", "6", "12"]


def test_what_a_study_sets_is_refused() -> None:
    for key in ("seed", "experiment", "resume", "hydra.run.dir"):
        with pytest.raises(InputError, match=f"^--set {key}=x: .* sets it"):
            Plan(Path(), 1, overrides=(f"{key}=x",))


def test_a_printed_table_is_the_papers_with_its_quoted_rows_marked(printed: Printed, tmp_path: Path) -> None:
    page = printed("rll-III", "--outputs", str(tmp_path))
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    shown = [tuple(cells) for cells in lines if len(cells) == 7 and cells[1] == "cars196"]
    quoted = [(row, metric, number) for row, _, metric, number, *_, runs in shown if runs == "quoted"]
    rows = list(dict.fromkeys(cells[0] for cells in shown))
    assert len(rows) == 9
    assert rows[-1] == "rll_simpler_h_64"
    assert len(quoted) == 4 * 8
    assert ("multi_simi_64", "recall@1", "77.3") in quoted
    assert [cells[-1] for cells in shown[-4:]] == ["0 of 3"] * 4


QUOTING = [table for table in read_tables() if any(number.is_quoted for number in table.numbers)]


@pytest.mark.parametrize("table", QUOTING, ids=str)
def test_every_printed_number_stands_in_its_table(table: Table) -> None:
    page = render_table_page(table.make_study(), {}, Plan(Path("none"), 1))
    lines = Counter(" | ".join(cell.strip() for cell in line.split("|")[1:5]) for line in page.splitlines())
    for cell in table.numbers:
        assert lines[f"{cell.row} | {cell.dataset} | {cell.metric} | {cell.printed or '–'}"] == 1
    assert page.count("| quoted |") == sum(cell.is_quoted for cell in table.numbers)


def test_a_variance_that_is_printed_as_sd_is_called_so() -> None:
    plan = Plan(Path("none"), 1)
    pages = {name: render_table_page(find_tables(name)[0].make_study(), {}, plan) for name in ("rll-XV", "rll-V")}
    assert "sample variance" in pages["rll-XV"]
    assert "sample variance" not in pages["rll-V"]


def test_a_table_is_run_and_written_and_then_known(
    printed: Printed, here: Here, tmp_path: Path, small_emoji: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []

    def run_here(commands: list[list[str]], _: int) -> bool:
        begun.extend(commands)
        return any(here(*words) for words in commands)  # type: ignore[func-returns-value]

    monkeypatch.setattr(study_runs, "run_processes", run_here)
    tiny = ["dataset.counts=null", "transform.size=32", "evaluation.clustering=false", "sampler.classes_per_batch=4"]
    own = [f"dataset.root={small_emoji}", *tiny, "trainer.max_steps=2"]
    asked = ["rll-V", "run", "--preset", "smoke", "--outputs", str(tmp_path), *(f"--set={one}" for one in own)]
    first = printed(*asked)
    assert [words[:2] for words in begun] == [["train", "experiment=rll/V/rll_simpler"]]
    (file,) = (tmp_path / "smoke").glob("rll-V-*.md")  # beside rll-V.md, which is of the trainings without --set
    table = file.read_text()
    assert first.endswith(f"{table}\n")
    changes = ", ".join(sorted(own[1:]))  # where the data lies is no change
    assert table.startswith(f"# RLL, Table V (smoke on emoji, {changes}: not the paper's data, network or training)")
    assert table.endswith("1 of 1 runs are done.\n")
    (found,) = [json.loads(path.read_text()) for path in tmp_path.rglob("metrics.json")]
    recall = 100 * found["level0/recall@10"]
    assert f"| rll_simpler_128 | sop | recall@10 | 91.1 | {recall:.1f} |  | 1 of 1 |" in table  # other data
    with file.with_suffix(".csv").open(newline="") as lines:
        assert [float(row["mean"]) for row in csv.DictReader(lines)][1] == pytest.approx(recall)
    assert printed(*asked) == f"{table}\n"  # nothing is run again


def finish(plan: Plan, table: Table, seeds: int, **recalls: float) -> None:
    """Writes metrics.json for rows of a table, in percent points more for each seed."""
    for row, recall in recalls.items():
        (cell,) = find_cells(table, row, "inshop")
        for run in plan.list_runs(cell.training)[:seeds]:
            run.folder.mkdir(parents=True, exist_ok=True)
            metrics = {f"{cell.part}/level0/recall@1": (recall + run.seed) / 100, "level0/recall@1": 0.5}
            (run.folder / "metrics.json").write_text(json.dumps(metrics))


def test_the_table_of_finished_runs(tmp_path: Path) -> None:
    plan, (table,) = Plan(tmp_path, seeds=3), find_tables("rll-XV")
    recalls = {"early_t1_4_t2_12": 80.0, "early_t1_8_t2_12": 81.0, "early_t1_12_t2_12": 83.0, "early_t1_16_t2_12": 86.0}
    finish(plan, table, 3, **recalls)
    finish(plan, table, 2, early_t1_20_t2_12=90.0)
    results = collect(table, plan)
    numbers = {
        (line.number.row, line.number.dataset, line.number.metric): line for line in reproduce(table, results, plan)
    }

    line = numbers["early_t1_4_t2_12", "inshop", "recall@1"]
    assert line.values == pytest.approx([80.0, 81.0, 82.0])
    assert line.difference == pytest.approx(81.0 - 86.2)
    half = students_t.ppf(0.975, 2) * statistics.stdev((80, 81, 82)) / 3**0.5
    assert line.interval is not None
    assert line.interval.half_width == pytest.approx(half)
    # a seed counts once all five of its runs are finished
    values = [[recall + seed for recall in (*recalls.values(), 90.0)] for seed in (0, 1)]
    assert numbers["early_mean", "inshop", "recall@1/mean"].values == pytest.approx([sum(own) / 5 for own in values])
    variances = [sum((one - sum(own) / 5) ** 2 for one in own) / 4 for own in values]
    assert numbers["early_sd", "inshop", "recall@1/sd"].values == pytest.approx(variances)
    assert numbers["early_t1_4_t2_12", "cub200", "recall@1"].interval is None

    text = render_table_page(table.make_study(), results, plan)
    assert f"| early_t1_4_t2_12 | inshop | recall@1 | 86.2 | 81.0 ± {half:.1f} | -5.2 | 3 of 3 |" in text
    assert "| early_t1_4_t2_12 | cub200 | recall@1 | 53.2 |  |  | 0 of 3 |" in text
    assert "\n\nVector: 128 dimensions, cosine (early_t1_4_t2_12 on cub200, " in text  # head H alone
    assert ": 64 dimensions, cosine). First weights: googlenet_bn.caffemodel. Checkpoint: the best on the test " in text
    assert "\n14 of 54 runs are done.\n" in text
    header, *rows = csv_rows(table, results, plan)
    assert len(rows) == len(table.numbers)
    assert all(len(row) == len(header) for row in rows)


def test_a_finished_run_without_the_metric_is_named(tmp_path: Path) -> None:
    plan, (table,) = Plan(tmp_path, seeds=1), find_tables("rll-V")
    (run,) = list_runs(plan, table)
    run.folder.mkdir(parents=True)
    (run.folder / "metrics.json").write_text(json.dumps({"level0/recall@1": 0.7}))
    with pytest.raises(InputError, match=r"rll-V: a finished run of rll_simpler_128 on sop has no level0/recall@10,"):
        reproduce(table, collect(table, plan), plan)


def test_a_level_that_the_embedded_data_lacks_stays_empty(tmp_path: Path) -> None:
    (table,) = find_tables("happier-4")
    plan = Plan(tmp_path, seeds=1, is_small=True)
    (run,) = plan.list_runs(find_cells(table, "happier", "inat_full")[0].training)
    run.folder.mkdir(parents=True)
    (run.folder / "metrics.json").write_text(json.dumps({"level0/recall@1": 0.5}))
    reproductions = reproduce(table, collect(table, plan), plan)
    ours = {line.number.metric: line.values for line in reproductions if line.number.row == "happier"}
    assert ours["recall@1"] == [50.0]
    assert ours["ap/kingdom"] == []


def test_the_embedded_data_has_runs_of_its_own(tmp_path: Path) -> None:
    (table,) = find_tables("rll-V")
    whole, small = Plan(tmp_path, seeds=1), replace(Plan(tmp_path, seeds=1), is_small=True)
    assert {run.folder for run in list_runs(whole, table)}.isdisjoint(run.folder for run in list_runs(small, table))
    check_data(str(table), list_runs(small, table), None)  # needs none


def test_an_override_with_several_values_is_refused() -> None:
    with pytest.raises(InputError, match=r"loss.margin=0.1,0.2: several values, and one is needed"):
        compose(Training("rll/I/rll_simpler", ("loss.margin=0.1,0.2",)))
