"""Several methods on the same episodes, for several numbers of shots."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import torch

from wdae.bank import FeatureBank
from wdae.evaluation.config import EvaluationConfig
from wdae.evaluation.protocol import OnProgress, all_way, few_way
from wdae.evaluation.results import Result
from wdae.evaluation.table import ResultTable
from wdae.methods.base import Method
from wdae.runs.progress import progress


def measure(
    method: Method,
    bank: FeatureBank,
    n_shot: int,
    protocol: Literal["few-way", "all-way"],
    *,
    n_way: int,
    n_query: int,
    n_episodes: int,
    seed: int,
    device: torch.device | str,
    on_progress: OnProgress | None = None,
    base_queries: Collection[str] | None = None,
) -> Result:
    """One method at one number of shots, by either protocol; all-way has no ``n_way`` and ``n_query``."""
    if protocol == "few-way":
        return few_way(
            method,
            bank,
            n_shot,
            n_way=n_way,
            n_query=n_query,
            n_episodes=n_episodes,
            seed=seed,
            device=device,
            on_progress=on_progress,
        )
    return all_way(
        method,
        bank,
        n_shot,
        n_episodes=n_episodes,
        seed=seed,
        base_queries=base_queries,
        device=device,
        on_progress=on_progress,
    )


def compare(
    methods: Sequence[Method],
    bank: FeatureBank,
    config: EvaluationConfig,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> ResultTable:
    """Evaluate every method on the same episodes by the protocol of the configuration.

    >>> from wdae.methods import make
    >>> from wdae import synthetic_bank
    >>> bank = synthetic_bank(16, 5, 6, 20, 8, seed=0, held_out_per_class=4)
    >>> config = EvaluationConfig(shots=(1,), queries=5, episodes=20)
    >>> table = compare([make("initial-estimate"), make("fine-tune")], bank, config)
    >>> [result.method for result in table]
    ['initial-estimate', 'fine-tune']
    """
    results = []
    total = len(methods) * len(config.shots) * config.episodes
    with progress(total, "evaluating") as bar:
        for n_shot in config.shots:
            for method in methods:
                result = measure(
                    method,
                    bank,
                    n_shot,
                    config.protocol,
                    n_way=config.ways,
                    n_query=config.queries,
                    n_episodes=config.episodes,
                    seed=seed,
                    device=device,
                    on_progress=bar.update,
                )
                results.append(result)
    return ResultTable(tuple(results))
