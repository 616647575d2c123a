"""A trained run that another run uses: its tested model, with the settings by which it embeds images."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from omegaconf import OmegaConf

from dml.data.table import ImageTable
from dml.models.adapters import merge_updates
from dml.models.recurrent import AnyModel
from dml.run import builders, building, loop
from dml.run.initial_weights import read_stage
from dml.run.model_builders import list_decisive, make_fingerprint
from dml.run.settings import Settings, read_settings
from dml.run.stages import make_evaluation_config
from dml.runtime.errors import InputError
from dml.runtime.paths import expand_home
from dml.runtime.run_folder import RunFolder
from dml.runtime.text import printable
from dml.training.checkpoints import find_checkpoint, lacks_weights, load_model, read_checkpoint
from dml.training.embedders import Embedded

KEY = "distill.teacher"
"""The key that names the run, for error lines."""

PLACES = "give a run's folder, a checkpoint, pretrained:NAME or a .parquet file that dml embed wrote"


class TrainedRun(NamedTuple):
    """A run's tested stage and its model, on the CPU, with the fingerprint that the model has in `dml.load`."""

    place: str
    settings: Settings
    model: AnyModel
    fingerprint: str

    def embed(self, settings: Settings, images: ImageTable) -> Embedded:
        """Embed images as the run's test does; the settings of another run say how files are read."""
        trained = self.settings.data
        data = replace(settings.data, background=trained.background)
        reading = replace(self.settings, data=data, dataset=settings.dataset, trainer=settings.trainer)
        embedder, loaded = builders.build_embedder(reading, self.model), builders.build_evaluation_data(reading, images)
        loop.build_testing_trainer(settings, limit_test_batches=1.0).test(embedder, loaded, verbose=False)
        return embedder.embedded


def open_run(place: str, *, trust: bool) -> TrainedRun:
    """Open the folder or the checkpoint of a run, without a change of torch's random numbers.

    Raises:
        InputError: if there is no run, it is damaged, or it names unknown code and ``trust`` is false.
    """
    path = expand_home(place)
    folder = RunFolder(path)
    if not any(file.is_file() for file in (path, folder.best_checkpoint, folder.last_checkpoint)):
        raise InputError(f"{KEY}={printable(place)}: no run with a checkpoint is there; {PLACES}")
    path = find_checkpoint(folder) if path.is_dir() else path
    checkpoint = read_checkpoint(path, lazily=True)
    config = make_evaluation_config(read_stage(checkpoint), lacks_weights=lacks_weights(checkpoint))
    plain: Any = OmegaConf.to_container(config, resolve=True)
    parts = {part: plain.get(part) for part in ("model", "adapter", "recurrent")}
    try:
        with building.trusting(trust):
            building.check_values(parts | {"transform": {"test": plain["transform"]["test"]}})
    except InputError as error:
        raise InputError(f"{KEY}={printable(place)}: {error}; trust=true if you trust this file") from error
    decisive, settings = list_decisive(plain), read_settings(config, Settings)
    with torch.random.fork_rng(devices=()):
        model = builders.build_model(settings)
    load_model(model, path)
    merge_updates(model)
    return TrainedRun(place, settings, model, make_fingerprint(decisive, model))
