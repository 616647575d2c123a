"""A run in Weights & Biases: its configuration, its metrics, and pictures of what it retrieves."""

from pathlib import Path
from secrets import token_hex
from typing import Any

from lightning_fabric.loggers.logger import rank_zero_experiment
from PIL import Image
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from dml.data.images import read_image
from dml.evaluation.per_query import QueryTable
from dml.evaluation.report.sheets import choose, first_match, same_class, score_of
from dml.ops.files import replacing

ID_FILE = "wandb_id.txt"
LARGEST = (160, 160)  # pixels of a picture in the table


class RunFolderWandbLogger(WandbLogger):
    """Logs the run of a folder to one W&B run, which the run goes on with when it is resumed.

    Args:
        save_dir: the run folder. It keeps the W&B run's id in wandb_id.txt.
        id: id of the W&B run, in place of the one in wandb_id.txt.
        worst_queries: number of rows in the table of worst queries.
        neighbors: number of nearest images in each row of that table.
        **settings: arguments of Lightning's WandbLogger and of ``wandb.init``.
    """

    def __init__(
        self,
        save_dir: str,
        *,
        id: str | None = None,  # noqa: A002 (Lightning's name)
        worst_queries: int = 16,
        neighbors: int = 5,
        **settings: Any,
    ) -> None:
        super().__init__(save_dir=save_dir, id=id, **settings)
        if id is None:
            self._id = self._wandb_init["id"] = _run_id(Path(save_dir))
        if self._wandb_init.get("anonymous") is None:
            self._wandb_init.pop("anonymous", None)  # W&B warns of this argument whatever it is
        self.worst_queries, self.neighbors = worst_queries, neighbors

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The W&B run, begun when it is first asked for; another run of this process that is still open has failed."""
        import wandb

        if self._experiment is None and wandb.run is not None:
            if wandb.run.id == self._id:  # an earlier stage of this run
                self._experiment = wandb.run
            else:
                wandb.finish(exit_code=1)
        return super().experiment

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the W&B run of a training that failed; one that succeeded is still to be tested."""
        super().finalize(status)
        if status == "failed" and self._experiment is not None:
            self.close(exit_code=1)

    @rank_zero_only
    def close(self, exit_code: int = 0) -> None:
        """End the W&B run, so that the next run of this process begins its own."""
        self.experiment.finish(exit_code=exit_code)
        self._experiment = None

    @rank_zero_only
    def log_retrieval(self, picture: Path | None, queries: QueryTable | None) -> None:
        """Log the retrieval picture and the table of worst queries, those of them that there are.

        Args:
            picture: path of the retrieval picture; None if there is none.
            queries: the test's queries with their metrics and neighbours; None if there are none.
        """
        import wandb

        if picture is not None:
            self.experiment.log({"retrieval": wandb.Image(str(picture))})
        if queries is not None:
            self.experiment.log({"worst_queries": self._worst_queries(queries)})

    def _worst_queries(self, queries: QueryTable) -> Any:
        """The table: at most one query of a class, the worst first, each beside its nearest images."""
        import wandb

        score, same = score_of(queries), same_class(queries)
        shown = min(self.neighbors, queries.neighbors.shape[1])
        nearest = [f"neighbor {rank + 1}" for rank in range(shown)]
        table = wandb.Table(columns=["query", "class", score.name, "first match", *nearest])
        for row in choose(score.values, queries.labels[:, 0], self.worst_queries):
            captions = [
                f"{queries.class_name(int(labels[0]))} ({'same class' if is_same else 'another class'}, {cosine:.2f})"
                for labels, is_same, cosine in zip(
                    queries.neighbor_labels[row, :shown],
                    same[row, :shown],
                    queries.similarities[row, :shown],
                    strict=True,
                )
            ]
            name = queries.class_name(int(queries.labels[row, 0]))
            pictures = map(_picture, queries.neighbors[row, :shown].tolist(), captions)
            values = (name, float(score.values[row]), first_match(queries, row))
            table.add_data(_picture(queries.paths[row], name), *values, *pictures)
        return table


def _picture(path: str, caption: str) -> Any:
    import wandb

    picture = Image.fromarray(read_image(path).permute(1, 2, 0).contiguous().numpy())
    picture.thumbnail(LARGEST)
    return wandb.Image(picture, caption=caption)


@rank_zero_only
def _run_id(folder: Path) -> str:
    """The id in the folder's wandb_id.txt, which is written if there is none."""
    path = folder / ID_FILE
    if not path.exists():
        with replacing(path) as partial:
            partial.write_text(f"{token_hex(4)}\n")
    return path.read_text().strip()
