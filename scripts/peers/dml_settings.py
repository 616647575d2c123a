"""The overrides of dml's command line that make its training the one of the peers."""

from collections.abc import Sequence

from peers.protocol import (
    CLASSES_PER_BATCH,
    EMBED_DIM,
    EVAL_BATCH_SIZE,
    IMAGES_PER_CLASS,
    LEARNING_RATE,
    LOSS,
    NETWORK,
    WEIGHT_DECAY,
    Job,
)

RESIZE = "{_target_: dml.data.transforms.Resize, mode: warp, size: '${transform.size}'}"
FLIP = "{_target_: torchvision.transforms.v2.RandomHorizontalFlip, p: 0.5}"

SAME_TRAINING = (
    f"model={NETWORK}",
    "model.heads=[H]",
    "model.taps={H: pooled}",
    f"model.embed_dim={EMBED_DIM}",
    "model.backbone.freeze_batchnorm=null",
    "heads.initial=null",
    "training.proxies=null",
    "optimizer=adamw",
    f"optimizer.lr={LEARNING_RATE}",
    f"optimizer.weight_decay={WEIGHT_DECAY}",
    "optimizer.heads_lr_multiplier=1.0",
    "optimizer.loss=null",
    "scheduler=constant",
    f"sampler.classes_per_batch={CLASSES_PER_BATCH}",
    f"sampler.images_per_class={IMAGES_PER_CLASS}",
    f"transform.train.steps=[{RESIZE},{FLIP}]",
    f"transform.test.steps=[{RESIZE}]",
)
"""What the peers do too: the network, its weights, the batches, the transform, the optimizer."""

NO_MORE = (
    "evaluation.raw=false",
    "evaluation.sheet=null",
    "evaluation.report=null",
    "evaluation.threshold=null",
    "evaluation.metrics=[recall,map@r]",
    "evaluation.recall_at=[1]",
    "evaluation.clustering=false",
    "checkpoints.beginning=false",
    "checkpoints.patience=null",
)
"""What the peers don't do: an evaluation before the training, other metrics, pictures, early stopping."""


def list_overrides(job: Job) -> Sequence[str]:
    """Return the overrides of ``dml train`` for a job."""
    interval = str(job.every) if job.task == "recall" else "null"
    return (
        "dataset=csv",
        f'dataset.root="{job.folder}/images.csv"',
        "transform=emoji",
        f"transform.size={job.size}",
        f"loss={LOSS}",
        f"model.backbone.channels_last={str(job.channels_last).lower()}",
        f"data.num_workers={job.workers}",
        f"data.eval_batch_size={EVAL_BATCH_SIZE}",
        f"trainer.max_steps={job.steps}",
        f"trainer.val_check_interval={interval}",
        *SAME_TRAINING,
        *NO_MORE,
    )
