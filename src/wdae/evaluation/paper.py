"""The paper's figures for MiniImageNet (its tables 2 and 3), to stand beside ours; means in percent."""

from __future__ import annotations

from dataclasses import dataclass, field

from wdae.bank import FeatureBank


@dataclass(frozen=True)
class PaperFigure:
    """What the paper reports for a method: its backbone, 5-way novel accuracy and "all" accuracy by shots."""

    backbone: str
    accuracy: dict[int, float]
    all_classes: dict[int, float] = field(default_factory=dict)


MINI_IMAGENET = {
    "maml": PaperFigure("Conv-4-64", {1: 48.70, 5: 63.10}),
    "prototypical": PaperFigure("Conv-4-64", {1: 49.42, 5: 68.20}),
    "relation": PaperFigure("Conv-4-64", {1: 50.40, 5: 65.30}),
    "gnn": PaperFigure("Conv-4-64", {1: 50.30, 5: 66.40}),
    "r2d2": PaperFigure("Conv-4-64", {1: 48.70, 5: 65.50}),
    "snail": PaperFigure("ResNet-12", {1: 55.71, 5: 68.88}),
    "activations": PaperFigure("WRN-28-10, train+val", {1: 59.60, 5: 73.74}),
    "leo": PaperFigure("WRN-28-10, train+val", {1: 61.76, 5: 77.59}),
    "lwof-attention": PaperFigure("WRN-28-10", {1: 60.06, 5: 76.39}, {1: 55.70, 5: 66.27}),
    "initial-estimate": PaperFigure("WRN-28-10", {1: 59.68, 5: 76.48}),
    "wdae-gnn": PaperFigure("WRN-28-10", {1: 61.07, 5: 76.75}, {1: 56.55, 5: 67.00}),
    "wdae-mlp": PaperFigure("WRN-28-10", {1: 60.61, 5: 76.56}, {1: 56.07, 5: 67.05}),
}


def paper_figures(bank: FeatureBank) -> dict[str, PaperFigure] | None:
    """The paper's figures for the data a bank says it comes from, where there are any."""
    text = " ".join(str(value) for value in bank.info.values()).lower().replace("-", "")
    return MINI_IMAGENET if "miniimagenet" in text else None
