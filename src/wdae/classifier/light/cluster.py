"""Prediction by Ray Data: a pool of actors, each with the model, answers blocks of pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from wdae.classifier.light.folder import ModelFolder
from wdae.classifier.light.manifest import ModelManifest
from wdae.classifier.light.sources import stream_items
from wdae.storage import manifest as manifests

BLOCK = 512
"""Pictures that an actor answers at a time."""


@dataclass(frozen=True)
class PredictOptions:
    """What is asked of every picture, and how answers are written.

    ``only`` is what :meth:`ModelFolder.chosen` takes; the other fields are the options of ``wdae predict``.
    """

    model: str
    top: int = 1
    expect: float | None = None
    only: str | tuple[str, ...] | None = None
    false_alarms: float = 0.05
    form: Literal["line", "json", "csv"] = "line"
    device: str = "auto"
    coverage: float | None = None

    def lines(
        self,
        folder: ModelFolder,
        answers: Any,
        sources: Sequence[Path],
        unreadable: list[str],
        shown: Mapping[str, str] | None = None,
    ) -> Iterator[str]:
        """A line for each picture or vector, perhaps under another name; ``unreadable`` gets the others."""
        shown = shown or {}
        for names, features in stream_items(folder, sources, unreadable, self.device):
            found = answers.predictions(features, self.top, self.false_alarms)
            for name, one in zip(names, found, strict=True):
                yield getattr(one, f"as_{self.form}")(shown.get(name, name))

    def ready(self) -> tuple[ModelFolder, Any]:
        """The model's folder, and what it answers."""
        folder = ModelFolder.open(self.model)
        answers: Any
        if self.coverage is not None:
            from wdae.classifier.predictions import TorchAnswers
            from wdae.classifier.store import load

            answers = TorchAnswers(load(folder.path), coverage=self.coverage)
        elif folder.has_answers:
            answers = folder.answers()
        else:
            from wdae.classifier.store import computed_answers

            answers = computed_answers(folder)
        among = None if self.only is None else folder.chosen(self.only)
        return folder, answers.asked(expect=self.expect, only=among)


class Answerer:
    """An actor: the model, opened once, then block after block of pictures."""

    def __init__(self, question: dict[str, Any], driver: dict[str, str]) -> None:
        from wdae.extract.ray_engine import refuse_other_versions

        refuse_other_versions(driver)
        self.question = PredictOptions(**question)
        self.folder, self.answers = self.question.ready()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The lines of one block, and what could not be read."""
        unreadable: list[str] = []
        pairs = json.loads(str(batch["files"][0]))
        files, shown = [Path(path) for path, _ in pairs], dict(pairs)
        lines = list(self.question.lines(self.folder, self.answers, files, unreadable, shown))
        return {
            "number": [int(batch["number"][0])],
            "lines": [json.dumps(lines)],
            "unreadable": [json.dumps(unreadable)],
        }


def lines_by_ray(
    question: PredictOptions,
    files: Sequence[str],
    unreadable: list[str],
    work: Path,
    address: str | None = None,
) -> Iterator[str]:
    """The lines of all pictures in their order; blocks that lie in the folder ``work`` are not asked again.

    Those of another question, model or list of pictures are removed first.
    """
    from wdae.data.source import file_stamp
    from wdae.extract.ray_engine import pool, versions
    from wdae.storage.records import read_json, write_json
    from wdae.storage.unfinished import empty

    placed = asdict(question) | {"model": str(Path(question.model).absolute())}
    model = manifests.read(ModelManifest, question.model).sha256
    plan = json.loads(json.dumps([placed, model, file_stamp(files)]))
    if not (work / "plan.json").is_file() or read_json(work / "plan.json") != plan:
        empty(work)
        write_json(work / "plan.json", plan)
    blocks = [files[start : start + BLOCK] for start in range(0, len(files), BLOCK)]
    items = [
        {"number": n, "files": json.dumps([(str(Path(name).absolute()), name) for name in block])}
        for n, block in enumerate(blocks)
        if not (work / f"{n:09d}.json").is_file()
    ]
    for found in pool(Answerer, (placed, versions()), items, address):
        report = {key: json.loads(str(found[key][0])) for key in ("lines", "unreadable")}
        write_json(work / f"{int(found['number'][0]):09d}.json", report)
    for n in range(len(blocks)):
        kept = read_json(work / f"{n:09d}.json")
        unreadable += kept["unreadable"]
        yield from kept["lines"]
