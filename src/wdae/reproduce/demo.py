"""The demo: both denoisers of the paper on the embedded bank, against the initial estimate."""

from __future__ import annotations

from pathlib import Path

from wdae.bank.embedded import embedded_bank
from wdae.evaluation.config import EvaluationConfig
from wdae.evaluation.table import ResultTable
from wdae.runs.run import Run
from wdae.stage2.config import DenoiserConfig, MetaRecipe, TrainingConfig
from wdae.stage2.run import report_methods, train_method


def demo_recipe(kind: str, *, episodes: int, steps: int, seed: int, device: str) -> MetaRecipe:
    """The demo's recipe for a denoiser of kind gnn or mlp."""
    return MetaRecipe(
        name=f"wdae-{kind}",
        seed=seed,
        device=device,
        denoiser=DenoiserConfig(kind=kind),
        training=TrainingConfig(steps=steps, episodes_per_step=16, validate_every=max(1, steps // 4)),
        evaluation=EvaluationConfig(episodes=episodes, step_episodes=min(1000, episodes)),
    )


def run_demo(
    folder: Path, *, episodes: int = 2000, steps: int = 400, seed: int = 0, device: str = "auto"
) -> tuple[Run, ResultTable]:
    """Train wDAE-GNN and wDAE-MLP and measure both; everything goes to the run folder."""
    bank = embedded_bank()
    recipes = [
        demo_recipe(k, episodes=episodes, steps=steps, seed=seed, device=device) for k in ("gnn", "mlp")
    ]
    run = Run.create(folder, recipes[0], seed=seed)
    methods = []
    for recipe in recipes:
        part = run if recipe is recipes[0] else Run.create(run.path / recipe.name, recipe, seed=seed)
        methods.append(train_method(part, recipe, bank))
    return run, report_methods(run, methods, recipes[0], bank)
