import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from dml.losses.proxies import begin_at_class_means, proxy_sets
from dml.training.module import MetricLearner
from dml.training.storing import data_of, embed_training_images


class ProxiesAtClassMeans(Callback):
    """Before the first step turns the losses' proxies to where their classes are: `begin_at_class_means`.

    The embeddings are those of the network as it is then, in evaluation mode, with the test's transform. A run that
    is resumed goes on with the proxies of its checkpoint.
    """

    @torch.no_grad()
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Embeds the training images and turns the proxies."""
        assert isinstance(pl_module, MetricLearner)
        if trainer.global_step:
            return
        found = embed_training_images(trainer, pl_module, pl_module.embeddings)
        labels = torch.from_numpy(data_of(trainer).train_table.labels)[found.rows]
        for head, loss in pl_module.losses.items():
            begin_at_class_means(loss, found.embeddings[head], labels)
            for _, proxies in proxy_sets(loss):  # the processes' sums may have been rounded in other ways
                proxies.copy_(trainer.strategy.broadcast(proxies))
