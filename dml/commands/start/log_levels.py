import logging
import warnings

EXPECTED = (
    r".*does not have many workers.*",  # two cores are enough for small images; data.num_workers says how many
    r".*module\(s\) in eval mode at the start of training.*",  # frozen batch normalization
    r"Checkpoint directory .* exists and is not empty.*",  # a resumed run
    r".*LeafSpec.*is deprecated.*",  # Lightning's own
    r"The dirpath has changed from .*",  # a run folder that was moved
    r"torch.distributed.nn.functional.all_gather is deprecated.*",  # Lightning's own
    r"It is recommended to use .*sync_dist=True.*",  # every process has the metrics of all
    r"The AccumulateGrad node's stream does not match.*",  # Lightning's own, with trainer=ddp on GPUs
    r"GPU available but not used.*",  # trainer.accelerator=cpu
    r"TensorFloat32 tensor cores .* available but not enabled.*",  # matmul_precision=high enables them
)


def quiet() -> None:
    """Silence the warnings of libraries about choices that are deliberate here."""
    for name in ("pytorch_lightning", "lightning_fabric", "faiss", "openTSNE", "matplotlib"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # torchmetrics, and so Lightning, imports it where it is installed; the first time it warns that this takes long
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    for message in EXPECTED:
        warnings.filterwarnings("ignore", message=message)
