"""What is trained on episodes of pictures: a backbone below a head, or a network adapted as a whole."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wdae import backbones
from wdae.backbones import Backbone
from wdae.backbones.embed import eager_features
from wdae.config.text import kind as kind_of
from wdae.episodic.config import EpisodicRecipe
from wdae.episodic.heads import HEADS, EpisodeHead
from wdae.errors import RecipeError, nearest
from wdae.nn.inner_loop import gradient_steps, support_loss
from wdae.runtime.device import full_precision


class EpisodicLearner(nn.Module):
    """Pictures to scores of an episode's queries, in two steps: each picture alone, then together.

    ``transductive``: whether the queries of an episode inform each other in the test. ``recorded``: whether a
    step in training is the same kernels each time and changes nothing but gradients, so that a GPU can repeat
    a record of it.
    """

    transductive: ClassVar[bool] = False
    recorded: ClassVar[bool] = False

    @abstractmethod
    def embed(self, pictures: Tensor) -> Tensor:
        """What each picture alone becomes: ``[B, 3, S, S]`` to ``[B, D]`` float32."""

    @abstractmethod
    def score(self, support: Tensor, queries: Tensor) -> Tensor:
        """Support ``[E, n, K, D]``, queries ``[E, Q, D]`` to scores ``[E, Q, n]`` float32."""

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """What is minimised: cross-entropy."""
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())

    def compile_stages(self) -> None:
        """Compile what can be, for training."""


class FeatureLearner(EpisodicLearner):
    """A backbone whose features a head compares.

    In training BatchNorm uses the statistics of a step's pictures, in tests its running ones, so no query
    sees another, unless the recipe says otherwise (``measure.statistics``).
    """

    def __init__(self, backbone: Backbone, head: EpisodeHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self._compiled = False

    def compile_stages(self) -> None:
        """Compile each stage in place; tests run as before."""
        self._compiled = True
        for stage in self.backbone.stages:
            stage.compile(dynamic=False)

    def embed(self, pictures: Tensor) -> Tensor:
        """The backbone's features."""
        use_compiled = self._compiled and self.training
        hidden = self.backbone(pictures) if use_compiled else eager_features(self.backbone, pictures)
        return hidden.float()

    def score(self, support: Tensor, queries: Tensor) -> Tensor:
        """What the head says."""
        if self.head.mixed:
            return self.head(support, queries)  # type: ignore[no-any-return]
        with full_precision(support):
            return self.head(support, queries)  # type: ignore[no-any-return]

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The head's."""
        return self.head.loss(scores, labels)


_SMALLEST_MAP = 10  # two convolutions of 3 × 3 without a border, each before pooling by 2, leave 1 × 1
_MAML_BLOCK = [nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d, nn.ReLU]


class MamlLearner(EpisodicLearner):
    """Convolutions and a linear layer that a few gradient steps on the shots adapt, their start learned.

    Finn et al., "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks", ICML 2017,
    https://arxiv.org/abs/1703.03400 (algorithm 2), to second order. As in the authors' code, BatchNorm uses
    the statistics of what it is given, in tests too: of the shots, and of all queries of an episode together.
    So queries inform each other.

    Every episode has weights of its own, so a convolution is a product of patches with them, for all episodes
    at once. A step is thousands of small kernels, which GPUs run from a record.

    Args:
        backbone: blocks of convolution, BatchNorm and what follows (``conv4-32`` is the authors').
        side: of the pictures.
        steps, test_steps, rate: of the inner loop, in training and in tests.
    """

    transductive = True
    recorded = True

    def __init__(
        self,
        backbone: Backbone,
        side: int,
        ways: int,
        steps: int = 5,
        test_steps: int = 10,
        rate: float = 0.01,
    ) -> None:
        super().__init__()
        self.backbone, self.side, self.n_steps, self.test_steps = backbone, side, steps, test_steps
        self.rate = rate
        self.classify = nn.Linear(backbone.feature_dim, ways)
        blocks = [[type(layer) for layer in stage.children()] for stage in backbone.stages]
        if backbone.pool != "flatten" or any(block != _MAML_BLOCK for block in blocks):
            raise RecipeError(
                "maml adapts blocks of convolution, BatchNorm, pooling and ReLU, and classifies their last"
                " map flattened; this backbone is made otherwise. Give backbone conv4-32, or conv4-64 with"
                " backbone_options.final_relu true, all blocks pooled and pool 'flatten'"
            )

    def embed(self, pictures: Tensor) -> Tensor:
        """The pictures themselves."""
        return pictures.flatten(1)

    def score(self, support: Tensor, queries: Tensor) -> Tensor:
        """Adapt to the support, then classify the queries."""
        E, n, K, _ = support.shape
        targets = torch.eye(n, device=support.device).repeat_interleave(K, 0).expand(E, -1, -1)
        ones, kind = support.new_ones(E, n * K), support.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else support.dtype
        with full_precision(support):
            # The same pictures in every step: their patches, the most of all blocks, are taken once.
            shots = _patches(support.reshape(E, n * K, 3, self.side, self.side).to(dtype))
            adapted = gradient_steps(
                lambda *weights: support_loss(self._network(shots, weights), targets, ones),
                [p.expand(E, *p.shape) for p in self.parameters()],
                [self.rate] * (self.n_steps if self.training else self.test_steps),
                training=self.training,
            )
            asked = _patches(queries.reshape(E, -1, 3, self.side, self.side).to(dtype))
            return self._network(asked, adapted)

    def _network(self, patches: Tensor, weights: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
        """Patches of pictures ``[E, B, 27, S · S]`` with weights of each episode to scores ``[E, B, n]``.

        Patches, and maps before they are pooled, are of the type of those given.
        """
        *blocks, last, offset = weights
        side, x = self.side, patches
        for kernel, gain, bias in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
            if x is not patches:
                patches, side = _patches(x.to(patches.dtype)), x.shape[-1]
            # Pooled before it is normalised, which is a quarter of the values: with the sign of the gain in
            # the kernel, normalisation keeps the order of values.
            sign = torch.copysign(torch.ones_like(gain), gain.detach())
            signed = (kernel.flatten(2) * sign.unsqueeze(-1)).to(patches.dtype)
            maps = signed.unsqueeze(1) @ patches  # [E, B, C', H · W]
            mean, square = _Moments.apply(maps, kernel.dtype)
            var = (square - mean.square()).clamp(min=0)  # of plain pictures, rounding may leave less
            slope = (gain * sign)[:, None, :, None] * torch.rsqrt(var + 1e-5)
            pooled = F.max_pool2d(maps.flatten(0, 1).unflatten(-1, (side, side)), 2)
            pooled = pooled.flatten(2).unflatten(0, maps.shape[:2])
            x = torch.relu(torch.addcmul(bias[:, None, :, None] - mean * slope, pooled, slope))
            x = x.unflatten(-1, (side // 2, side // 2))
        return x.flatten(2) @ last.transpose(1, 2) + offset.unsqueeze(1)


class _Moments(torch.autograd.Function):
    """Means of the values and of their squares over ``[E, B, C, P]``'s pictures and positions.

    Their gradients together are one multiplication and addition, which autograd differentiates again.
    """

    @staticmethod
    def forward(ctx: Any, maps: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(maps)
        length = torch.linalg.vector_norm(maps, dim=(1, 3), keepdim=True, dtype=dtype)
        mean = maps.mean((1, 3), keepdim=True, dtype=dtype)
        return mean, length.square() / (maps.shape[1] * maps.shape[3])

    @staticmethod
    def backward(ctx: Any, of_mean: Tensor, of_square: Tensor) -> tuple[Tensor, None]:
        (maps,) = ctx.saved_tensors
        count = maps.shape[1] * maps.shape[3]
        shift, slope = (of_mean / count).to(maps.dtype), (of_square * (2 / count)).to(maps.dtype)
        return torch.addcmul(shift, maps, slope), None


def _patches(x: Tensor) -> Tensor:
    """The 3 × 3 neighbourhoods of maps ``[E, B, C, H, W]``: ``[E, B, 9 C, H · W]``.

    As one picture of very many channels: for several, torch takes their patches one after another.
    """
    E, B, C, H, W = x.shape
    return F.unfold(x.reshape(1, E * B * C, H, W), 3, padding=1).view(E, B, C * 9, H * W)


def build_learner(config: EpisodicRecipe) -> EpisodicLearner:
    """A new learner whose initial weights depend on the seed alone."""
    kind: type[nn.Module] = MamlLearner if config.method == "maml" else HEADS[config.method]
    _check_options(config, kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        backbone = backbones.build(config.backbone, **config.backbone_options)
        if backbone.image_size != config.data.size and backbone.pool != "mean":
            raise RecipeError(
                f"{config.backbone} is for pictures of {backbone.image_size} px, data.size is "
                f"{config.data.size}; set data.size or backbone_options.image_size"
            )
        if config.method == "maml":
            return MamlLearner(backbone, config.data.size, config.episode.ways, **config.options)  # type: ignore[arg-type]
        widths = [m.out_channels for m in backbone.modules() if isinstance(m, nn.Conv2d)]
        channels = widths[-1] if widths else backbone.feature_dim
        if config.method == "relation":
            _check_map(backbone, channels)
        head = HEADS[config.method](backbone.feature_dim, channels, config.episode.ways, **config.options)
        return FeatureLearner(backbone, head)


def _check_options(config: EpisodicRecipe, kind: type[nn.Module]) -> None:
    """Options are those that the method has, of their defaults' types and above 0."""
    known = {
        name: parameter.default
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is not parameter.empty
    }
    for name, value in config.options.items():
        if name not in known:
            raise RecipeError(
                f"{config.method} has no option {name!r}{nearest(name, known)};"
                f" accepted: {', '.join(known) or 'none'}"
            )
        whole = isinstance(known[name], int)
        fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
        if not fits or not math.isfinite(value) or value <= 0:
            wanted = "a whole number of at least 1" if whole else "a number above 0"
            raise RecipeError(
                f"options.{name} of {config.method} must be {wanted}, got {value!r} ({kind_of(value)});"
                f" {known[name]!r} is its default"
            )


def _check_map(backbone: Backbone, channels: int) -> None:
    """Relation networks convolve and pool a square map twice."""
    side = math.isqrt(backbone.feature_dim // channels)
    if backbone.pool != "flatten" or channels * side**2 != backbone.feature_dim or side < _SMALLEST_MAP:
        shape = f"a map of {side} × {side}" if backbone.pool == "flatten" else f"pool {backbone.pool!r}"
        raise RecipeError(
            f"relation compares the last map, flattened, of {_SMALLEST_MAP} × {_SMALLEST_MAP} or more, but"
            f" this backbone has {shape}; give backbone conv4-64 with backbone_options.pooled_blocks 2, and"
            " pictures of at least 40 px (data.size, backbone_options.image_size)"
        )
