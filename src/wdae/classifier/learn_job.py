"""What ``wdae learn`` is asked for, and its work while it is unfinished; free of torch, for a quick help.

Beside the model to be there is a folder ``.MODEL.unfinished`` until the model is there: what was asked for,
the run of the backbone's training, features as they are computed, the checkpoint of the method's training.
An interrupted command goes on from there with ``--resume``, to the model that an unbroken one would make.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wdae.config import Config, Field, recipe_file
from wdae.errors import ModelError, RunError, StorageError
from wdae.stage2.config import MetaRecipe
from wdae.storage.records import Record, Text, construct, read_json, read_record, write_json
from wdae.storage.trust import refuse_unnamed, refuse_untrusted
from wdae.storage.unfinished import empty, working

ASKED, METHOD = "asked.json", "model.safetensors"
_NAMED = ("source", "method", "backbone")  # what is opened: named on every call


class LearnConfig(Config):
    """From base features to a model that classes can be added to; how a method is trained, a recipe says.

    >>> LearnConfig(held_out=0.3).max_classes
    1000
    """

    seed: int = Field(0, ge=0)
    """Every random choice follows from it, and those of the recipe used by default."""
    held_out: float = Field(0.2, ge=0, lt=1)
    """Share of each base class kept out of learning, to calibrate on; where the parts do not say it."""
    weight_epochs: int = Field(30, ge=0)
    """Passes over the images to learn base weights, where none are given; 0: class means."""
    novel_share: float | None = Field(None, gt=0, lt=1)
    """Share of the pictures to classify that are expected to be of added classes; less favours base ones.
    null: the largest with which five added classes cost held-out base pictures no more than a limit. The
    model starts with it: it can be asked otherwise, and set."""
    refine_base: bool | None = None
    """Let base weights move too when classes are added, as in the paper; null: as the method has it."""
    max_classes: int = Field(1000, ge=5)
    """Base classes that take part in training and calibration; more are drawn from at random."""


class SeenConfig(Config):
    """How pictures are prepared for a backbone, where it differs from what the backbone says."""

    side: int | None = Field(None, ge=1)
    """Side of the pictures."""
    crop: float | None = Field(None, gt=0, le=1)
    """Share of the shorter side that is seen."""
    mean: tuple[float, float, float] | None = None
    """What is taken off each colour."""
    std: tuple[float, float, float] | None = None
    """What each colour is divided by then."""
    interpolation: str | None = None
    """The filter that resizes."""


class LearnJob(Config):
    """From what, and how, a model is learned; see :func:`wdae.classifier.sources.learn`."""

    source: Path | None = None
    """A bank, a file of features, or a folder with a folder of pictures per class."""
    method: str | None = None
    """A trained method to teach with: a run folder, its file, or initial-estimate."""
    recipe: MetaRecipe | None = None
    """How to train one."""
    backbone: str | None = None
    """A backbone used as it is; without, one is trained on the pictures."""
    seen: SeenConfig = SeenConfig()
    """How pictures are prepared for that backbone."""
    device: str = "cpu"
    """Where it computes."""
    train: str = "conv4-64"
    """The backbone to train then."""
    epochs: int = Field(30, ge=1)
    """Passes over the pictures to train it."""
    size: int = Field(84, ge=8)
    """Side to which pictures are scaled to train it."""
    skip_broken: bool = True
    """Leave unreadable pictures out."""
    config: LearnConfig = LearnConfig()
    """What is not a matter of the recipe."""


def best_recipe() -> Path:
    """The recipe used by default: wDAE-GNN+ in a whitened space, for any number of shots."""
    return recipe_file("mini-imagenet/wdae-gnn-plus-any-shots")


def check_method(method: str | None) -> None:
    """Refuse, before any work, what is no trained method as far as its files go."""
    path = Path(method or "")
    if method not in (None, "initial-estimate") and not (path.is_file() or (path / METHOD).is_file()):
        raise ModelError(
            f"{method} holds no trained method; give a run folder of wdae train, its {METHOD},"
            " or initial-estimate"
        )


class _Source(Record):
    stamp: Text


class Work:
    """The folder of an unfinished job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def run(self) -> Path:
        """The run of the backbone's training."""
        return self.folder / "backbone"

    @property
    def denoiser(self) -> Path:
        """The checkpoint of the method's training."""
        return self.folder / "denoiser.safetensors"

    def features(self) -> list[Path]:
        """Files of features computed so far, in order."""
        return sorted(self.folder.glob("features-*.safetensors"))

    def next_features(self) -> Path:
        """Where the next ones go."""
        return self.folder / f"features-{len(self.features()) + 1:06d}.safetensors"

    @property
    def is_worth_keeping(self) -> bool:
        """Whether anything is there to go on from."""
        from wdae.stage1.train import LAST

        return self.denoiser.is_file() or bool(self.features()) or (self.run / LAST).is_file()

    def check_source(self, stamp: str) -> None:
        """Refuse to go on when what is learned from has changed since."""
        file = self.folder / "source.json"
        if not file.is_file():
            write_json(file, _Source(stamp=stamp))
        elif read_record(_Source, file).stamp != stamp:
            raise RunError(
                f"what is learned from has changed since {self.folder} was begun; remove that folder and"
                " start again"
            )


@contextmanager
def job_folder(job: LearnJob, output: Path, *, resume: bool) -> Iterator[tuple[LearnJob, Work]]:
    """The job, as it was begun where it is resumed, with its work.

    The folder goes when the body ends well; however else it ends, what is worth going on from stays.
    """
    if resume and output.exists():
        raise RunError(f"{output} is finished: there is nothing to go on with")
    with working(output) as folder:
        work = Work(folder)
        if resume:
            job = _begun(job, work, output)
        else:
            if work.is_worth_keeping:
                raise RunError(
                    f"{folder} holds a model that was begun; go on with it with --resume, or remove that"
                    " folder to start again"
                )
            empty(folder)
            write_json(folder / ASKED, job.model_dump(mode="json"))
        try:
            yield job, work
        except BaseException:
            if not work.is_worth_keeping:
                empty(folder)
            raise


def _begun(job: LearnJob, work: Work, output: Path) -> LearnJob:
    """The job as it was begun; the paths in its file are compared with those named now, never followed."""
    file = work.folder / ASKED
    if not file.is_file():
        raise RunError(f"nothing to resume: there is no {work.folder}; start without --resume")
    asked = read_json(file)
    if isinstance(asked, dict) and "recipe" in asked and "config" not in asked:
        work.denoiser.unlink(missing_ok=True)  # of a denoiser that was trained in another way
        try:
            asked = _of_version_1(asked)
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"{file} is altered: {error!r}; remove {work.folder} and start again"
            ) from None
    begun = construct(LearnJob, json.dumps(asked), file)
    refuse_untrusted(begun.train, job.train, file)
    was, now, usual = _flat(begun), _flat(job), _flat(LearnJob())
    refuse_unnamed(
        {key: was.pop(key) for key in _NAMED},
        {key: now.pop(key) for key in _NAMED},
        work.folder,
        go_on(begun, output),
    )
    if other := [key for key in was if key != "device" and now[key] not in (usual[key], was[key])]:
        raise RunError(
            f"{work.folder} was begun with another {', '.join(other)}; leave that out, or start another model"
            " with another -o"
        )
    return begun.model_copy(update={"device": job.device})  # how, not what


def go_on(job: LearnJob, output: Path) -> str:
    """The command that goes on with a job: all that it opens is named again."""
    words = ["wdae", "learn", *([str(job.source)] if job.source else [])]
    words += [word for key in _NAMED[1:] if (value := getattr(job, key)) for word in (f"--{key}", value)]
    return shlex.join([*words, "-o", str(output), "--resume"])


def _flat(job: LearnJob) -> dict[str, Any]:
    own = {key: getattr(job, key) for key in LearnJob.model_fields}
    return own | dict(own.pop("config"))


def _of_version_1(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked of a version whose models trained a denoiser of their own; features computed stay."""
    old = asked["recipe"]
    denoiser = {
        key: old[key] for key in ("kind", "hidden", "layers", "dropout", "neighbours", "inverse_temperature")
    }
    wanted = {"seed": old["seed"], "training": {"noise": old["noise"], "steps": old["steps"]}}
    without = old["kind"] == "none"
    return {
        **asked,
        "method": "initial-estimate" if without else None,
        "recipe": None if without else {"name": f"wdae-{old['kind']}", "denoiser": denoiser, **wanted},
        "config": {key: old[key] for key in LearnConfig.model_fields},
    }
