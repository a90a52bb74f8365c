"""The recipe of stage 1: training the backbone, the base weights and the scale on the base classes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from wdae.config import Config

if TYPE_CHECKING:
    from wdae.data.augment import AugmentConfig


class DataConfig(Config):
    """Which pictures, and which of them are trained on."""

    path: Path
    """The folder of the data set."""
    layout: str = "auto"
    """How the folder is laid out; ``auto`` looks."""
    reading: Literal["names", "positions"] = "names"
    """Of ImageNet-FS's split: by its class names, or by positions in the sorted list (the authors' code)."""
    size: int = Field(default=80, ge=8)
    """Side to which pictures are decoded and kept, and which validation and extraction see."""
    classes: Literal["base", "base+validation"] = "base"
    """``base+validation`` trains on the validation classes too (the paper's trainval rows)."""
    held_out: int = Field(default=0, ge=0)
    """Images of each base class kept out of training, for base accuracy and the all-classes table."""
    cache_dir: Path | None = None
    """Where decoded pictures are kept."""
    skip_broken: bool = False
    """Leave unreadable pictures out instead of refusing the data set (not while streaming)."""
    allow_missing: bool = False
    """Take a benchmark with classes or pictures missing; its figures are then not the benchmark's."""
    stream: bool = False
    """Decode training pictures as they are needed instead of keeping all of them on the device."""
    workers: int | None = Field(default=None, ge=0)
    """Processes that decode while streaming; one a core by default."""


class VariationConfig(Config):
    """Random changes to training pictures: the keys of :class:`wdae.data.augment.AugmentConfig`.

    Said again here because that module needs torch and ``--help`` must not.
    """

    size: int | None = Field(default=None, ge=1)
    """Side of the square that comes out; that of the pictures by default. A smaller one, with ``resized``
    crops, trains faster; validation and extraction still see whole pictures."""
    crop: Literal["pad", "resized", "none"] = "pad"
    """``pad`` and cut a square, ``resized`` (random area and aspect), or ``none``."""
    padding: int = Field(default=8, ge=0)
    """Pixels on every side, for ``pad``."""
    padding_mode: Literal["zeros", "reflect"] = "zeros"
    """What lies outside: black, or the mirror image."""
    area: tuple[float, float] = (0.08, 1.0)
    """Smallest and largest share of the picture, for ``resized``."""
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest width-to-height ratio, for ``resized``."""
    flip: float = Field(default=0.5, ge=0, le=1)
    """Probability of mirroring left to right."""
    brightness: float = Field(default=0.4, ge=0, le=1)
    """Strength of the jitter of brightness."""
    contrast: float = Field(default=0.4, ge=0, le=1)
    """Strength of the jitter of contrast."""
    saturation: float = Field(default=0.4, ge=0, le=1)
    """Strength of the jitter of saturation."""
    hue: float = Field(default=0.0, ge=0, le=0.5)
    """Strength of the jitter of hue, at most half a turn."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Mean of the normalisation, by channel."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Standard deviation of the normalisation, by channel."""

    def build(self) -> AugmentConfig:
        """The same for :mod:`wdae.data.augment`."""
        from wdae.data.augment import AugmentConfig

        return AugmentConfig(**self.model_dump())


class ScheduleConfig(Config):
    """The learning rate over training, in fractions of its length: epochs can change alone."""

    kind: Literal["step", "cosine", "linear"] = "step"
    """``step`` drops by ``factor`` at ``drops``; the others fall to ``final`` after ``hold``."""
    drops: tuple[float, ...] = (0.75, 0.9)
    """Fractions of training at which a ``step`` schedule drops."""
    factor: float = Field(default=0.1, gt=0, lt=1)
    """What a ``step`` schedule multiplies by at each drop."""
    hold: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of training at the full rate before a ``cosine`` or ``linear`` fall begins."""
    final: float = Field(default=0.0, ge=0, le=1)
    """Where a ``cosine`` or ``linear`` schedule ends, as a share of the full rate."""
    warm_up: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of training over which the rate rises linearly from zero."""


class OptimiserConfig(Config):
    """SGD with momentum."""

    learning_rate: float = Field(default=0.1, gt=0)
    """The full rate."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum, Nesterov's."""
    weight_decay: float = Field(default=5e-4, ge=0)
    """Weight decay."""
    decay_norm_and_bias: bool = True
    """Whether BatchNorm's values, biases and the scale decay too, as in the authors' code."""


class RotationConfig(Config):
    """Self-supervision: say by how many quarter turns a picture was turned."""

    weight: float = Field(default=1.0, ge=0)
    """Weight of the turn loss beside the classification loss."""
    turns: Literal[1, 4] = 4
    """4: every picture in all four turns; 1: upright and in one other turn, at half the cost."""
    classify_all_turns: bool = False
    """Whether turned copies are classified too, or only upright pictures."""


class MixupConfig(Config):
    """Mixing pairs of pictures, or of their feature maps."""

    alpha: float = Field(default=2.0, gt=0)
    """The share of a pair's first member is drawn from Beta(alpha, alpha)."""
    layers: tuple[int, ...] = Field(default=(0,), min_length=1)
    """Where to mix, one drawn per step: 0 is the pictures (mixup), n the output of stage n (manifold)."""
    probability: float = Field(default=1.0, ge=0, le=1)
    """Share of the steps that mix at all."""


class AveragingConfig(Config):
    """Averaging the weights along the way; the average is what is validated and kept."""

    kind: Literal["ema", "swa"] = "ema"
    """``ema`` decays exponentially, ``swa`` is the plain mean."""
    decay: float = Field(default=0.999, gt=0, lt=1)
    """Decay of ``ema`` per step."""
    start: float = Field(default=0.5, ge=0, lt=1)
    """Fraction of training at which averaging begins."""
    every: int = Field(default=1, ge=1)
    """Steps between two updates of the average."""
    refresh_batches: int = Field(default=200, ge=0)
    """Batches, at most those of an epoch, over which BatchNorm's statistics of the average are taken anew
    before each validation."""


class DistillationConfig(Config):
    """Born-again training: trained models of the same classes as teachers."""

    teachers: tuple[Path, ...] = Field(min_length=1)
    """Folders of the teachers' ``model.safetensors`` and ``model.json``; the mean of their scores teaches."""
    weight: float = Field(default=0.5, ge=0, le=1)
    """Share of the teachers' term; the labels' term has the rest."""
    temperature: float = Field(default=4.0, gt=0)
    """Both score sets are divided by it."""
    likeness: float = Field(default=0.0, ge=0)
    """Weight of the squared difference between the cosines of pairs of pictures, the new model's and the
    teachers' mean, in steps that mix nothing; pairs are of upright pictures, within a process. At 50 it
    weighs about as much as the scores."""


class ValidationConfig(Config):
    """Few-shot accuracy on the validation classes; the novel classes are never looked at."""

    every: int = Field(default=5, ge=1)
    """Epochs between two validations; one more follows the last epoch."""
    episodes: int = Field(default=2000, ge=1)
    """Episodes of 5 classes and 15 queries each, for 1 and for 5 shots."""
    batch: int = Field(default=512, ge=1)
    """Pictures at a time."""
    per_class: int | None = Field(default=None, ge=6)
    """Pictures of each validation class; all by default."""


class Stage1Config(Config):
    """Everything ``wdae pretrain`` needs."""

    data: DataConfig
    """The data set."""
    backbone: str = "wrn-28-10"
    """A registered backbone, ``pkg.module:factory``, ``timm:NAME`` or ``transformers:NAME``."""
    backbone_options: dict[str, Any] = Field(default={})
    """Options of that backbone (dropout, for example)."""
    start: Path | None = None
    """Folder of a trained model to go on from; rows of classes it does not know begin anew."""
    epochs: int = Field(default=26, ge=1)
    """Passes over the training pictures."""
    batch: int = Field(default=256, ge=1)
    """Pictures a step, over all devices together; turned copies come on top."""
    optimiser: OptimiserConfig = OptimiserConfig()
    """SGD."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate over time."""
    augment: VariationConfig = VariationConfig()
    """Random changes to training pictures."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Label smoothing of the classification loss."""
    scale: float = Field(default=10.0, gt=0)
    """Where the cosine classifier's learned scale starts."""
    rotation: RotationConfig | None = None
    """Rotation self-supervision, if any."""
    mixup: MixupConfig | None = None
    """Mixup or manifold mixup, if any."""
    averaging: AveragingConfig | None = None
    """Weight averaging, if any."""
    distillation: DistillationConfig | None = None
    """Teachers, if any."""
    validation: ValidationConfig = ValidationConfig()
    """How the run is watched and the best model chosen."""
    keep: Literal["best", "last"] = "best"
    """Which model is written out: the best by validation, or the last."""
    precision: Literal["bf16", "float32"] = "bf16"
    """Arithmetic of the backbone; the classifier and the losses are in float32 always."""
    compile: Literal["auto", "off", "default", "max-autotune-no-cudagraphs"] = "auto"
    """Mode of torch.compile for the stages and the augmentation; ``auto``: default on GPUs, off elsewhere."""
    sync_batch_norm: bool = False
    """Take BatchNorm's statistics over all devices together, so that their number does not matter."""
    checkpoint_every: int = Field(default=5, ge=1)
    """Epochs between two resumable checkpoints; one more is written at each stop."""
    log_every: int = Field(default=50, ge=1)
    """Steps between two lines of curves."""
    seed: int = Field(default=0, ge=0)
    """Seed of everything random."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.augment.crop != "resized" and self.augment.size not in (None, self.data.size):
            raise ValueError(
                f"augment.size is {self.augment.size}, data.size {self.data.size}: validation sees whole "
                "pictures, which only crop 'resized' can train for at another size"
            )
        if any(not 0 < drop < 1 for drop in self.schedule.drops):
            raise ValueError(f"schedule.drops are fractions between 0 and 1, got {self.schedule.drops}")
        if list(self.schedule.drops) != sorted(self.schedule.drops):
            raise ValueError(f"schedule.drops must ascend, got {self.schedule.drops}")
        if self.mixup and self.mixup.probability == 1 and self.distillation and self.distillation.likeness:
            raise ValueError(
                f"distillation.likeness is {self.distillation.likeness}, but counts only in steps that mix "
                "nothing, and mixup.probability is 1; lower that, or leave likeness out"
            )
        return self
