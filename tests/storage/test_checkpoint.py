from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from wdae.errors import StorageError
from wdae.storage.checkpoint import (
    Checkpoint,
    load_checkpoint,
    optimiser_tensors,
    restore_optimiser,
    save_checkpoint,
    section,
)


def model_and_data() -> tuple[nn.Module, Tensor]:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model, torch.randn(20, 8, 4, generator=generator)


def step(model: nn.Module, optimiser: torch.optim.Optimizer, batch: Tensor) -> None:
    optimiser.zero_grad()
    model(batch).square().mean().backward()
    optimiser.step()


OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
    "plain sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.95)),
    "adam with a tensor rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path, name: str) -> None:
    make = OPTIMISERS[name]
    model, data = model_and_data()
    optimiser = make(model.parameters())
    for batch in data[:10]:
        step(model, optimiser, batch)
    for group in optimiser.param_groups:
        group["lr"] = group["lr"] / 3  # as a schedule does
    tensors = section("model", model.state_dict()) | section("optimiser", optimiser_tensors(optimiser))
    save_checkpoint(tmp_path / "c", tensors, {"step": 10})
    for batch in data[10:]:
        step(model, optimiser, batch)

    resumed, _ = model_and_data()
    other = make(resumed.parameters())
    checkpoint = load_checkpoint(tmp_path / "c")
    resumed.load_state_dict(checkpoint.section("model"))
    restore_optimiser(other, checkpoint.section("optimiser"))
    assert float(other.param_groups[0]["lr"]) != float(make(resumed.parameters()).param_groups[0]["lr"])
    for batch in data[checkpoint.state["step"] :]:
        step(resumed, other, batch)
    for ours, theirs in zip(resumed.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def _forge(tensors: dict[str, Tensor], key: str, tensor: Tensor) -> dict[str, Tensor]:
    assert key in tensors or "other" in key or "params" in key
    return tensors | {key: tensor}


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 3), (12,), (1, 3, 4)])
def test_a_buffer_of_another_shape_than_its_parameter_is_refused(name: str, shape: tuple[int, ...]) -> None:
    """A fused step trusts the shapes: it would write beyond the end of a smaller buffer."""
    model, data = model_and_data()
    optimiser = OPTIMISERS[name](model.parameters())
    step(model, optimiser, data[0])
    whole = optimiser_tensors(optimiser)
    buffer = {"sgd": "momentum_buffer", "adamw": "exp_avg"}[name]
    forged = _forge(whole, f"state.0.tensor.{buffer}", torch.zeros(shape))
    with pytest.raises(StorageError, match=r"optimiser is altered.* has shape"):
        restore_optimiser(OPTIMISERS[name](model.parameters()), forged)
    with pytest.raises(StorageError, match=r"optimiser is altered"):
        restore_optimiser(
            OPTIMISERS[name](model.parameters()),
            _forge(whole, f"state.-1.tensor.{buffer}.other", whole["shape.0"]),
        )
    restore_optimiser(OPTIMISERS[name](model.parameters()), whole)


def test_a_group_takes_numbers_of_its_own_kind_only() -> None:
    model, data = model_and_data()
    make = OPTIMISERS["adamw"]
    optimiser = make(model.parameters())
    step(model, optimiser, data[0])
    whole = optimiser_tensors(optimiser)
    for key, value in (
        ("group.0.betas", torch.zeros(3)),
        ("group.0.lr", torch.zeros(2)),
        ("group.0.lr", torch.zeros(1)),
    ):
        with pytest.raises(StorageError, match="has shape"):
            restore_optimiser(make(model.parameters()), _forge(whole, key, value))
    other = make(model.parameters())
    forged = _forge(whole, "group.0.params", torch.tensor([7, 7, 7, 7]))
    forged = _forge(forged, "group.0.other", torch.tensor(1)) | {"group.0.maximize": torch.tensor(True)}
    restore_optimiser(other, forged)
    assert other.param_groups[0]["maximize"] is False and "other" not in other.param_groups[0]
    step(model, other, data[1])


def test_several_groups_keep_their_own_values() -> None:
    model, data = model_and_data()

    def make() -> torch.optim.Optimizer:
        groups = [{"params": [p], "lr": 0.1 / (i + 1)} for i, p in enumerate(model.parameters())]
        return torch.optim.SGD(groups, lr=1.0, momentum=0.9)

    optimiser = make()
    step(model, optimiser, data[0])
    optimiser.param_groups[2]["lr"] = 0.007
    other = make()
    restore_optimiser(other, optimiser_tensors(optimiser))
    assert [g["lr"] for g in other.param_groups] == [g["lr"] for g in optimiser.param_groups]
    assert [g["nesterov"] for g in other.param_groups] == [False] * 4


def test_state_and_odd_tensors_come_back(tmp_path: Path) -> None:
    state = {
        "step": 3,
        "best": 0.1 + 0.2,
        "loss": float("inf"),
        "recipe": {"name": "é", "list": [1, None, True]},
    }
    tensors = {
        "bf16": torch.randn(3, 2).bfloat16(),
        "scalar": torch.tensor(1.5, dtype=torch.float64),
        "empty": torch.zeros(0, 4),
        "flags": torch.tensor([True, False]),
        "turned": torch.arange(6).view(2, 3).T,
    }
    tensors["shared"] = tensors["bf16"]
    save_checkpoint(tmp_path / "c", tensors, state)
    back = load_checkpoint(tmp_path / "c")
    assert back.state == state
    assert back.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back.tensors[name].dtype == tensor.dtype
        assert torch.equal(back.tensors[name], tensor)


def test_what_was_loaded_is_not_the_file(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", {"a": torch.zeros(3)}, {})
    load_checkpoint(tmp_path / "c").tensors["a"].fill_(7)
    assert torch.equal(load_checkpoint(tmp_path / "c").tensors["a"], torch.zeros(3))


def test_sections_do_not_mix() -> None:
    tensors = section("a", {"x": torch.ones(1)}) | section("ab", {"x": torch.zeros(1)})
    assert Checkpoint(tensors, {}).section("a") == {"x": tensors["a/x"]}
