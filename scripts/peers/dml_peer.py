"""dml itself: ``dml train`` with a callback that measures it, and the same classes for what has no command."""

import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from dml.run.settings import Settings, read_settings
from peers.dml_settings import list_overrides
from peers.protocol import Job, Results, run_job

CLOCKS = {"train": "TimeSteps", "recall": "TimeValidations"}


def run_command(job: Job) -> Results:
    """Run ``dml train``, whose callback writes the results and ends the process."""
    import torch

    from dml.__main__ import run_command as run_dml

    torch.set_num_threads(job.threads)
    clock = f"{{_target_: peers.dml_clocks.{CLOCKS[job.task]}, job: '{sys.argv[1]}'}}"
    folder = Path(job.results).with_suffix("")
    arguments = [*list_overrides(job), f"trainer.callbacks=[{clock}]", f'hydra.run.dir="{folder}"']
    sys.argv = ["dml"]
    run_dml("train", *arguments)
    raise RuntimeError("the run has ended before its clock")


def compose_job(job: Job) -> Any:
    """Compose the configuration of a job, without a run."""
    import torch
    from hydra import compose, initialize_config_dir
    from pytorch_lightning import seed_everything

    from dml.commands.start import quiet
    from dml.run.config_folders import CONF

    torch.set_num_threads(job.threads)
    quiet()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=[*list_overrides(job)])
    seed_everything(config.seed, verbose=False)
    return config


def evaluate(job: Job) -> Results:
    """Measure an evaluation of the test split, by the classes of ``dml evaluate``."""
    import numpy as np

    from dml.evaluation import evaluate as evaluate_embeddings
    from dml.evaluation.evaluator import Evaluator
    from dml.run import builders, loop
    from dml.run.evaluators import build_metric_config
    from dml.training.embedders import CHOSEN_HEADS

    run_settings = read_settings(compose_job(job), Settings)
    table, model = builders.build_table(run_settings), builders.build_model(run_settings)
    started = perf_counter()
    embedder = builders.build_embedder(run_settings, model)
    trainer = loop.build_testing_trainer(run_settings)
    trainer.test(embedder, builders.build_evaluation_data(run_settings, table), verbose=False)
    evaluator = Evaluator(table.select_evaluated("test"), build_metric_config(run_settings, table))
    metrics = evaluator.evaluate(embedder.embedded.embeddings[CHOSEN_HEADS]).metrics
    seconds = perf_counter() - started
    arrays = np.load(Path(job.folder, "embeddings.npz"))
    given_started = perf_counter()
    settings: dict[str, Any] = {"metrics": ["recall", "map@r"], "recall_at": [1], "clustering": False}
    given_metrics = evaluate_embeddings(arrays["embeddings"], arrays["labels"], **settings)
    metrics_seconds = perf_counter() - given_started
    names = {"recall@1": "level0/recall@1", "map@r": "level0/map@r"}
    return {
        **{name: metrics[long_name] for name, long_name in names.items()},
        **{f"given_{name}": given_metrics[long_name] for name, long_name in names.items()},
        "evaluation_s": seconds,
        "metrics_s": metrics_seconds,
    }


if __name__ == "__main__":
    run_job({"train": run_command, "recall": run_command, "evaluate": evaluate})
