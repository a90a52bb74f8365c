"""Measure methods, given by name or file, on the same episodes."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from wdae.bank import FeatureBank
from wdae.config.text import scalar
from wdae.errors import ModelError, nearest
from wdae.evaluation.config import EvaluationConfig
from wdae.evaluation.protocol import OnProgress, all_way, few_way
from wdae.evaluation.results import Result
from wdae.evaluation.table import ResultTable
from wdae.methods import WDAE, Method, is_learned, make, names
from wdae.methods.saved import load_method
from wdae.runs.progress import progress


def measure(
    method: Method,
    bank: FeatureBank,
    n_shot: int,
    config: EvaluationConfig,
    *,
    seed: int,
    device: torch.device | str,
    on_progress: OnProgress | None = None,
    base_queries: Collection[str] | None = None,
) -> Result:
    """One method at one number of shots, by the protocol of the configuration."""
    common: dict[str, Any] = {"n_episodes": config.episodes, "seed": seed, "device": device}
    common["on_progress"] = on_progress
    if config.protocol == "few-way":
        return few_way(method, bank, n_shot, n_way=config.ways, n_query=config.queries, **common)
    return all_way(method, bank, n_shot, base_queries=base_queries, **common)


def evaluate(
    methods: Sequence[Method],
    bank: FeatureBank,
    config: EvaluationConfig,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> ResultTable:
    """Measure every method on the same episodes.

    >>> from wdae import synthetic_bank
    >>> bank = synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4)
    >>> config = EvaluationConfig(shots=(1,), queries=5, episodes=20)
    >>> table = evaluate([make("initial-estimate"), make("fine-tune")], bank, config)
    >>> [result.method for result in table]
    ['initial-estimate', 'fine-tune']
    """
    with progress(len(methods) * len(config.shots) * config.episodes, "evaluating") as bar:
        return ResultTable(
            tuple(
                measure(method, bank, n_shot, config, seed=seed, device=device, on_progress=bar.update)
                for n_shot in config.shots
                for method in methods
            )
        )


def load_methods(
    given: Sequence[Method | str | Path], device: torch.device, dtype: torch.dtype
) -> list[Method]:
    """Methods from their names, run folders or files, or as they are; a name given again counts once."""
    methods: list[Method] = []
    for one in given:
        if isinstance(one, Method):
            methods.append(copy.copy(one))
            if isinstance(methods[-1], WDAE):
                methods[-1].dtype = dtype  # as it would be loaded
            continue
        word, path = str(one), Path(one)
        if path.is_dir():
            path = path / "model.safetensors"
            if not path.exists():
                raise ModelError(f"{word} holds no model.safetensors; give a run that was trained to its end")
        if path.is_file():
            methods.append(load_method(path, device, dtype))
        elif (name := word.partition(":")[0]) in names():
            if is_learned(name):
                how = "" if name.startswith("wdae") else f" --method {name}"
                raise ModelError(
                    f"{name} must be trained first: wdae train{how} ..., then give its run folder; "
                    "or use wdae compare, which trains what it compares"
                )
            if word not in [method.name for method in methods]:
                methods.append(with_options(word))
        else:
            hint = nearest(word, names())
            raise ModelError(f"{word!r} is no run folder, model file or method{hint} (see wdae methods)")
    return _distinct(methods)


def with_options(word: str) -> Method:
    """A method without parameters by its name, or by its name with options: ``lda:shrink=0.9``."""
    name, options = split_options(word)
    method = make(name, **options)
    method.name = word
    return method


def split_options(word: str) -> tuple[str, dict[str, Any]]:
    """The name and the options of a method.

    >>> split_options("lda:shrink=0.9,power=null")
    ('lda', {'shrink': 0.9, 'power': None})
    """
    name, _, rest = word.partition(":")
    options: dict[str, Any] = {}
    for one in filter(None, rest.split(",")):
        key, equals, value = one.partition("=")
        if not equals:
            raise ModelError(f"{word!r}: options of a method are given as {name}:key=value,key=value")
        options[key.strip()] = scalar(value[:100])
    return name, options


def _distinct(methods: list[Method]) -> list[Method]:
    """Two runs of one recipe have the same name; results need different ones."""
    seen: dict[str, int] = {}
    for method in methods:
        seen[method.name] = seen.get(method.name, 0) + 1
        if seen[method.name] > 1:
            method.name = f"{method.name}-{seen[method.name]}"
    return methods
