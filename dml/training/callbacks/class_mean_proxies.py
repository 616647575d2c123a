import torch
from pytorch_lightning import Callback, LightningModule, Trainer

from dml.losses.proxies import begin_at_class_means, count_classes, proxy_sets
from dml.training.callbacks.embedding_bank_updates import embed_training_images, get_training_data
from dml.training.module import MetricLearner


def make_class_mean_proxies(proxies: str | None) -> "ProxiesAtClassMeans | None":
    """Make the callback of ``proxies``; return None if the losses draw their proxies themselves."""
    return ProxiesAtClassMeans() if proxies else None


class ProxiesAtClassMeans(Callback):
    """Sets the proxies of the losses to the mean embeddings of their classes before the first step.

    See `dml.losses.proxies.begin_at_class_means`. The embeddings are computed from the network before training, in
    evaluation mode and with the transform of a test. A resumed run uses the proxies of its checkpoint.
    """

    @torch.no_grad()
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Embed the training images and set the proxies, unless the run was resumed."""
        assert isinstance(pl_module, MetricLearner)
        if trainer.global_step:
            return
        all_labels = get_training_data(trainer).train_table.labels
        num_classes, embed_dims = count_classes(all_labels), pl_module.model.embed_dims
        sets = {head: [*proxy_sets(loss, num_classes, embed_dims[head])] for head, loss in pl_module.losses.items()}
        if not any(sets.values()):
            return
        embedded = embed_training_images(trainer, pl_module, pl_module.embed_for_loss)
        labels = torch.from_numpy(all_labels)[embedded.rows]
        for head, head_sets in sets.items():
            begin_at_class_means(head_sets, embedded.embeddings[head], labels)
            for _, proxies in head_sets:  # The sums may be rounded differently in each process.
                # from the CPU: they are pickled, and tensors of the first GPU would take all processes there
                proxies.copy_(trainer.strategy.broadcast(proxies.cpu()))
