from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

from wdae import backbones
from wdae.backbones import Backbone
from wdae.backbones.embed import embed, folded
from wdae.backbones.second_order import distance_covariances
from wdae.classifier.picture_backbone import PictureBackbone
from wdae.config.augment import AugmentConfig
from wdae.errors import RecipeError, WdaeError

SIZES = {  # name: features, parameters, side after the last stage at the default size
    "conv4-32": (800, 28_768),
    "conv4-64": (1600, 112_832),
    "conv4-256": (6400, 463_616),
    "conv4-512": (512, 2_603_872),
    "efficientnet-lite0": (1280, 3_371_008),
    "resnet10": (512, 4_905_792),
    "resnet12": (640, 12_424_320),
    "resnet12-512": (512, 7_996_800),
    "resnet12-bdc": (1784, 11_632_097),
    "wrn-28-10": (640, 36_472_784),
}


def test_every_registered_backbone_is_in_the_table() -> None:
    assert set(backbones.names()) == {*SIZES, "wide-resnet"}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    dim, parameters = SIZES[name]
    net = backbones.build(name)
    assert (net.feature_dim, sum(p.numel() for p in net.parameters())) == (dim, parameters)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("conv4-64", {"image_size": 32}),
        ("conv4-512", {"image_size": 32}),
        ("conv4-256", {"image_size": 32, "final_relu": True, "leak": 0.2, "dropout": [0, 0, 0.4, 0.5]}),
        ("efficientnet-lite0", {"image_size": 64}),
        ("resnet10", {"image_size": 64}),
        ("resnet10", {"image_size": 32, "stem": "small"}),
        ("resnet12", {"image_size": 32, "dropout": 0.1}),
        ("resnet12", {"image_size": 32, "widths": [8, 16, 24, 40]}),
        ("resnet12-512", {"image_size": 32}),
        ("resnet12-bdc", {"image_size": 32, "dropout": 0.1, "widths": [8, 16, 24, 40], "channels": 6}),
        ("wide-resnet", {"depth": 10, "widen": 1, "dropout": 0.3, "image_size": 32}),
    ],
)
def test_forward_gives_one_vector_a_picture_with_gradients(name: str, options: dict[str, object]) -> None:
    net = backbones.build(name, **options)
    images = torch.randn(2, 3, net.image_size, net.image_size, generator=torch.Generator().manual_seed(0))
    features = net(images)
    assert features.shape == (2, net.feature_dim)
    features.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())
    # The chain of stages is the whole network.
    net.eval()
    hidden = images
    for stage in net.stages:
        hidden = stage(hidden)
    assert torch.equal(net.pooled(hidden), net(images))


def test_resnet10_features_take_both_signs_and_resnet12_average_positions() -> None:
    images = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    assert (backbones.build("resnet10", image_size=64)(images) < 0).any()
    net = backbones.build("resnet12-512", image_size=64).eval()
    hidden = images
    for stage in net.stages:
        hidden = stage(hidden)
    assert hidden.shape[-2:] == (4, 4)
    assert torch.allclose(net(images), F.adaptive_avg_pool2d(hidden, 1).flatten(1), atol=1e-6)


@pytest.mark.parametrize("name", ["conv4-64", "resnet12-512", "resnet12-bdc", "resnet10", "wrn-28-10"])
def test_a_folded_backbone_gives_the_same_features(name: str) -> None:
    torch.manual_seed(0)
    options = {"depth": 10, "widen": 1} if name.startswith("wrn") else {}
    backbone = backbones.build("wide-resnet" if options else name, image_size=32, **options)
    with torch.no_grad():
        for part in backbone.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                for values in (part.weight, part.bias, part.running_mean, part.running_var):
                    values.uniform_(0.5, 1.5)
        images = torch.randn(3, 3, 32, 32)
        quick = folded(backbone.train())
        assert not quick.training and backbone.training
        plain = backbone.eval()(images)
        assert torch.allclose(quick(images), plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))
    left, before = (
        sum(isinstance(part, torch.nn.BatchNorm2d) for part in network.modules())
        for network in (quick, backbone)
    )
    assert left == 0 if name.startswith("resnet") else left <= before


def test_distance_covariances_are_those_of_the_definition() -> None:
    maps = torch.rand(3, 5, 4, 4, generator=torch.Generator().manual_seed(0))
    found = distance_covariances(maps, torch.tensor([0.5]))
    rows, (i, j) = maps.flatten(2), torch.triu_indices(5, 5)
    for picture in range(3):
        # Pairs of channels as vectors over the 16 positions; the added 0.001 is the function's own.
        apart = torch.cdist(rows[picture, None].double(), rows[picture, None].double())[0]
        distance = (0.5 * apart**2 / 16 + 1e-3).sqrt()
        centred = distance - distance.mean(0) - distance.mean(1)[:, None] + distance.mean()
        assert torch.allclose(found[picture].double(), centred[i, j], atol=1e-5)
        assert torch.allclose(centred.sum(0), torch.zeros(5, dtype=torch.float64), atol=1e-9)


def test_the_mean_and_the_covariances_of_resnet12_bdc_have_the_same_length_in_any_precision() -> None:
    net = backbones.build("resnet12-bdc", image_size=32, widths=[8, 16, 24, 40], channels=6)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    for half in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            features = net(images)
        assert features.shape == (4, 40 + 21) and features.dtype == torch.float32
        for part in (features[:, :40], features[:, 40:]):
            assert torch.allclose(part.norm(dim=1), torch.full((4,), 10.0), atol=1e-3)


def test_flops_of_a_plain_count() -> None:
    net = backbones.build("conv4-64", image_size=16)
    by_hand = sum(2 * 9 * inp * 64 * side**2 for inp, side in ((3, 16), (64, 8), (64, 4), (64, 2)))
    assert backbones.forward_flops(net) == by_hand


def test_unknown_names_and_options_are_refused_with_a_hint() -> None:
    with pytest.raises(RecipeError, match="did you mean 'wrn-28-10'"):
        backbones.build("wrn-28-1O")
    with pytest.raises(RecipeError, match="no option 'droput'; did you mean 'dropout'"):
        backbones.build("wrn-28-10", droput=0.1)
    with pytest.raises(RecipeError, match="depth is 27"):
        backbones.build("wide-resnet", depth=27)
    with pytest.raises(RecipeError, match="stem is 'big'"):
        backbones.build("resnet10", stem="big")


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_nets.py").write_text(
        "from torch import nn\n"
        "def net(width=7):\n"
        "    return nn.Conv2d(3, width, 3, stride=2)\n"
        "def sequence():\n"
        "    return nn.LSTM(16, 4)\n"
        "number = lambda: 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_nets", raising=False)
    return "own_nets"


def test_own_factory(own_module: str) -> None:
    net = backbones.build(f"{own_module}:net", width=5, image_size=16)
    assert (net.feature_dim, net.image_size) == (5, 16)
    assert net(torch.zeros(2, 3, 16, 16)).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("own_nets:nothing", {}, "has no 'nothing'"),
        ("no_such_pkg.mod:net", {}, "cannot import"),
        ("own_nets:number", {}, "gave a int"),
        ("own_nets:net", {"colour": 3}, "does not take the options"),
    ],
)
@pytest.mark.usefixtures("own_module")
def test_bad_factories_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        backbones.build(name, **options)


@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_absent_libraries_are_named(library: str) -> None:
    if importlib.util.find_spec(library):
        pytest.skip(f"{library} is installed")
    with pytest.raises(WdaeError, match=f"pip install {library}"):
        backbones.build(f"{library}:anything")


def test_a_block_of_conv4_loses_whole_maps_in_training_alone_and_leaks() -> None:
    net = backbones.build("conv4-256", image_size=32, final_relu=True, leak=0.2, dropout=[0, 0, 0, 0.5])
    torch.manual_seed(0)
    images = torch.randn(8, 3, 32, 32)
    maps = net(images).view(8, 256, 4)
    lost = (maps == 0).all(-1)
    assert 0.4 < float(lost.float().mean()) < 0.6 and not (maps[~lost] == 0).any()
    kept = net.eval()(images)
    assert not (kept == 0).any() and float(kept.detach().min()) < 0
    plain = backbones.build("conv4-256", image_size=32, final_relu=True).eval()
    plain.load_state_dict(net.state_dict())
    assert float(plain(images).detach().min()) == 0


def test_shares_of_dropout_are_one_for_each_block() -> None:
    for shares in ([0.5], [0, 0, 0, 1.0]):
        with pytest.raises(RecipeError, match="give 4 shares"):
            backbones.build("conv4-256", dropout=shares)


def counted(net: Backbone) -> list[int]:
    """How many pictures reach the first convolution each time."""
    seen: list[int] = []
    first = next(part for part in net.modules() if isinstance(part, nn.Conv2d))
    first.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    return seen


def test_a_cpu_embeds_few_large_pictures_at_once_and_no_filling() -> None:
    net = backbones.build("conv4-64", image_size=112, pool="mean").eval()
    seen = counted(net)
    images = torch.randint(0, 256, (40, 3, 112, 112), dtype=torch.uint8)
    cpu, look = torch.device("cpu"), AugmentConfig(size=112)
    few = embed(net, images, look, device=cpu, precision="float32")
    assert seen == [16, 16, 8]
    one_by_one = embed(net, images, look, device=cpu, batch=1, precision="float32")
    torch.testing.assert_close(few, one_by_one, rtol=1e-4, atol=1e-5)


def test_pictures_of_a_practitioner_are_embedded_few_at_once_too(tmp_path: Path) -> None:
    net = backbones.build("conv4-64", image_size=224, pool="mean").eval()
    seen = counted(net)
    backbone = PictureBackbone.of(net, "conv4-64", {"image_size": 224, "pool": "mean"})
    for number in range(6):
        Image.new("RGB", (224, 224), (40 * number, 0, 0)).save(tmp_path / f"{number}.png")
    assert len(backbone.features(sorted(tmp_path.iterdir()))) == 6
    assert seen == [4, 2]
