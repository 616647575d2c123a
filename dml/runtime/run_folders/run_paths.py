"""The names of the files in the folder of a run."""

from pathlib import Path


class RunPaths:
    """The paths of the files of a run, none of which need exist.

    Args:
        path: path of the folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def last_checkpoint(self) -> Path:
        """The path of the checkpoint from which the run is resumed."""
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def best_checkpoint(self) -> Path:
        """The path of the checkpoint with the best validation."""
        return self.path / "checkpoints" / "best.ckpt"

    @property
    def metrics_file(self) -> Path:
        """The path of the final metrics, which are written after all other files."""
        return self.path / "metrics.json"

    @property
    def history_file(self) -> Path:
        """The path of the history: the metrics over the steps."""
        return self.path / "metrics.csv"

    @property
    def raw_metrics_file(self) -> Path:
        """The path of the metrics of the backbone's features, which are computed before the first step."""
        return self.path / "raw_metrics.json"

    @property
    def queries_file(self) -> Path:
        """The path of the table of each test query's metrics and nearest neighbors."""
        return self.path / "per_query.parquet"

    @property
    def report_file(self) -> Path:
        """The path of the report."""
        return self.path / "report.html"

    @property
    def picture_file(self) -> Path:
        """The path of the picture of some queries and their nearest neighbors."""
        return self.path / "retrieval.png"

    @property
    def threshold_curves_file(self) -> Path:
        """The path of the error rates of all thresholds, which the report draws."""
        return self.path / "threshold_curves.json"

    @property
    def compression_file(self) -> Path:
        """The path of the metrics of smaller vectors, which ``dml compress`` writes."""
        return self.path / "compression.json"

    @property
    def fixed_neighbors_file(self) -> Path:
        """The path of the test images' neighbors before the last stage (``evaluation.fixed_neighbors``)."""
        return self.path / "fixed_neighbors.npz"

    @property
    def evaluations_folder(self) -> Path:
        """The path of the folder of the evaluations of the run's checkpoints."""
        return self.path / "evaluations"

    @property
    def splits_file(self) -> Path:
        """The path of the summary of the data set that the run began with."""
        return self.path / "splits.json"

    @property
    def config_file(self) -> Path:
        """The path of the configuration, in which interpolations aren't resolved."""
        return self.path / ".hydra" / "config.yaml"

    @property
    def hydra_file(self) -> Path:
        """The path of Hydra's configuration, which holds the choice of each configuration group."""
        return self.path / ".hydra" / "hydra.yaml"

    @property
    def overrides_file(self) -> Path:
        """The path of the overrides: the arguments of the command line."""
        return self.path / ".hydra" / "overrides.yaml"
