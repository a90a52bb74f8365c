"""The features that rows are run on: banks as given, or made from models or from images."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from wdae.bank import FeatureBank
from wdae.bank.format import MANIFEST
from wdae.config.shipped import EMBEDDED, EMBEDDED_BACKBONE
from wdae.data.splits import load_split
from wdae.errors import BankError, DataError, RunError
from wdae.extract.config import ExtractConfig
from wdae.extract.run import run_extraction
from wdae.parts import Part
from wdae.reproduce.benchmarks import REFERENCE, Benchmark, Role
from wdae.reproduce.config import ReproduceRecipe
from wdae.reproduce.network import best_network, device_of, stage1_config, train_network, without_places
from wdae.runs.run import Run
from wdae.stage1.model_file import CARD, WEIGHTS, Stage1Manifest
from wdae.storage import manifest as manifests
from wdae.storage.files import sha256
from wdae.storage.records import Count, Info, Record, Text, construct, read_record, write_json

_OPTIONS: dict[Role, str] = {"whole": "", "held-out": "held_out_", "trainval": "trainval_"}


IMAGES_OF_A_CLASS = 600  # of MiniImageNet
COMPILING = 60.0  # seconds of a training in which it compiles, validates and writes


class _Made(Record):
    """What a bank was made from, by which training, and how long that took."""

    made_from: Info
    seconds: dict[str, float]
    training: Info | None = None


class _Stage1Data(Record):
    model_config = ConfigDict(extra="ignore")

    held_out: Count | None = None


class _Stage1Recipe(Record):
    model_config = ConfigDict(extra="ignore")

    data: _Stage1Data | None = None
    epochs: Count | None = None


class _Origin(Record):
    """What is shown of a bank's ``info``: where features come from, for each joined backbone."""

    model_config = ConfigDict(extra="ignore")

    source: Text | None = None
    backbone: Text | None = None
    flip_average: bool | None = None
    sizes: tuple[Count, ...] | None = None
    crops: Count | None = None
    model_sha256: Text | None = None
    recipe: _Stage1Recipe | None = None
    joined: Annotated[tuple[_Origin, ...], Field(min_length=1, max_length=1_000)] | None = None

    def members(self) -> list[_Origin]:
        """This one, or those that were joined."""
        return [self] if self.joined is None else [one for each in self.joined for one in each.members()]


@dataclass(frozen=True)
class RoleBank:
    """A bank in its role.

    Args:
        origin: given as a bank, extracted with a given model, or trained here.
        seconds: what making it took: ``stage1``, ``extraction``.
        training: of the network, where it was trained here: recipe, seconds, digest of the weights, and of
            those that it began with or was taught by.
    """

    bank: FeatureBank
    digest: str
    origin: str
    seconds: dict[str, float] = field(default_factory=dict)
    training: Mapping[str, Any] | None = None

    def describe(self) -> dict[str, Any]:
        """For the results file: provenance without paths."""
        members = construct(_Origin, json.dumps(self.bank.info), "the bank's 'info'").members()
        recipe = members[0].recipe or _Stage1Recipe()
        return {
            "origin": self.origin,
            "source": members[0].source,
            "backbones": [member.backbone for member in members],
            "flip_average": [bool(member.flip_average) for member in members],
            "sizes": [list(member.sizes or ()) for member in members],
            "crops": [member.crops or 0 for member in members],
            "weights": [member.model_sha256 for member in members],
            "held_out_per_class": None if recipe.data is None else recipe.data.held_out,
            "stage1_epochs": recipe.epochs,
            "images": {part.value: sum(self.bank.counts(part)) for part in Part},
            "classes": {part.value: len(self.bank.classes_of(part)) for part in Part},
            "dim": self.bank.dim,
            "digest": self.digest,
            "seconds": self.seconds,
            "training": self.training,
        }


def role_sources(recipe: ReproduceRecipe, role: Role) -> tuple[Path | None, Path | None]:
    """The bank and the backbone (its folder) given for a role."""
    prefix = _OPTIONS[role]
    bank, model = getattr(recipe, f"{prefix}bank"), getattr(recipe, f"{prefix}backbone")
    if model is not None and str(model) == EMBEDDED:
        model = EMBEDDED_BACKBONE
    if model is not None and not (model / CARD).is_file() and (model / "model" / CARD).is_file():
        model = model / "model"  # a run of wdae pretrain was given
    return bank, model


def expected_cost(benchmark: Benchmark, recipe: ReproduceRecipe) -> str | None:
    """What training the network will take, in words; None where it is not trained."""
    bank, model = role_sources(recipe, "held-out")
    network = best_network(benchmark, recipe)
    if network is None or recipe.data is None or bank is not None or model is not None:
        return None
    split = load_split(benchmark.name, recipe.reading)
    images = len(split.base) * (IMAGES_OF_A_CLASS - recipe.held_out)
    config = stage1_config(benchmark, recipe, "held-out")
    seconds = config.epochs * images * config.copies / network.images_per_second + COMPILING
    return (
        f"stage 1: one training of {config.epochs} epochs, about {seconds / 60:.0f} minutes, "
        f"{seconds / 3600:.2f} GPU hours, on one H200, days on a CPU; then features and rows, minutes there. "
        "--resume goes on after an interruption; --quick is the paper's plain way"
    )


def why_missing(benchmark: Benchmark, recipe: ReproduceRecipe, role: Role) -> str | None:
    """Why a role has no features; None where it has, or can be made."""
    bank, model = role_sources(recipe, role)
    trained = bank is None and model is None and recipe.data is not None
    if trained and role != "held-out" and best_network(benchmark, recipe):
        return "one network serves all tables, and it holds pictures out; --quick trains one for each table"
    if bank is not None or recipe.data is not None:
        return None
    option = _OPTIONS[role].replace("_", "-")
    if model is not None:
        raise DataError(f"--{option}backbone needs the pictures to extract features from; give --data too")
    return f"no --{option}bank, and no --data to make one from"


def open_role(run: Run, benchmark: Benchmark, recipe: ReproduceRecipe, role: Role) -> RoleBank:
    """The bank of a role, made first where it is not given."""
    given, model = role_sources(recipe, role)
    given_model = model
    if given is not None:
        bank = FeatureBank.open(given)
        _check(bank, role, str(given))
        return RoleBank(bank, sha256(given / MANIFEST), "a bank, as given")
    folder, notes = run.path / "banks" / role, run.path / "banks" / f"{role}.json"
    origin = "extracted with a given model" if model is not None else "stage 1 and extraction, here"
    made_from = _made_from(benchmark, recipe, role, model)
    if not folder.exists():
        seconds: dict[str, float] = {}
        training: dict[str, Any] | None = None
        if model is None:
            model, training = train_network(run, benchmark, recipe, role)
            seconds["stage1"] = training["seconds"]
        began = time.perf_counter()
        _extract(benchmark, recipe, model, folder, _views(benchmark, recipe, given_model))
        seconds["extraction"] = time.perf_counter() - began
        write_json(notes, {"made_from": made_from, "seconds": seconds, "training": training})
    made = read_record(_Made, notes) if notes.is_file() else _Made(made_from=made_from, seconds={})
    if made.made_from != made_from:
        raise RunError(
            f"the features for {role} in {folder} were made with other settings of stage 1 or extraction; "
            f"give those again, another folder with -o, or remove {folder} to make them anew"
        )
    bank = FeatureBank.open(folder)
    _check(bank, role, str(folder))
    return RoleBank(bank, sha256(folder / MANIFEST), origin, made.seconds, made.training)


def _made_from(
    benchmark: Benchmark, recipe: ReproduceRecipe, role: Role, model: Path | None
) -> dict[str, Any]:
    """What a role's features depend on beside the pictures."""
    views = _views(benchmark, recipe, model)
    kept: dict[str, Any] = {"flip_average": views.pop("flip_average"), "reading": recipe.reading}
    kept |= {key: list(v) if isinstance(v, tuple) else v for key, v in views.items() if v}
    if model is not None:
        return kept | {"model": sha256(model / WEIGHTS)}
    return kept | {"stage1": without_places(stage1_config(benchmark, recipe, role))}


def _views(benchmark: Benchmark, recipe: ReproduceRecipe, model: Path | None) -> dict[str, Any]:
    """Keys of the extraction: which views features are means over, as given, or those of the best network."""
    given = (recipe.flip_average, recipe.sizes, recipe.crops)
    keys: dict[str, Any] = dict(zip(("flip_average", "sizes", "crops"), given, strict=True))
    network = best_network(benchmark, recipe)
    if network is not None and model is None and not any(given):
        keys = {"flip_average": True, "sizes": network.sizes, "crops": network.crops}
        keys |= {"crop_area": network.crop_area, "dtype": "int8"}
    return keys


def needed_roles(benchmark: Benchmark, rows: Iterable[str]) -> list[Role]:
    """The roles of the tables that any of these rows stands in, the reference apart: it stands in all."""
    wanted = set(rows) - {REFERENCE} or {REFERENCE}
    roles = [role for table in benchmark.tables if wanted & set(table.rows) for role in table.roles]
    return list(dict.fromkeys(roles))


def _extract(
    benchmark: Benchmark,
    recipe: ReproduceRecipe,
    model: Path,
    folder: Path,
    views: Mapping[str, Any],
) -> None:
    if recipe.data is None:
        raise DataError("features are extracted from pictures; give --data")
    streamed = (model / CARD).is_file() and manifests.read(Stage1Manifest, model).recipe.data.stream
    config = ExtractConfig(
        data=recipe.data,
        layout=benchmark.name,
        backbone=str(model),
        **views,
        allow_missing=recipe.allow_missing,
        stream=streamed,
    )
    run_extraction(config, folder, device=device_of(recipe))


def _check(bank: FeatureBank, role: Role, name: str) -> None:
    """Refuse a bank that cannot play its role."""
    if not bank.has(Part.NOVEL) or not bank.n_base:
        raise BankError(f"{name} lacks base or novel classes; give a bank of the whole benchmark")
    if role == "held-out" and not bank.has(Part.BASE_HELD_OUT):
        raise BankError(
            f"{name} has no held-out pictures of base classes, which 'all' and 'base' accuracy need; extract "
            "it with a model of stage 1 that held some out (--data.held-out), or give it as --bank"
        )
    if role == "trainval" and bank.has(Part.VALIDATION):
        raise BankError(
            f"{name} has validation classes; for the train+val rows they are base classes: train stage 1 "
            "with --data.classes base+validation and extract with that model"
        )
