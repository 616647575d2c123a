import pytest
import torch
from torch import nn

from dml.ops.errors import InputError
from dml.training.optimizers import change_settings, list_settings, optimizer_by_role


def roles() -> dict[str, list[nn.Parameter]]:
    return {name: [nn.Parameter(torch.ones(2))] for name in ("backbone", "heads", "loss")}


def groups(**settings: object) -> dict[str, dict[str, object]]:
    optimizer = optimizer_by_role(roles(), optimizer=torch.optim.SGD, lr=0.01, **settings)
    return {group["name"]: group for group in optimizer.param_groups}


def test_heads_learn_faster() -> None:
    found = groups(heads_lr_multiplier=10.0, momentum=0.9, weight_decay=2e-5)
    assert [found[name]["lr"] for name in ("backbone", "heads", "loss")] == pytest.approx([0.01, 0.1, 0.01])
    assert all(group["momentum"] == 0.9 and group["weight_decay"] == 2e-5 for group in found.values())


def test_a_loss_has_its_own_settings() -> None:
    found = groups(loss={"lr": 5.0, "weight_decay": 0.0}, weight_decay=0.1)
    assert (found["loss"]["lr"], found["loss"]["weight_decay"]) == (5.0, 0.0)
    assert found["backbone"]["weight_decay"] == 0.1


def test_what_asks_for_no_gradient_is_left_out() -> None:
    parameters = roles()
    parameters["backbone"][0].requires_grad_(False)
    parameters["loss"] = []
    optimizer = optimizer_by_role(parameters, optimizer=torch.optim.AdamW, lr=0.1)
    assert [group["name"] for group in optimizer.param_groups] == ["heads"]


def test_nothing_to_train_is_an_error() -> None:
    with pytest.raises(InputError, match="no parameter"):
        optimizer_by_role({"backbone": []}, optimizer=torch.optim.SGD, lr=0.1)


def test_a_setting_that_a_callback_has_moved_stays_as_it_is_stored() -> None:
    optimizer = optimizer_by_role(roles(), optimizer=torch.optim.SGD, lr=0.01, momentum=0.5)
    begun_with = list_settings(optimizer)
    for group in optimizer.param_groups:
        group["lr"] /= 2
    checkpoint = {"optimizer_settings": begun_with, "optimizer_states": [optimizer.state_dict()]}
    change_settings(checkpoint, optimizer_by_role(roles(), optimizer=torch.optim.SGD, lr=0.01, momentum=0.9))
    stored = checkpoint["optimizer_states"][0]["param_groups"]
    assert [group["lr"] for group in stored] == [0.005, 0.05, 0.005]
    assert [group["momentum"] for group in stored] == [0.9] * 3


def test_the_state_of_another_optimizer_is_refused() -> None:
    optimizer = optimizer_by_role(roles(), optimizer=torch.optim.Adam, lr=0.01)
    checkpoint = {"optimizer_settings": list_settings(optimizer), "optimizer_states": [optimizer.state_dict()]}
    with pytest.raises(InputError, match=r"optimizer\.optimizer=SGD: the run was trained with another optimizer"):
        change_settings(checkpoint, optimizer_by_role(roles(), optimizer=torch.optim.SGD, lr=0.01))
