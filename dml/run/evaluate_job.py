"""What ``evaluate.py`` does."""

from typing import Any

from omegaconf import DictConfig
from pytorch_lightning import seed_everything
from pytorch_lightning.utilities import rank_zero_only

from dml.ops.paths import expand_home
from dml.ops.run_folder import RunFolder
from dml.run import build, loop, outcome
from dml.run.stages import evaluation_config, stage
from dml.run.stored import check_unchanged, of_checkpoint, write_configuration
from dml.training.checkpoints import Reached, load_model, read_checkpoint


def evaluate(config: DictConfig, folder: RunFolder, overrides: list[str]) -> dict[str, Any]:
    """Test a checkpoint again -> the contents of metrics.json.

    It takes neither a loss nor a sampler, and not the file of pretrained weights that the training began with.
    """
    path = expand_home(config.checkpoint)
    parts = ("dataset", "transform", "model", "recurrent", "stages", "evaluation")
    check_unchanged(config, overrides, of_checkpoint(path), parts=parts)
    reached = Reached.of(path)
    stage_config = evaluation_config(stage(config, reached.stage).config)
    seed_everything(stage_config.seed, verbose=False)
    images = build.evaluation_data(stage_config, build.table(stage_config))
    model = build.model(stage_config)
    load_model(model, path)
    rank_zero_only(write_configuration)(folder, config, overrides)
    trainer = loop.testing_trainer(stage_config, default_root_dir=folder.path)
    return outcome.test(
        stage_config,
        trainer,
        build.embedder(stage_config, model),
        images,
        folder,
        split=stage_config.split,
        described=reached.described(read_checkpoint(path)["run"]),
        fixed=RunFolder(path.parents[1]).fixed_neighbors_file,
    )
