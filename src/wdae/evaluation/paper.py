"""The paper's figures for MiniImageNet (its table 2), to stand beside ours; means in percent."""

from __future__ import annotations

from dataclasses import dataclass

from wdae.bank import FeatureBank


@dataclass(frozen=True)
class PaperFigure:
    """What the paper reports for a method: the backbone it was run on, and 5-way accuracy by shots."""

    backbone: str
    accuracy: dict[int, float]


MINI_IMAGENET = {
    "maml": PaperFigure("Conv-4-64", {1: 48.70, 5: 63.10}),
    "prototypical": PaperFigure("Conv-4-64", {1: 49.42, 5: 68.20}),
    "relation": PaperFigure("Conv-4-64", {1: 50.40, 5: 65.30}),
    "gnn": PaperFigure("Conv-4-64", {1: 50.30, 5: 66.40}),
    "r2d2": PaperFigure("Conv-4-64", {1: 48.70, 5: 65.50}),
    "snail": PaperFigure("ResNet-12", {1: 55.71, 5: 68.88}),
    "activations": PaperFigure("WRN-28-10, train+val", {1: 59.60, 5: 73.74}),
    "leo": PaperFigure("WRN-28-10, train+val", {1: 61.76, 5: 77.59}),
    "lwof-attention": PaperFigure("WRN-28-10", {1: 60.06, 5: 76.39}),
    "initial-estimate": PaperFigure("WRN-28-10", {1: 59.68, 5: 76.48}),
    "wdae-gnn": PaperFigure("WRN-28-10", {1: 61.07, 5: 76.75}),
    "wdae-mlp": PaperFigure("WRN-28-10", {1: 60.61, 5: 76.56}),
}


def paper_figures(bank: FeatureBank) -> dict[str, PaperFigure] | None:
    """The paper's figures for the data a bank says it comes from, where there are any."""
    text = " ".join(str(value) for value in bank.info.values()).lower().replace("-", "")
    return MINI_IMAGENET if "miniimagenet" in text else None
