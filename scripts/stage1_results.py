"""Stage 1 for the documents: keep what a run of ``wdae pretrain`` showed, and write its part of the page.

    python scripts/stage1_results.py NAME runs/full --note "..." [--views LABEL RESULTS ...]

``NAME`` becomes ``results/stage1/NAME.json``: recipe, curves, the kept model's figures, and the initial
estimate's accuracies that ``wdae evaluate --bank BANK -o RESULTS`` measured, for features of single pictures
and for means over views of a picture. ``make_results.py write`` puts all of them on the page.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from wdae.evaluation.paper import MINI_IMAGENET
from wdae.evaluation.results import Estimate
from wdae.evaluation.table import ResultTable
from wdae.printing import markdown_table
from wdae.reproduce.render import commit
from wdae.stage1.model_file import WEIGHTS
from wdae.storage.files import sha256
from wdae.storage.records import read_json, write_json

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "results" / "stage1"
CURVE = ("step", "epoch", "rate", "loss", "class_loss", "turn_loss", "accuracy", "turn_accuracy")
WATCHED = ("step", "epoch", "val_1shot", "val_5shot", "base_accuracy", "scale")
METRICS = ("novel", "base", "all")
POINTS = 150
WORDS = """\
Recognition models trained on the 64 base classes; validation classes say which to keep. Figures are the
initial estimate's, 5-way on the 20 novel classes, on other episodes than those of the other tables; *base*
is accuracy on held-out pictures among the base classes. *Single*: features of one picture; *mirrored*: mean
over the picture and its mirror image, at one size or several; *crops*: and over random crops. Accuracies on
validation classes in the list are of single pictures, 2,000 episodes. Images/s count turned copies. A model
of the list that has no row in the table was not measured in this way. The paper's initial estimate, on single
pictures:
"""


def collect(name: str, run: Path, model: Path, views: dict[str, Path], note: str) -> dict[str, Any]:
    """The record of one training; the curve is thinned to some ``POINTS`` lines."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    card, environment = read_json(model / "model.json"), read_json(run / "environment.json")
    recipe = {key: value for key, value in card["recipe"].items() if value is not None}
    recipe["data"] = {
        k: v for k, v in recipe["data"].items() if k not in ("path", "cache_dir") and v is not None
    }
    digests: dict[str, Any] = {"weights": _digest(model)}
    if "start" in recipe:
        digests["start"] = _digest(Path(recipe["start"]))
        recipe["start"] = True
    if "distillation" in recipe:
        teachers = recipe["distillation"]["teachers"]
        digests["teachers"] = [_digest(Path(teacher)) for teacher in teachers]
        recipe["distillation"] |= {"teachers": len(teachers)}
    last = lines[-1]
    return {
        "name": name,
        "note": note,
        "recipe": recipe,
        "digests": digests,
        "environment": {
            key: environment.get(key) for key in ("wdae", "commit", "torch", "gpu", "cpu", "cores")
        },
        "figures": card["figures"],
        "images_per_s": last.get("epoch_images_per_s"),
        "tflops": last.get("epoch_tflops"),
        "curve": _columns(CURVE, steps[:: max(1, len(steps) // POINTS)]),
        "watched": _columns(WATCHED, [line for line in lines if "val_1shot" in line]),
        "initial_estimate": {label: _accuracies(folder) for label, folder in views.items()},
    }


def _digest(model: Path) -> str | None:
    """SHA-256 of a model's weights; None where they are no longer there."""
    path = model / WEIGHTS
    return sha256(path) if path.is_file() else None


def _columns(names: tuple[str, ...], lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: line[name] for name in names if name in line} for line in lines]


def _accuracies(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        str(result.n_shot): {
            "episodes": result.episodes["n_episodes"],
            **{name: vars(result.metrics[name]) for name in METRICS if name in result.metrics},
        }
        for result in ResultTable.load(folder)
    }


def section(folder: Path, picture: Path) -> list[str]:
    """The page's part on stage 1: a table of the models, their recipes' main points, and the curves."""
    records = [read_json(path) for path in sorted(folder.glob("*.json"))]
    if not records:
        return []
    out = ["## Stage 1 on MiniImageNet", ""]
    paper = MINI_IMAGENET["initial-estimate"].accuracy
    out += [
        *WORDS.splitlines(),
        f"{paper[1]} (1-shot), {paper[5]} (5-shot).",
        "",
    ]
    head = ["model", "backbone", "images a class", "views", "1-shot", "5-shot", "base", "episodes"]
    rows = []
    for record in records:
        held_out = record["recipe"]["data"].get("held_out", 0)
        for views, found in record["initial_estimate"].items():
            cells = [record["name"], record["recipe"]["backbone"], str(600 - held_out), views]
            cells += [Estimate(**found[k]["novel"]).percent() for k in ("1", "5")]
            cells.append(Estimate(**found["1"]["base"]).percent() if "base" in found["1"] else "")
            cells.append(f"{found['1']['episodes']:,}")
            rows.append(cells)
    out += [*markdown_table(head, rows, left=["model", "backbone", "views"]), ""]
    for record in records:
        recipe, figures = record["recipe"], record["figures"]
        speed = record.get("images_per_s")
        out.append(
            f"- **{record['name']}**: {record['note']} {recipe['epochs']} epochs; validation classes "
            f"{figures['val_1shot']:.2f} / {figures['val_5shot']:.2f}"
            + (f"; held-out base images {figures['base_accuracy']:.2f}" if "base_accuracy" in figures else "")
            + (f"; {speed:,.0f} images/s, {record['tflops']:.0f} TFLOP/s" if speed else "")
            + (f". {where['gpu']}, torch {where['torch']}, " if (where := record["environment"]) else ". ")
            + f"{commit(where)}."
        )
    out.append("")
    _draw(records, picture)
    if picture.exists():
        out += [f"![Curves of stage 1](images/{picture.name})", ""]
        out += ["*Training loss of the class scores, and 5-way accuracy on validation classes.*", ""]
    return out


def _draw(records: list[dict[str, Any]], path: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        print("the curves of stage 1 stay as they are: matplotlib is missing", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), constrained_layout=True)
    for number, record in enumerate(records):
        colour = f"C{number}"
        curve, watched = record["curve"], record["watched"]
        left.plot(
            [p["epoch"] for p in curve], [p["class_loss"] for p in curve], color=colour, label=record["name"]
        )
        for shots, style in ((1, "--"), (5, "-")):
            right.plot(
                [p["epoch"] for p in watched],
                [p[f"val_{shots}shot"] for p in watched],
                style,
                color=colour,
                marker=".",
                label=f"{record['name']}, {shots}-shot",
            )
    left.set(xlabel="epoch", ylabel="class loss")
    right.set(xlabel="epoch", ylabel="validation accuracy, %")
    left.legend(fontsize=7)
    right.legend(fontsize=6)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("run", type=Path)
    parser.add_argument("--model", type=Path, default=None, help="default: RUN/model")
    parser.add_argument("--views", nargs=2, action="append", default=[], metavar=("LABEL", "RESULTS"))
    parser.add_argument("--note", default="")
    args = parser.parse_args()
    views = {label: Path(folder) for label, folder in args.views}
    record = collect(args.name, args.run, args.model or args.run / "model", views, args.note)
    RECORDS.mkdir(parents=True, exist_ok=True)
    write_json(RECORDS / f"{args.name}.json", record)
    print(RECORDS / f"{args.name}.json")


if __name__ == "__main__":
    main()
