"""The figures of the paper's tables, in percent, to stand beside ours.

``REPORTED[benchmark][table][row][metric][shots]`` is a mean with its 95 % interval, under our names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wdae.bank import FeatureBank

Figure = tuple[float, float | None]
ByShots = Mapping[int, Figure]

_FS_SHOTS = (1, 2, 5, 10, 20)
_FS_NOVEL_CI = (0.21, 0.15, 0.08, 0.06, 0.05)
_FS_ALL_CI = (0.13, 0.10, 0.05, 0.04, 0.03)


def _novel(one: Figure, five: Figure) -> dict[str, ByShots]:
    return {"novel": {1: one, 5: five}}


def _joint(novel: tuple[Figure, Figure], every: tuple[Figure, Figure]) -> dict[str, ByShots]:
    return {"novel": dict(zip((1, 5), novel, strict=True)), "all": dict(zip((1, 5), every, strict=True))}


def _top5(novel: Sequence[float] | None, every: Sequence[float]) -> dict[str, ByShots]:
    whole: dict[str, ByShots] = {
        "all_top5": dict(zip(_FS_SHOTS, zip(every, _FS_ALL_CI, strict=True), strict=True))
    }
    if novel is None:
        return whole
    return {"novel_top5": dict(zip(_FS_SHOTS, zip(novel, _FS_NOVEL_CI, strict=True), strict=True)), **whole}


REPORTED: dict[str, dict[int, dict[str, dict[str, ByShots]]]] = {
    "imagenet-fs": {
        1: {
            "initial-estimate": _top5((45.4, 56.9, 68.9, 74.5, 77.7), (57.0, 64.3, 72.3, 75.6, 77.3)),
            "lwof": _top5((46.2, 57.5, 69.2, 74.8, 78.1), (58.2, 65.2, 72.7, 76.5, 78.7)),
            "wdae-mlp": _top5((47.6, 59.2, 70.0, 74.8, 77.7), (59.0, 66.1, 72.9, 75.8, 77.4)),
            "wdae-gnn": _top5((48.0, 59.7, 70.3, 75.0, 77.8), (59.1, 66.3, 73.2, 76.1, 77.5)),
            "wdae-gnn-no-noise": _top5((47.6, 59.0, 70.0, 74.9, 77.8), (60.0, 66.0, 72.9, 75.8, 77.4)),
            "wdae-gnn-noisy-targets": _top5((47.8, 59.4, 70.1, 74.8, 77.7), (58.7, 66.0, 73.1, 76.0, 77.5)),
            "wdae-gnn-no-cls-loss": _top5((47.7, 59.1, 69.8, 74.6, 77.6), (58.4, 65.5, 72.7, 75.8, 77.5)),
            "wdae-gnn-no-rec-loss": _top5((47.8, 59.4, 70.1, 75.0, 77.8), (58.7, 66.0, 73.1, 76.1, 77.6)),
            "prototypical": _top5((39.3, 54.4, 66.3, 71.2, 73.9), (49.5, 61.0, 69.7, 72.9, 74.6)),
            "matching": _top5((43.6, 54.0, 66.0, 72.5, 76.9), (54.4, 61.0, 69.0, 73.7, 76.5)),
            "logistic-regression": _top5((38.4, 51.1, 64.8, 71.6, 76.6), (40.8, 49.9, 64.2, 71.9, 76.9)),
            "logistic-regression-h": _top5((40.7, 50.8, 62.0, 69.3, 76.5), (52.2, 59.4, 67.6, 72.8, 76.9)),
            "sgm-h": _top5(None, (54.3, 62.1, 71.3, 75.8, 78.1)),
            "batch-sgm": _top5(None, (49.3, 60.5, 71.4, 75.8, 78.5)),
            "prototype-matching-h": _top5((45.8, 57.8, 69.0, 74.3, 77.4), (57.6, 64.7, 71.9, 75.2, 77.5)),
        }
    },
    "mini-imagenet": {
        2: {
            "initial-estimate": _novel((59.68, 0.14), (76.48, 0.11)),
            "lwof": _novel((60.06, 0.14), (76.39, 0.11)),
            "wdae-mlp": _novel((60.61, 0.15), (76.56, 0.11)),
            "wdae-gnn": _novel((61.07, 0.15), (76.75, 0.11)),
            "wdae-mlp-trainval": _novel((62.67, 0.15), (78.70, 0.10)),
            "wdae-gnn-trainval": _novel((62.96, 0.15), (78.85, 0.10)),
            "wdae-gnn-no-noise": _novel((60.29, 0.14), (76.49, 0.11)),
            "wdae-gnn-noisy-targets": _novel((60.92, 0.15), (76.69, 0.11)),
            "wdae-gnn-no-cls-loss": _novel((60.96, 0.15), (76.75, 0.11)),
            "wdae-gnn-no-rec-loss": _novel((60.76, 0.15), (76.64, 0.11)),
            "wdae-mlp-no-noise": _novel((60.16, 0.15), (76.50, 0.11)),
            "wdae-mlp-noisy-targets": _novel((60.43, 0.15), (76.49, 0.11)),
            "wdae-mlp-no-cls-loss": _novel((60.55, 0.15), (76.62, 0.11)),
            "wdae-mlp-no-rec-loss": _novel((60.45, 0.15), (76.50, 0.11)),
            "maml": _novel((48.70, 1.84), (63.10, 0.92)),
            "prototypical": _novel((49.42, 0.78), (68.20, 0.66)),
            "relation": _novel((50.40, 0.80), (65.30, 0.70)),
            "gnn": _novel((50.30, None), (66.40, None)),
            "r2d2": _novel((48.70, 0.60), (65.50, 0.60)),
            "tadam": _novel((58.50, 0.30), (76.70, 0.30)),
            "shifted-neurons": _novel((57.10, 0.70), (70.04, 0.63)),
            "snail": _novel((55.71, 0.99), (68.88, 0.92)),
            "activations": _novel((59.60, 0.41), (73.74, 0.19)),
            "leo": _novel((61.76, 0.08), (77.59, 0.12)),
        },
        3: {
            "lwof": _joint(((60.03, 0.14), (76.35, 0.11)), ((55.70, 0.08), (66.27, 0.07))),
            "wdae-gnn": _joint(((61.07, 0.15), (76.75, 0.11)), ((56.55, 0.08), (67.00, 0.07))),
            "wdae-mlp": _joint(((60.61, 0.14), (76.56, 0.11)), ((56.07, 0.08), (67.05, 0.07))),
        },
    },
    "tiered-imagenet": {
        4: {
            "lwof": _novel((67.92, 0.16), (83.10, 0.12)),
            "wdae-gnn": _novel((68.18, 0.16), (83.09, 0.12)),
            "maml": _novel((51.67, 1.81), (70.30, 0.08)),
            "prototypical": _novel((53.31, 0.89), (72.69, 0.74)),
            "relation": _novel((54.48, 0.93), (71.32, 0.78)),
            "tpn": _novel((57.41, 0.94), (71.55, 0.74)),
            "leo": _novel((66.33, 0.05), (81.44, 0.09)),
        }
    },
}


FROM_PICTURES = {
    **{row: REPORTED["mini-imagenet"][2][row] for row in ("maml", "prototypical", "relation", "gnn", "r2d2")},
    "r2d2-512": _novel((51.20, 0.60), (68.20, 0.60)),
    "lwof-conv4": _novel((56.20, 0.86), (72.81, 0.62)),
}
"""The Conv-4 rows of table 2, which we train from pictures."""


def reported(benchmark: str, table: int, row: str, metric: str, n_shot: int) -> Figure | None:
    """The paper's figure for a row, where it has one.

    >>> reported("mini-imagenet", 2, "wdae-gnn", "novel", 1)
    (61.07, 0.15)
    """
    return REPORTED.get(benchmark, {}).get(table, {}).get(row, {}).get(metric, {}).get(n_shot)


@dataclass(frozen=True)
class PaperFigure:
    """What the paper reports of a method on MiniImageNet: backbone, and means by number of shots."""

    backbone: str
    accuracy: dict[int, float]
    all_classes: dict[int, float] = field(default_factory=dict)


def _quoted(row: str, backbone: str) -> PaperFigure:
    def means(table: int, metric: str) -> dict[int, float]:
        figures = REPORTED["mini-imagenet"][table].get(row, {}).get(metric, {})
        return {n_shot: mean for n_shot, (mean, _) in figures.items()}

    return PaperFigure(backbone, means(2, "novel"), means(3, "all"))


# Systems that the paper quotes from others, and its own.
_BACKBONES = {
    **dict.fromkeys(("maml", "prototypical", "relation", "gnn", "r2d2"), "Conv-4-64"),
    **dict.fromkeys(("tadam", "shifted-neurons", "snail"), "ResNet-12"),
    **dict.fromkeys(("activations", "leo"), "WRN-28-10, train+val"),
    **dict.fromkeys(("initial-estimate", "wdae-gnn", "wdae-mlp"), "WRN-28-10"),
}
MINI_IMAGENET = {
    "lwof-attention": _quoted("lwof", "WRN-28-10"),
    **{row: _quoted(row, backbone) for row, backbone in _BACKBONES.items()},
}


def paper_figures(bank: FeatureBank) -> dict[str, PaperFigure] | None:
    """The paper's figures for the data that a bank comes from; None where it has none."""
    text = " ".join(str(value) for value in bank.info.values()).lower().replace("-", "")
    return MINI_IMAGENET if "miniimagenet" in text else None
