"""The exchange of tensors between the processes of a training, and the losses of a batch that several have embedded."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from dml.losses.loss_contract import check_value, loss_value, takes_queries
from dml.ops.pairs import ALL


def gather_batch(module: LightningModule, part: Tensor) -> Tensor:
    """Concatenate the parts (B, ...) of a batch of all processes, with gradients; all processes have the same B.

    The backward pass adds up the gradients of all W processes; DistributedDataParallel takes the mean. So a loss of the
    whole batch, which each process computes, has its gradient.
    """
    if module.trainer.world_size == 1:
        return part
    return _gather(module, part, with_gradients=part.is_floating_point()).flatten(0, 1)


def gather_rows(module: LightningModule, part: Tensor) -> Tensor:
    """Concatenate the tensors (N, ...) of all processes, without gradients; N may differ between them."""
    lengths = _gather(module, torch.tensor(len(part), device=module.device))
    padding = part.new_zeros(int(lengths.max()) - len(part), *part.shape[1:])
    gathered = _gather(module, torch.cat([part, padding]))
    return torch.cat([rows[:length] for rows, length in zip(gathered, lengths.tolist(), strict=True)])


def _gather(module: LightningModule, part: Tensor, *, with_gradients: bool = False) -> Tensor:
    return cast(Tensor, module.all_gather(part, sync_grads=with_gradients))


def compute_losses(
    module: LightningModule,
    losses: Mapping[str, nn.Module],
    embeddings: Mapping[str, Tensor],
    labels: Tensor,
    rows: Tensor,
    *,
    shard: bool,
) -> dict[str, Tensor]:
    """Compute each head's loss of the batch of all processes -> scalars by head, the same in all processes.

    The mean of the gradients over the W processes is the gradient of the whole batch, as DistributedDataParallel
    expects. Without ``shard`` each process computes the whole loss, see `gather_batch`. With ``shard`` a loss that
    takes queries computes its mean over the B / W rows of its own process, each compared with all B rows. The mean of
    these W values is the loss; each value is replaced by it, and keeps the gradient of its own process.

    Args:
        module: module that the trainer runs.
        losses: losses by head.
        embeddings: embeddings (B / W, D) of this process by head; all processes have the same number of rows.
        labels: labels (B / W,) or (B / W, L) of this process.
        rows: (B / W,) rows of the images of this process in the training table.
        shard: whether losses that take queries compute the terms of this process's rows alone.
    """
    is_sharded = shard and module.trainer.world_size > 1 and any(takes_queries(losses[head]) for head in embeddings)
    queries = ALL
    if is_sharded:
        first = module.global_rank * len(rows)
        queries = slice(first, first + len(rows))
    all_labels, all_rows = gather_batch(module, labels), gather_batch(module, rows)
    terms = [
        loss_value(losses[head], gather_batch(module, part), all_labels, all_rows, queries)
        for head, part in embeddings.items()
    ]
    if torch.is_grad_enabled() and not any(term.requires_grad for term in terms):
        check_value(losses[next(iter(embeddings))], terms[0], learns=True)
    if is_sharded:
        own_values = torch.stack(terms)
        mean_values = _gather(module, own_values.detach()).reshape(-1, *own_values.shape).mean(dim=0)
        terms = [*(mean_values + (own_values - own_values.detach()))]  # plus 0, which has the gradient
    if module.trainer.world_size > 1 and torch.is_grad_enabled():
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        terms[0] = _ConnectedValue.apply(terms[0], *trained)
    return dict(zip(embeddings, terms, strict=True))


class _ConnectedValue(torch.autograd.Function):
    """Connects a value () with all parameters, to which the backward pass has to come; DistributedDataParallel waits.

    To add ``0.0 * parameter.sum()`` would do so too, but a NaN in the parameter would become one of the loss.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, *parameters: nn.Parameter) -> Tensor:
        ctx.num_parameters = len(parameters)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, *(None,) * ctx.num_parameters
