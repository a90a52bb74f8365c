"""A WRN-10-1 with the layout of WRN-28-10 against the authors' implementation."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open

from wdae import backbones

FILE = Path(__file__).parent / "wide_resnet.safetensors"


def ours(theirs: str) -> str:
    """``group1.block0.conv1.weight`` to ``stages.1.blocks.0.conv1.weight``."""
    group, *rest = theirs.removeprefix("param.").split(".")
    path = ".".join(rest).replace("block", "blocks.")
    return f"stages.{group.removeprefix('group')}.{path}"


def test_golden_wide_resnet_features() -> None:
    with safe_open(FILE, framework="pt") as file:
        sizes = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    net = backbones.build(
        "wide-resnet",
        depth=int(sizes["depth"]),
        widen=int(sizes["widen"]),
        strides=[int(s) for s in sizes["strides"].split(",")],
    )
    parameters = {ours(name): value for name, value in tensors.items() if name.startswith("param.")}
    missing = {n for n in net.state_dict() if not n.endswith("num_batches_tracked")} ^ set(parameters)
    assert not missing
    net.load_state_dict(parameters, strict=False)
    with torch.no_grad():
        features = net.eval()(tensors["input.image"])
    assert float((features - tensors["eval.feature"]).abs().max()) < 1e-5
    # The file must be able to tell a wrong layout: a nudged weight moves the features by far more.
    with torch.no_grad():
        net.stages[1].blocks[0].bn2.weight.mul_(1.01)
        assert float((net(tensors["input.image"]) - tensors["eval.feature"]).abs().max()) > 1e-4
