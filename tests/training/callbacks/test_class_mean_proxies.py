from pathlib import Path

import torch
import torch.nn.functional as F
from configurations import settings_of
from conftest import ONE_HEAD, Here
from omegaconf import OmegaConf
from pytorch_lightning import seed_everything
from runs import last

from dml.run import builders, loop


def test_a_run_begins_with_the_means_of_its_own_network(here: Here, small_emoji: Path, tmp_path: Path) -> None:
    arguments = [
        *ONE_HEAD,
        "model.heads=[M,H]",
        f"dataset.root={small_emoji}",
        "loss=happier",
        "training.proxies=class_means",
    ]
    # nothing moves: the checkpoint holds what training began with
    arguments += ["optimizer=sgd", "optimizer.lr=0", "scheduler=constant", "training.gradient_cache=3"]
    here("train", *arguments, f"hydra.run.dir={tmp_path}", "trainer.max_steps=2")
    weights = last(tmp_path)["state_dict"]

    config = OmegaConf.load(tmp_path / ".hydra" / "config.yaml")
    seed_everything(config.seed, verbose=False)
    images = loop.build_data(settings_of(config), builders.build_table(settings_of(config)))
    model = builders.build_model(settings_of(config)).eval()
    with torch.no_grad():
        batches = [(model(pixels), labels[:, 0]) for pixels, labels, _ in images.training_images()]
    classes = torch.cat([labels for _, labels in batches])
    for head in config.model.heads:
        unit = F.normalize(torch.cat([found[head] for found, _ in batches]), dim=1)
        found = F.normalize(weights[f"losses.{head}.terms.cluster.proxies"], dim=1)
        assert len(found) == int(classes.max()) + 1
        means = torch.stack([unit[classes == own].mean(dim=0) for own in range(len(found))])
        torch.testing.assert_close(found, F.normalize(means, dim=1), atol=1e-5, rtol=1e-4)
