"""The benchmarks of the paper: their rows, the tables these stand in, and the features they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["whole", "held-out", "trainval"]
"""Which model of stage 1: of every base image, with some held out, or of base and validation classes."""

REFERENCE = "initial-estimate"
"""The row that paired gains are taken over."""


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Args:
        name: of its recipe's file, of its folder and of its results.
        label: what tables call it.
        optional: left out silently where its recipe is missing.
        steps_from: the row whose ε it takes, where its own features leave no classes to choose ε on.
        curves: whether it is in the plots.
        paper: the row of the paper's table whose figures stand beside it, where that has another name.
    """

    name: str
    label: str
    optional: bool = False
    steps_from: str | None = None
    curves: bool = False
    paper: str | None = None


@dataclass(frozen=True)
class Table:
    """One table of the paper, or the part of one that needs the same features.

    Args:
        number: in the paper; None for a table of ours.
        title: what it measures.
        roles: features it is measured on; the first that is there is taken.
        rows: the initial estimate first.
        metrics: what the paper gives, under our names.
        ours: names of rows that the paper does not have here.
        reference: the row that paired gains are taken over.
    """

    number: int | None
    title: str
    roles: tuple[Role, ...]
    members: tuple[Row, ...]
    metrics: tuple[str, ...]
    ours: tuple[str, ...] = ()
    reference: str = REFERENCE

    @property
    def rows(self) -> tuple[str, ...]:
        """The names of the rows."""
        return tuple(row.name for row in self.members)


@dataclass(frozen=True)
class Network:
    """The network of our best features: it holds base images out, and serves all tables.

    Args:
        recipe: of its training, by the file's name.
        images_per_second: in training on one H200, turned copies included, as was measured.
        sizes, crops, crop_area: the views of a picture that its features are means over.
    """

    recipe: str
    images_per_second: int
    sizes: tuple[int, ...]
    crops: int
    crop_area: tuple[float, float]


@dataclass(frozen=True)
class Benchmark:
    """A data set of the paper with everything it reports on it.

    Args:
        name: of its layout and of the folder of its recipes.
        title: its name for people.
        protocol, shots, episodes: of the tables, as in the paper.
        stage1: the recipe of stage 1.
        rows: all rows, in the order they are run in.
        rivals: systems of others that the paper's tables quote, on our features; run where asked for.
        tables: what to print.
        top5: whether the paper's figures are top-5.
        half_of_base: whether the split names the base classes whose images are test queries.
        network: what pictures train; without, or with --quick, one training of ``stage1`` for each role.
        split_held_out: whether ε and balance are fitted on one half of the held-out base images and the other
            half are the test queries; else all of them are both, or nothing is fitted on them.
    """

    name: str
    title: str
    protocol: Literal["few-way", "all-way"]
    shots: tuple[int, ...]
    episodes: int
    stage1: str
    rows: tuple[Row, ...]
    tables: tuple[Table, ...]
    rivals: tuple[Row, ...] = ()
    top5: bool = False
    half_of_base: bool = False
    network: Network | None = None
    split_held_out: bool = False


def _variants(prefix: str, label: str, changes: dict[str, str], optional: bool = False) -> tuple[Row, ...]:
    return tuple(Row(f"{prefix}-{name}", f"{label}, {what}", optional) for name, what in changes.items())


_ABLATIONS = {
    "no-noise": "no noise",
    "noisy-targets": "noisy targets as input",
    "no-cls-loss": "no classification loss",
    "no-rec-loss": "no reconstruction loss",
}
_GNN_ABLATIONS = _variants("wdae-gnn", "wDAE-GNN", _ABLATIONS)
_MLP_ABLATIONS = _variants("wdae-mlp", "wDAE-MLP", _ABLATIONS)
_PLUS_CHANGES = {
    "no-denoiser": "no denoiser",
    "no-neighbours": "each class denoised alone",
    "no-space": "features and base weights as they are",
    "no-transform": "features as they are",
    "no-shrink": "not whitened",
    "no-refit": "class means as base weights",
    "refined-base": "base weights refined too",
    "no-balance": "no balance",
    "balance-on-base": "balance found on base classes",
    "free-steps": "ε free for each number of shots",
    "steps-for-novel": "ε for novel accuracy alone",
}
_PLUS_ABLATIONS = _variants("wdae-gnn-plus", "wDAE-GNN+", _PLUS_CHANGES, optional=True)
_INITIAL = Row(REFERENCE, "initial estimate", curves=True)
_LWOF = Row("lwof", "LwoF", curves=True)
_MLP = Row("wdae-mlp", "wDAE-MLP", curves=True)
_GNN = Row("wdae-gnn", "wDAE-GNN", curves=True)
_PLUS = Row("wdae-gnn-plus", "wDAE-GNN+ (ours)", optional=True, curves=True)
_MAIN = (_INITIAL, _LWOF, _MLP, _GNN, _PLUS)
_PAPER = (
    Row("wdae-mlp-paper", "wDAE-MLP, ε of the paper", optional=True, paper="wdae-mlp"),
    Row("wdae-gnn-paper", "wDAE-GNN, ε of the paper", optional=True, paper="wdae-gnn"),
)
_UNBALANCED = Row("wdae-gnn-unbalanced", "wDAE-GNN, ε by validation, no balance", optional=True)
_INITIAL_BALANCED = Row("initial-estimate-balanced", "initial estimate, balanced", optional=True)
_LWOF_BALANCED = Row("lwof-balanced", "LwoF, balanced", optional=True)
_PLUS_UNBALANCED = next(row for row in _PLUS_ABLATIONS if row.name == "wdae-gnn-plus-no-balance")
_AS_THEY_COME = (_INITIAL, _LWOF, *_PAPER, _UNBALANCED, _PLUS_UNBALANCED)
_BALANCED = (_INITIAL_BALANCED, _LWOF_BALANCED, _MLP, _GNN, _PLUS)
_TRAINVAL = (
    Row("wdae-mlp-trainval", "wDAE-MLP, train+val", steps_from="wdae-mlp"),
    Row("wdae-gnn-trainval", "wDAE-GNN, train+val", steps_from="wdae-gnn"),
)


def _rivals(**quoted: tuple[str, str]) -> tuple[Row, ...]:
    """Rows of systems of others: their names, and the backbones of the figures that the paper quotes."""
    return tuple(
        Row(name.replace("_", "-"), f"{label} (paper: {backbone})")
        for name, (label, backbone) in quoted.items()
    )


_MINI_RIVALS = _rivals(
    maml=("MAML", "Conv-4-64"),
    prototypical=("prototypical networks", "Conv-4-64"),
    relation=("relation networks", "Conv-4-64"),
    gnn=("Garcia & Bruna's graph network", "Conv-4-64"),
    r2d2=("R2-D2", "Conv-4-64"),
    tadam=("TADAM", "ResNet-12"),
    shifted_neurons=("Munkhdalai et al.", "ResNet-12"),
    snail=("SNAIL", "ResNet-12"),
    activations=("Qiao et al.", "WRN-28-10, train+val"),
    leo=("LEO", "WRN-28-10, train+val"),
)
_TIERED_RIVALS = _rivals(
    maml=("MAML", "Conv-4-64"),
    prototypical=("prototypical networks", "Conv-4-64"),
    relation=("relation networks", "Conv-4-64"),
    tpn=("TPN, transductive", "Conv-4-64"),
    leo=("LEO", "WRN-28-10"),
)
_FS_RIVALS = _rivals(
    prototypical=("prototypical networks", "ResNet-10"),
    matching=("matching networks", "ResNet-10"),
    logistic_regression=("logistic regression", "ResNet-10"),
    logistic_regression_h=("logistic regression with H", "ResNet-10"),
    sgm=("SGM", "not in it"),
    sgm_h=("SGM with H", "ResNet-10"),
    batch_sgm=("batch SGM", "ResNet-10"),
    prototype_matching_h=("prototype matching nets with H", "ResNet-10"),
)
_RIVALS_TITLE = "systems of others on the same frozen features, without their own backbones"
_NOVEL = "5-way accuracy on the novel classes"
_TRAINVAL_TITLE = "the same, validation classes among the base classes"
_JOINT_TITLE = "novel classes, and all classes together, scores as they come (the paper's way)"
_BALANCED_TITLE = "the same, with a balance of base and novel scores in every row (ours)"
_OURS_TITLE = "what each change of wDAE-GNN+ brings"

MINI_IMAGENET = Benchmark(
    name="mini-imagenet",
    title="MiniImageNet",
    protocol="few-way",
    shots=(1, 5),
    episodes=20_000,
    stage1="stage1-wrn-28-10",
    rows=(
        *_MAIN,
        *_PAPER,
        _UNBALANCED,
        _INITIAL_BALANCED,
        _LWOF_BALANCED,
        *_GNN_ABLATIONS,
        *_MLP_ABLATIONS,
        *_TRAINVAL,
        *_PLUS_ABLATIONS,
    ),
    tables=(
        Table(
            2,
            _NOVEL,
            ("whole", "held-out"),
            (*_MAIN, *_PAPER, *_GNN_ABLATIONS, *_MLP_ABLATIONS),
            ("novel",),
        ),
        Table(2, _RIVALS_TITLE, ("whole", "held-out"), (_INITIAL, *_MINI_RIVALS), ("novel",)),
        Table(2, _TRAINVAL_TITLE, ("trainval",), (_INITIAL, *_TRAINVAL), ("novel",), ours=(REFERENCE,)),
        Table(3, _JOINT_TITLE, ("held-out",), _AS_THEY_COME, ("novel", "all")),
        Table(
            3,
            _BALANCED_TITLE,
            ("held-out",),
            _BALANCED,
            ("novel", "all"),
            ours=tuple(row.name for row in _BALANCED),
            reference=_INITIAL_BALANCED.name,
        ),
        Table(
            None,
            _OURS_TITLE,
            ("held-out",),
            (_INITIAL_BALANCED, _GNN, _PLUS, *_PLUS_ABLATIONS),
            ("novel", "all"),
            reference=_INITIAL_BALANCED.name,
        ),
    ),
    rivals=_MINI_RIVALS,
    network=Network(
        "stage1-resnet12-bdc-short", images_per_second=14_800, sizes=(92,), crops=8, crop_area=(0.6, 1.0)
    ),
    split_held_out=True,
)

TIERED_IMAGENET = Benchmark(
    name="tiered-imagenet",
    title="tieredImageNet",
    protocol="few-way",
    shots=(1, 5),
    episodes=20_000,
    stage1="stage1-wrn-28-10",
    rows=_MAIN,
    tables=(
        Table(4, _NOVEL, ("whole", "held-out"), _MAIN, ("novel",)),
        Table(4, _RIVALS_TITLE, ("whole", "held-out"), (_INITIAL, *_TIERED_RIVALS), ("novel",)),
    ),
    rivals=_TIERED_RIVALS,
)

_TOP5_TITLE = "top-5 accuracy, all novel classes at once"
_TOP5 = ("novel_top5", "all_top5")
IMAGENET_FS = Benchmark(
    name="imagenet-fs",
    title="ImageNet-FS",
    protocol="all-way",
    shots=(1, 2, 5, 10, 20),
    episodes=100,
    stage1="stage1-resnet10",
    rows=(*_MAIN, *_GNN_ABLATIONS),
    tables=(
        Table(1, _TOP5_TITLE, ("whole",), (*_MAIN, *_GNN_ABLATIONS), _TOP5),
        Table(1, _RIVALS_TITLE, ("whole",), (_INITIAL, *_FS_RIVALS), _TOP5),
    ),
    rivals=_FS_RIVALS,
    top5=True,
    half_of_base=True,
)

BENCHMARKS = {benchmark.name: benchmark for benchmark in (MINI_IMAGENET, TIERED_IMAGENET, IMAGENET_FS)}
