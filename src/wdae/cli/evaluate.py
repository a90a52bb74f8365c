"""``wdae evaluate``: measure trained runs and parameter-free methods on the same episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

app = App(name="evaluate", help="Measure methods on novel and base classes, on the same episodes.")


@app.default
def evaluate(
    methods: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    *,
    bank: Path | None = None,
    protocol: Literal["few-way", "all-way"] = "few-way",
    shots: Annotated[tuple[int, ...], Parameter(negative=(), consume_multiple=True)] = (1, 5),
    ways: int = 5,
    queries: int = 15,
    episodes: int | None = None,
    seed: int = 0,
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "auto",
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    json: Annotated[bool, Parameter(negative=())] = False,
    csv: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Measure methods on novel and base classes, on the same episodes.

    Novel: novel queries among novel classes. Base: base queries among base classes. All: both among all
    classes. The initial estimate is measured beside, and gains over it are paired, episode by episode.

    Parameters
    ----------
    methods
        Run folders, model files (model.safetensors), or names of methods without parameters. Without
        --bank: a model of wdae learn and a folder of labelled pictures, for a table per class, the
        confusion matrix, and base accuracy before and after classes were added.
    bank
        The feature bank to draw episodes from.
    protocol
        few-way: a few novel classes an episode; all-way: all of them at once.
    shots
        Numbers of shots.
    ways
        Novel classes of an episode (few-way).
    queries
        Queries a novel class (few-way).
    episodes
        How many; 20,000 few-way or 100 all-way by default, as in the paper.
    seed
        Which episodes.
    device
        auto, cpu, cuda, ...
    precision
        Of the denoiser's matrix products; auto: bfloat16 where the hardware computes in it.
    output
        Folder for result files (JSON with per-episode values).
    json
        Print JSON.
    csv
        Print CSV.
    """
    if bank is None:
        from wdae.cli.evaluate_model import evaluate_model

        evaluate_model(methods, output=output, json=json, csv=csv)
        return
    from wdae.bank import FeatureBank
    from wdae.evaluation.config import EvaluationConfig
    from wdae.evaluation.measure import evaluate as measure_all
    from wdae.evaluation.measure import load_methods
    from wdae.evaluation.text_table import show
    from wdae.runtime.device import pick_device, pick_dtype

    features = FeatureBank.open(bank)
    where = pick_device(device)
    chosen = load_methods(methods, where, pick_dtype(precision, where))
    default = 20_000 if protocol == "few-way" else 100
    config = EvaluationConfig(
        protocol=protocol, shots=shots, ways=ways, queries=queries, episodes=episodes or default
    )
    table = measure_all(chosen, features, config, seed=seed, device=where)
    if output is not None:
        table.save(output)
    if json:
        print(table.json())
    elif csv:
        print(table.csv(), end="")
    else:
        show(table.accuracies(), *([table.differences("initial-estimate")] if len(chosen) > 1 else []))
