"""What ``wdae learn`` was asked for, and its work while it is unfinished.

Beside the model to be there is a folder ``.MODEL.unfinished`` until the model is there: what was asked for,
the run of the backbone's training, features as they are computed, the checkpoint of the denoiser's training.
An interrupted command goes on from there with ``--resume``, to the model that an unbroken one would make.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wdae.classifier.config import LearnConfig
from wdae.config import Config, Field
from wdae.errors import RunError
from wdae.storage.records import Record, Text, read_record, write_json
from wdae.storage.unfinished import empty, working

ASKED = "asked.json"


class Lesson(Config):
    """From what, and how, a model is learned; see :func:`wdae.classifier.learn_job.learn_from`."""

    source: Path | None = None
    """A bank, a file of features, or a folder with a folder of pictures per class."""
    backbone: str | None = None
    """A backbone used as it is; without, one is trained on the pictures."""
    train: str = "conv4-64"
    """The backbone to train then."""
    epochs: int = Field(30, ge=1)
    """Passes over the pictures to train it."""
    size: int = Field(84, ge=8)
    """Side to which pictures are scaled to train it."""
    skip_broken: bool = False
    """Leave unreadable pictures out."""
    recipe: LearnConfig = LearnConfig()
    """How base weights, denoiser and calibration are learned."""


class _Source(Record):
    stamp: Text


class Work:
    """The folder of an unfinished lesson."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def run(self) -> Path:
        """The run of the backbone's training."""
        return self.folder / "backbone"

    @property
    def denoiser(self) -> Path:
        """The checkpoint of the denoiser's training."""
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
def attending(lesson: Lesson, output: Path, *, resume: bool) -> Iterator[tuple[Lesson, Work]]:
    """The lesson, as it was begun where it is resumed, with its work.

    The folder goes when the body ends well; however else it ends, what is worth going on from stays.
    """
    with working(output) as folder:
        work = Work(folder)
        if resume:
            lesson = _begun(lesson, work)
        else:
            if work.is_worth_keeping:
                raise RunError(
                    f"{folder} holds a model that was begun; go on with it with --resume, or remove that"
                    " folder to start again"
                )
            empty(folder)
            write_json(folder / ASKED, lesson.model_dump(mode="json"))
        try:
            yield lesson, work
        except BaseException:
            if not work.is_worth_keeping:
                empty(folder)
            raise


def _begun(lesson: Lesson, work: Work) -> Lesson:
    if not (work.folder / ASKED).is_file():
        raise RunError(f"nothing to resume: there is no {work.folder}; start without --resume")
    begun = read_record(Lesson, work.folder / ASKED)
    if lesson.source is not None and lesson.source != begun.source:
        raise RunError(
            f"{work.folder} was begun with {begun.source}, not with {lesson.source}; leave the source out, or"
            " start another model with another -o"
        )
    return begun
