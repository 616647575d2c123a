"""The lanes of RS@k and Hyp-ViT: their settings, by data set, and what their tables say beside the numbers."""

from pathlib import Path

import pytest
from omegaconf import DictConfig

from dml.studies.experiments import compose
from dml.studies.paper_tables import read_tables
from dml.studies.results import Results
from dml.studies.runs import Plan
from dml.studies.study import Training
from dml.studies.table_pages import render_table_page

pytestmark = pytest.mark.pipeline

RSK = {
    "resnet50/cub200": (1e-4, [10, 20, 30], 40, 400, 200),
    "resnet50/cars196": (1e-4, [80, 140], 170, 392, 200),
    "resnet50/sop": (2e-4, [25, 50], 55, 4000, 200),
    "resnet50/inat_base": (1e-4, [40, 70], 90, 4000, 200),
    "vit_base/cars196": (1e-5, [20, 30, 40], 50, 392, 100),
    "vit_base/sop": (5e-5, [25, 50], 55, 4000, 100),
    "vit_base/inat_base": (5e-5, [10, 40, 70], 90, 4000, 100),
}
"""Of each experiment of RS@k: learning rate, milestones, epochs, images of a batch, and images of a chunk."""


def count_images(config: DictConfig) -> int:
    return int(config.sampler.classes_per_batch * config.sampler.images_per_class)


@pytest.mark.parametrize("name", RSK)
def test_settings_of_rsk(name: str) -> None:
    config = compose(Training(f"rsk/{name}"))
    rate, milestones, epochs, images, chunk = RSK[name]
    assert config.optimizer.lr == rate
    assert config.scheduler.interval == "epoch"
    assert list(config.scheduler.schedule.milestones) == milestones
    assert config.scheduler.schedule.gamma == 0.3
    assert config.trainer.max_epochs == epochs
    assert (count_images(config), config.sampler.images_per_class) == (images, 4)
    assert config.training.gradient_cache == chunk
    assert (config.model.embed_dim, config.optimizer.weight_decay) == (512, 4e-4)
    is_transformer = name.startswith("vit_base")
    assert config.optimizer.optimizer._target_ == f"torch.optim.{'AdamW' if is_transformer else 'Adam'}"
    assert config.loss._target_.endswith("RecallAtKLoss")
    assert not config.loss.mixup


def level_of(config: DictConfig) -> str:
    """The name of a data set's finest level."""
    return next(level for level in config.dataset.counts.train if level != "images")


def test_a_row_is_of_the_network_and_the_size_of_its_lane() -> None:
    for table in (table for table in read_tables() if table.is_lane):
        assert len({(cell.backbone, cell.dim) for cell in table.numbers}) == 1
        for cell in table.numbers:
            config = compose(table.find_entry(cell.row, cell.dataset).cells[0].training)
            assert (config.model.backbone.name, str(config.model.embed_dim)) == (cell.backbone, cell.dim)
            assert f"mixup={str(config.loss.get('mixup')).lower()}" == (cell.settings or "mixup=none")


def test_a_lane_names_its_sources_and_other_tables_have_none(tmp_path: Path) -> None:
    for table in {table.paper: table for table in read_tables()}.values():  # one of each paper: a page takes a second
        page = render_table_page(table.make_study(), Results([]), Plan(tmp_path, seeds=1))
        assert table.is_lane == (table.paper in ("rsk", "hyp"))
        assert ("Compare only inside a lane" in page) == table.is_lane
        assert ("Sources of the paper's numbers: " in page) == table.is_lane
        assert all(bool(cell.source) == table.is_lane for cell in table.numbers)
    (lane,) = [table for table in read_tables() if table.paper == "hyp"]
    page = render_table_page(lane.make_study(), Results([]), Plan(tmp_path, seeds=1))
    assert "Compare only inside a lane, here vit_small_patch16_224.augreg_in21k, 384 dimensions." in page
    assert page.count("arXiv 2203.10833") == 1
