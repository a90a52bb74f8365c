"""The recipe of stage 1: training the backbone, the base weights and the scale on the base classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from wdae.config import Config
from wdae.config.augment import AugmentConfig


class DataConfig(Config):
    """Which pictures, and which of them are trained on."""

    path: Path
    """The folder of the data set."""
    layout: str = "auto"
    """How the folder is laid out; ``auto`` finds out."""
    reading: Literal["names", "positions"] = "names"
    """Of ImageNet-FS's split: by its class names, or by positions in the sorted list (the authors' code)."""
    size: int = Field(default=80, ge=8)
    """Side to which pictures are decoded; validation and extraction use it too."""
    classes: Literal["base", "base+validation"] = "base"
    """``base+validation`` trains on the validation classes too (the paper's trainval rows)."""
    held_out: int = Field(default=0, ge=0)
    """Images of each base class held out of training, for base accuracy and the all-classes table."""
    held_out_seed: int | None = Field(default=None, ge=0)
    """Draws them; the run's seed by default. Networks whose features are joined need the same."""
    cache_dir: Path | None = None
    """Where decoded pictures are cached."""
    skip_broken: bool = False
    """Leave unreadable pictures out instead of refusing the data set (not while streaming)."""
    allow_missing: bool = False
    """Take a benchmark with classes or pictures missing; its figures are then not the benchmark's."""
    stream: bool = False
    """Decode training pictures as they are needed instead of keeping all of them on the device."""
    workers: int | None = Field(default=None, ge=0)
    """Processes that decode while streaming; one a core by default."""

    def drawn_with(self, seed: int) -> int:
        """The seed that draws the held-out images in a run with this seed."""
        return seed if self.held_out_seed is None else self.held_out_seed


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
    cycles: int = Field(default=1, ge=1)
    """How often a ``cosine`` or ``linear`` schedule falls: warm restarts, each fall of the same length."""
    peak: float = Field(default=1.0, gt=0, le=1)
    """What each restart multiplies the full rate by."""


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
    """Self-supervision: predict by how many quarter turns a picture was rotated."""

    weight: float = Field(default=1.0, ge=0)
    """Weight of the rotation loss beside the classification loss."""
    turns: Literal[1, 4] = 4
    """4: every picture in all four rotations; 1: upright and in one other rotation, at half the cost."""
    classify_all_turns: bool = False
    """Whether rotated copies are classified too, or only upright pictures."""


class MixupConfig(Config):
    """Mixing pairs of pictures, or of their feature maps."""

    alpha: float = Field(default=2.0, gt=0)
    """The share of a pair's first member is drawn from Beta(alpha, alpha)."""
    layers: tuple[int, ...] = Field(default=(0,), min_length=1)
    """Where to mix, one drawn per step: 0 is the pictures (mixup), n the output of stage n (manifold)."""
    probability: float = Field(default=1.0, ge=0, le=1)
    """Share of the steps that mix at all."""


class AveragingConfig(Config):
    """Averaging the weights over training; the average is what is validated and saved."""

    kind: Literal["ema", "swa"] = "ema"
    """``ema`` decays exponentially, ``swa`` is the plain mean."""
    decay: float = Field(default=0.999, gt=0, lt=1)
    """Decay of ``ema`` per step."""
    start: float = Field(default=0.5, ge=0, lt=1)
    """Fraction of training at which averaging begins."""
    every: int = Field(default=1, ge=1)
    """Steps between two updates of the average."""
    refresh_batches: int = Field(default=200, ge=0)
    """Batches, at most those of an epoch, over which the average's BatchNorm statistics are computed
    before each validation."""


class DistillationConfig(Config):
    """Distillation from trained models of the same classes (born-again training)."""

    teachers: tuple[Path, ...] = Field(min_length=1)
    """Folders of the teachers' models; the mean of their scores is the target."""
    weight: float = Field(default=0.5, ge=0, le=1)
    """Share of the teachers' term; the labels' term has the rest."""
    temperature: float = Field(default=4.0, gt=0)
    """Both score sets are divided by it."""
    likeness: float = Field(default=0.0, ge=0)
    """Weight of the similarity term: the squared difference between the student's and the teachers' cosines,
    over all pairs of upright pictures of a process, in steps without mixup. At 50 it weighs about as much
    as the scores."""


class ValidationConfig(Config):
    """Few-shot accuracy on the validation classes; the novel classes are never used."""

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

    places: ClassVar[tuple[str, ...]] = ("backbone", "backbone_options")

    data: DataConfig
    """The data set."""
    backbone: str = "wrn-28-10"
    """A registered backbone, ``pkg.module:factory``, ``timm:NAME`` or ``transformers:NAME``."""
    backbone_options: dict[str, Any] = Field(default={})
    """Options of that backbone (dropout, for example)."""
    start: Path | None = None
    """Folder of a trained model to start from; classes that it does not know start at random."""
    epochs: int = Field(default=26, ge=1)
    """Passes over the training pictures."""
    batch: int = Field(default=256, ge=1)
    """Pictures a step, over all devices together; rotated copies come on top."""
    optimiser: OptimiserConfig = OptimiserConfig()
    """SGD."""
    schedule: ScheduleConfig = ScheduleConfig()
    """The learning rate over time."""
    augment: AugmentConfig = AugmentConfig()
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
    """How the best model is chosen."""
    keep: Literal["best", "last"] = "best"
    """Which model is written out: the best by validation, or the last."""
    precision: Literal["bf16", "float32"] = "bf16"
    """Arithmetic of the backbone; the classifier and the losses are in float32 always."""
    compile: Literal["auto", "off", "default", "max-autotune-no-cudagraphs"] = "auto"
    """Mode of torch.compile for the stages and the augmentation; ``auto``: default on GPUs, off elsewhere."""
    sync_batch_norm: bool = False
    """Compute BatchNorm's statistics over all devices together, so that their number does not matter."""
    checkpoint_every: int = Field(default=5, ge=1)
    """Epochs between two resumable checkpoints; one more is written at each stop."""
    log_every: int = Field(default=50, ge=1)
    """Steps between two lines of curves."""
    seed: int = Field(default=0, ge=0)
    """Seed of everything random."""

    @property
    def copies(self) -> int:
        """How often a picture goes through the network in a step: turned copies count."""
        return 1 if self.rotation is None else {4: 4, 1: 2}[self.rotation.turns]

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
                f"distillation.likeness is {self.distillation.likeness}, but counts only in steps without "
                "mixup, and mixup.probability is 1; lower that, or leave likeness out"
            )
        return self
