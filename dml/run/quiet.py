import logging
import warnings

EXPECTED = (
    r".*does not have many workers.*",  # two cores are enough for small images; data.num_workers says how many
    r".*module\(s\) in eval mode at the start of training.*",  # frozen batch normalisation
    r"Checkpoint directory .* exists and is not empty.*",  # a resumed run
    r".*LeafSpec.*is deprecated.*",  # Lightning's own
    r"The dirpath has changed from .*",  # a run folder that was moved
)


def quiet() -> None:
    """Silences what libraries say about choices that are deliberate here."""
    for name in ("pytorch_lightning", "faiss", "openTSNE"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in EXPECTED:
        warnings.filterwarnings("ignore", message=message)
