"""dml itself: ``dml train`` with a callback that measures it, and the same classes for what has no command."""

import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from dml.run.settings import Settings, read_settings
from peers import protocol
from peers.protocol import Job, Results, run_job

CLOCKS = {"train": "TimeSteps", "recall": "TimeValidations"}
RESIZE = "{_target_: dml.data.transforms.Resize, mode: warp, size: '${transform.size}'}"
FLIP = "{_target_: torchvision.transforms.v2.RandomHorizontalFlip, p: 0.5}"

SAME_TRAINING = (
    f"model={protocol.NETWORK}",
    "model.heads=[H]",
    "model.taps={H: pooled}",
    f"model.embed_dim={protocol.EMBED_DIM}",
    "model.backbone.freeze_batchnorm=null",
    "heads.initial=null",
    "training.proxies=null",
    "optimizer=adamw",
    f"optimizer.lr={protocol.LEARNING_RATE}",
    f"optimizer.weight_decay={protocol.WEIGHT_DECAY}",
    "optimizer.heads_lr_multiplier=1.0",
    "optimizer.loss=null",
    "scheduler=constant",
    f"sampler.classes_per_batch={protocol.CLASSES_PER_BATCH}",
    f"sampler.images_per_class={protocol.IMAGES_PER_CLASS}",
    f"transform.train.steps=[{RESIZE},{FLIP}]",
    f"transform.test.steps=[{RESIZE}]",
)
"""What the peers do too: the network, its weights, the batches, the transform, the optimizer."""

NO_MORE = (
    *("evaluation.raw=false", "evaluation.sheet=null", "evaluation.report=null", "evaluation.threshold=null"),
    *("evaluation.metrics=[recall,map@r]", "evaluation.recall_at=[1]", "evaluation.clustering=false"),
    *("checkpoints.beginning=false", "checkpoints.patience=null"),
)
"""What the peers don't do: an evaluation before the training, other metrics, pictures, early stopping."""


def list_overrides(job: Job) -> list[str]:
    """Return the overrides of ``dml train`` for a job."""
    interval = str(job.interval) if job.task == "recall" else "null"
    return [
        "dataset=csv",
        f'dataset.root="{job.folder}/images.csv"',
        "transform=emoji",
        f"transform.size={job.size}",
        f"loss={protocol.LOSS}",
        f"model.backbone.channels_last={str(job.channels_last).lower()}",
        f"data.num_workers={job.workers}",
        f"data.eval_batch_size={protocol.EVAL_BATCH_SIZE}",
        f"trainer.max_steps={job.steps}",
        f"trainer.val_check_interval={interval}",
        *SAME_TRAINING,
        *NO_MORE,
    ]


def run_command(job: Job) -> Results:
    """Run ``dml train``, whose callback writes the results and ends the process."""
    import torch

    from dml.__main__ import run_command as run_dml

    torch.set_num_threads(job.threads)
    clock = f"{{_target_: peers.dml_clocks.{CLOCKS[job.task]}, job: '{sys.argv[1]}'}}"
    folder = Path(job.results).with_suffix("")
    sys.argv = ["dml"]
    run_dml("train", *list_overrides(job), f"trainer.callbacks=[{clock}]", f'hydra.run.dir="{folder}"')
    raise RuntimeError("the run has ended before its clock")


def compose_job(job: Job) -> Settings:
    """Compose the settings of a job, without a run, and seed."""
    import torch
    from hydra import compose, initialize_config_dir
    from pytorch_lightning import seed_everything

    from dml.run.config_folders import CONF
    from dml.runtime.imports import quiet

    torch.set_num_threads(job.threads)
    quiet()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=list_overrides(job))
    seed_everything(config.seed, verbose=False)
    return read_settings(config, Settings)


def evaluate(job: Job) -> Results:
    """Measure an evaluation of the test split, by the classes of ``dml evaluate``."""
    import numpy as np

    from dml.evaluation import evaluate as evaluate_embeddings
    from dml.evaluation.evaluator import Evaluator
    from dml.run import builders, loop
    from dml.run.builders import build_metric_config
    from dml.training.embedders import CHOSEN_HEADS

    settings = compose_job(job)
    table, model = builders.build_table(settings), builders.build_model(settings)
    started = perf_counter()
    embedder = loop.build_embedder(settings, model)
    trainer = loop.build_testing_trainer(settings)
    trainer.test(embedder, loop.build_evaluation_data(settings, table), verbose=False)
    evaluator = Evaluator(table.select_evaluated("test"), build_metric_config(settings, table))
    metrics = evaluator.evaluate(embedder.embedded.embeddings[CHOSEN_HEADS]).metrics
    seconds = perf_counter() - started
    arrays = np.load(Path(job.folder, "embeddings.npz"))
    metrics_started = perf_counter()
    options: dict[str, Any] = {"metrics": ["recall", "map@r"], "recall_at": [1], "clustering": False}
    exported_metrics = evaluate_embeddings(arrays["embeddings"], arrays["labels"], **options)
    results: Results = {"evaluation_s": seconds, "metrics_s": perf_counter() - metrics_started}
    for name in ("recall@1", "map@r"):
        results[name], results[f"exported_{name}"] = metrics[f"level0/{name}"], exported_metrics[f"level0/{name}"]
    return results


if __name__ == "__main__":
    run_job({"train": run_command, "recall": run_command, "evaluate": evaluate})
