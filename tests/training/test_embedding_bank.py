from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pytorch_lightning import Callback, LightningDataModule, Trainer
from torch import Tensor, nn
from trainers import small_trainer

from dml.data.dataset import BatchDataset
from dml.data.stream import BatchStream
from dml.losses.compose import WeightedSum
from dml.losses.regularizers import EmbeddingDrift
from dml.losses.tuplet import TupletLoss
from dml.models.backbone import Backbone
from dml.models.embedding import EmbeddingModel
from dml.models.heads import PoolHead
from dml.models.recurrent import RecurrentEmbedding, RecurrentModel
from dml.ops.training_protocols import EmbeddingBank
from dml.runtime.errors import InputError
from dml.samplers.hard_class import HardClassSampler
from dml.samplers.local_neighborhood import LocalNeighborhoodSampler, hard_shares
from dml.training.callbacks.embedding_bank import EmbeddingBankUpdates, HeadBank, find_neighbors
from dml.training.callbacks.process_state import StepSeed
from dml.training.embedders import CHOSEN_HEADS, Embedded
from dml.training.module import MetricLearner
from dml.training.optimizers import optimizer_by_role
from dml.training.recurrent_learner import RecurrentLearner, read_neighborhoods

pytestmark = pytest.mark.filterwarnings("ignore:You defined a .validation_step. but have no .val_dataloader.")

ROWS, NEIGHBORS = 24, 5
LABELS = np.stack([np.arange(ROWS) % 6, np.arange(ROWS) % 2], axis=1)
IMAGES = torch.randint(0, 256, (ROWS, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def network() -> EmbeddingModel:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1))
    backbone = Backbone(nn.Sequential(*layers, nn.Flatten()), mean=(0.5,) * 3, std=(0.5,) * 3)
    taps, heads = {"L": "1", "H": "3"}, {"L": PoolHead, "H": PoolHead}
    return EmbeddingModel(backbone, taps=taps, head=heads, heads=["L", "H"], embed_dim=4, image_size=8)


def recurrent_network(order: Any = "nearest_first") -> RecurrentModel:
    def recurrent(size: int, embed_dim: int) -> RecurrentEmbedding:
        return RecurrentEmbedding(size, embed_dim, hidden_size=3, order=order)

    torch.manual_seed(0)
    return RecurrentModel(network(), network(), recurrent=recurrent, neighbors=NEIGHBORS)


class Rows(BatchDataset):
    """The images above, by `Draw`."""

    def __getitem__(self, draw: Any) -> tuple[Tensor, Tensor, int]:
        return IMAGES[draw[0]], torch.from_numpy(LABELS)[draw[0]], draw[0]


class Images(LightningDataModule):
    """As much of a `DataModule` as the callback uses, over the images above."""

    batches_between_bank_updates: int | None = None

    def __init__(self, sampler: Any, num_workers: int = 0) -> None:
        super().__init__()
        self.sampler, self.num_workers = sampler, num_workers
        self.train_table = type("Table", (), {"labels": LABELS, "__len__": lambda _: ROWS})()
        self.readable = torch.arange(ROWS)

    def training_images(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for rows in self.readable.split(7):
            yield IMAGES[rows], torch.from_numpy(LABELS)[rows], rows

    def train_dataloader(self) -> BatchStream:
        dataset: Any = Rows()
        settings = {"num_workers": self.num_workers, "pause_every": self.batches_between_bank_updates}
        self.stream = BatchStream(dataset, self.sampler, seed=0, **settings)
        return self.stream

    def teardown(self, stage: str) -> None:
        """End the worker, which the garbage collector would wait seven seconds for, in any later test."""
        self.stream.close()


class Recorder(Callback):
    """Notes what is stored, the weights, and the batch at each step's start."""

    def __init__(self, updates: EmbeddingBankUpdates) -> None:
        self.updates = updates
        self.banks: list[HeadBank] = []
        self.weights: list[dict[str, Tensor]] = []
        self.batches: list[list[int]] = []
        self.logged: list[dict[str, float]] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        assert self.updates.bank is not None
        assert pl_module.training
        self.banks.append(self.updates.bank)
        self.weights.append({name: value.clone() for name, value in pl_module.model.state_dict().items()})
        self.batches.append(batch[2].tolist())

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.logged.append({name: float(value) for name, value in trainer.logged_metrics.items()})


def fit(
    model: Any,
    sampler: Any,
    steps: int,
    every_n_steps: int | None = None,
    kind: type[MetricLearner] = MetricLearner,
    lr: float = 0.01,
    log_every_n_steps: int = 1,
    updates: EmbeddingBankUpdates | None = None,
) -> tuple[Recorder, MetricLearner]:
    def optimizer(roles: Any) -> torch.optim.Optimizer:
        return optimizer_by_role(roles, optimizer=torch.optim.SGD, lr=lr)

    def loss() -> nn.Module:
        return WeightedSum({"tuplet": TupletLoss(), "drift": EmbeddingDrift()}, {"tuplet": 1.0, "drift": 0.3})

    module = kind(
        model, {"L": loss(), "H": loss()}, optimizer=optimizer, schedule=None, evaluate=lambda rows, labels: {}
    )
    updates = updates or EmbeddingBankUpdates(every_n_steps)
    recorder = Recorder(updates)
    callbacks = [StepSeed(3), updates, recorder]
    trainer = small_trainer(steps, log_every_n_steps=log_every_n_steps, callbacks=callbacks)
    trainer.fit(module, datamodule=sampler if isinstance(sampler, Images) else Images(sampler))
    return recorder, module


def neighborhoods(**settings: Any) -> LocalNeighborhoodSampler:
    settings = {"num_neighbors": NEIGHBORS} | settings
    return LocalNeighborhoodSampler(LABELS, batch_size=8, batches_per_epoch=2, **settings)


def by_hand(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """Embeddings and neighbors of all training images by a network with these weights."""
    model = network().eval()
    model.load_state_dict(weights)
    with torch.no_grad():
        embeddings = model(IMAGES)
        unit = F.normalize(torch.cat([F.normalize(embeddings[head], dim=1) for head in ("L", "H")], dim=1), dim=1)
    cosines = (unit @ unit.T).fill_diagonal_(-2)
    return embeddings, cosines.argsort(dim=1, descending=True, stable=True)[:, :NEIGHBORS]


def test_what_is_stored_is_the_training_set_before_the_first_step() -> None:
    torch.manual_seed(0)
    recorder, module = fit(network(), neighborhoods(), 3)
    embeddings, neighbors = by_hand(recorder.weights[0])
    for stored in recorder.banks:
        assert stored.neighbors.tolist() == neighbors.tolist()
        for head in ("L", "H"):
            torch.testing.assert_close(stored.embeddings[head], embeddings[head])
            assert module.losses[head].terms["drift"].stored is recorder.banks[-1].embeddings[head]
    expected = neighborhoods(neighbors=neighbors.numpy())
    assert recorder.batches[:2] == list(expected)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_it_is_stored_again_every_n_steps_and_used_from_then_on(num_workers: int) -> None:
    torch.manual_seed(0)
    recorder, _ = fit(network(), Images(neighborhoods(), num_workers), 6, every_n_steps=2, lr=1.0)
    assert not torch.equal(recorder.banks[0].neighbors, recorder.banks[2].neighbors)
    for step in range(6):
        _, neighbors = by_hand(recorder.weights[step - step % 2])
        assert recorder.banks[step].neighbors.tolist() == neighbors.tolist()
        expected = neighborhoods(neighbors=neighbors.numpy())
        expected.set_epoch(step // 2)
        assert recorder.batches[step] == list(expected)[step % 2]
    assert recorder.banks[0] is recorder.banks[1] is not recorder.banks[2]


@pytest.mark.parametrize("every", [1, 2])
def test_the_shares_of_each_batch_that_is_logged_are_its_own(every: int) -> None:
    recorder, _ = fit(network(), neighborhoods(), 3, log_every_n_steps=every)
    logged_steps = (0, 1, 2) if every == 1 else (1, 2)  # and the last one
    for step in logged_steps:
        shares = hard_shares(LABELS, recorder.banks[step].neighbors, recorder.batches[step])._asdict()
        expected = {f"batch/{name}": pytest.approx(value) for name, value in shares.items()}
        assert {name: recorder.logged[step][name] for name in expected} == expected


def test_a_prolonged_run_makes_up_for_the_update_of_its_last_step() -> None:
    torch.manual_seed(0)
    whole, _ = fit(network(), neighborhoods(), 4, every_n_steps=2)
    torch.manual_seed(0)
    part, module = fit(network(), neighborhoods(), 2, every_n_steps=2)
    state = part.updates.state_dict()
    assert state["is_outdated"]
    updates = EmbeddingBankUpdates(every_n_steps=2)
    updates.load_state_dict(state)
    prolonged, _ = fit(module.model, neighborhoods(), 1, updates=updates)
    torch.testing.assert_close(prolonged.banks[0].embeddings["H"], whole.banks[2].embeddings["H"])
    assert not prolonged.updates.state_dict()["is_outdated"]


def test_an_image_that_cannot_be_read_is_nobodys_neighbor() -> None:
    images = Images(neighborhoods())
    images.readable = torch.tensor([row for row in range(ROWS) if row != 7])
    torch.manual_seed(0)
    recorder, _ = fit(network(), images, 1)
    assert recorder.banks[0].embeddings["H"][7].tolist() == [0.0] * 4
    others = recorder.banks[0].neighbors[[row for row in range(ROWS) if row != 7]]
    assert (others == 7).float().mean() < 0.1


def test_the_hard_class_sampler_gets_the_embeddings_of_all_heads() -> None:
    def sampler(**settings: Any) -> HardClassSampler:
        return HardClassSampler(LABELS, 3, 2, margin=0.0, candidate_classes=6, batches_per_epoch=2, **settings)

    torch.manual_seed(0)
    recorder, _ = fit(network(), sampler(), 2)
    embeddings, _ = by_hand(recorder.weights[0])
    unit = F.normalize(torch.cat([F.normalize(embeddings[head], dim=1) for head in ("L", "H")], dim=1), dim=1)
    assert recorder.batches == list(sampler(embeddings=unit))
    assert recorder.batches != list(sampler())
    assert recorder.banks[0].neighbors.shape == (ROWS, 0)  # nobody asked for any


def test_a_class_is_not_hard_by_an_image_that_cannot_be_read() -> None:
    """Its embedding is 0 in the bank, nearer to all others than these are to each other."""
    labels = np.repeat(np.arange(3), 2)[:, None]
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-0.6, 0.8], [-0.6, 0.8], [0.0, 0.0], [-1.0, 0.0]])
    sampler = HardClassSampler(labels, 2, batches_per_epoch=60)
    sampler.set_embedding_bank(EmbeddingBank(rows))
    chosen = {tuple(labels[batch[::2], 0].tolist()) for batch in sampler}
    assert (0, 1) in chosen
    assert (0, 2) not in chosen


def test_an_interval_within_an_epoch_is_refused() -> None:
    line = "training.bank_every_n_steps=3: .* has 2 batches an epoch; sampler.batches_per_epoch=3 would do"
    with pytest.raises(InputError, match=line):
        fit(network(), neighborhoods(), 1, every_n_steps=3)


def loop(model: RecurrentModel, rows: Tensor, among: Tensor) -> dict[str, Tensor]:
    """g of some rows by their nearest among others of the images, one by one."""
    with torch.no_grad():
        stored, centers = model.pretrained(IMAGES), model.cnn(IMAGES)
        unit = model.pretrained.concatenate(stored)
        embeddings: dict[str, list[Tensor]] = {"L": [], "H": []}
        for row in rows.tolist():
            others = among[among != row]
            near = others[(unit[others] @ unit[row]).argsort(descending=True)[:NEIGHBORS]]
            for head, found in embeddings.items():
                found.append(model.recurrent[head](centers[head][[row]], stored[head][near][None])[0])
    return {head: torch.stack(found) for head, found in embeddings.items()}


def changed(model: RecurrentModel) -> RecurrentModel:
    """With another network in training than the one before it."""
    with torch.no_grad():
        for parameter in model.cnn.parameters():
            parameter.mul_(1.2)
    return model.eval()


def test_a_recurrent_model_learns_with_the_neighbors_that_its_pretrained_network_stored() -> None:
    sampler = neighborhoods(num_neighbors=NEIGHBORS + 2)  # the model reads as many as in a test
    recorder, module = fit(recurrent_network(), sampler, 3, kind=RecurrentLearner)
    prefix = "pretrained."
    weights = {name.removeprefix(prefix): own for name, own in recorder.weights[-1].items() if name.startswith(prefix)}
    embeddings, neighbors = by_hand(weights)
    assert recorder.banks[0].neighbors[:, :NEIGHBORS].tolist() == neighbors.tolist()
    torch.testing.assert_close(recorder.banks[0].embeddings["H"], embeddings["H"])
    rows = torch.tensor([3, 9, 1])
    module.eval()
    found = module.embed_for_loss(IMAGES[rows], rows)
    for head, expected in loop(module.model, rows, torch.arange(ROWS)).items():
        torch.testing.assert_close(found[head], expected)
    before, after = recorder.weights[0], recorder.weights[-1]
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert not any(name.startswith(prefix) for name in moved)
    assert {name.split(".")[0] for name in moved} == {"cnn", "recurrent"}


def test_at_test_neighbors_come_from_an_images_own_split() -> None:
    model = changed(recurrent_network())
    rows = torch.arange(ROWS)
    splits = np.where(np.arange(ROWS) % 3 == 0, "query", "gallery")

    class Learner(RecurrentLearner):
        def _splits(self, rows: Tensor) -> Any:
            return splits[rows.numpy()]

    module = Learner(model, {}, optimizer=lambda roles: None, schedule=None, evaluate=lambda rows, labels: {})
    with torch.no_grad():
        found = module.finalize(Embedded(module.embed_images(IMAGES), rows)).embeddings
    for split in ("query", "gallery"):
        own = torch.from_numpy(np.flatnonzero(splits == split))
        expected = loop(model, own, own)
        for head in ("L", "H"):
            torch.testing.assert_close(found[head][own], F.normalize(expected[head], dim=1))
        torch.testing.assert_close(found[CHOSEN_HEADS][own], model.concatenate(expected))


def test_a_random_order_is_the_same_in_every_test() -> None:
    model = changed(recurrent_network("random"))
    with torch.no_grad():
        stored = find_neighbors(model, model.pretrained(IMAGES), NEIGHBORS)
        centers = model.cnn(IMAGES)
    torch.manual_seed(1)
    first = read_neighborhoods(model, centers, stored)
    torch.manual_seed(2)
    assert torch.equal(read_neighborhoods(model, centers, stored)["H"], first["H"])
