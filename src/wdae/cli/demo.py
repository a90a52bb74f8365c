"""``wdae demo``: the whole of stage 2 on the bank that ships with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from wdae.cli.options import Device
from wdae.printing import say


def demo(
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    episodes: int = 2000,
    steps: int = 400,
    seed: int = 0,
    device: Device = "auto",
) -> None:
    """Train wDAE-GNN and wDAE-MLP on the embedded bank and measure them against the initial estimate.

    It takes minutes, and needs neither a GPU nor data.

    Parameters
    ----------
    output
        Run folder; runs/demo, or the next free number behind it, by default.
    episodes
        Test episodes.
    steps
        Training steps.
    seed
        Every random choice follows from it.
    """
    from wdae.evaluation.text_table import show
    from wdae.reproduce.demo import run_demo

    folder = _free_folder() if output is None else output
    run, table = run_demo(folder, episodes=episodes, steps=steps, seed=seed, device=device)
    show(table.accuracies(), table.differences("initial-estimate"))
    say(f"report: {run.report}")


def _free_folder() -> Path:
    folder, number = Path("runs/demo"), 1
    while folder.exists():
        number += 1
        folder = Path(f"runs/demo-{number}")
    return folder
