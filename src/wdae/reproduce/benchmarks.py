"""The three benchmarks of the paper: MiniImageNet, tieredImageNet, ImageNet-FS."""

from __future__ import annotations

from wdae.reproduce.benchmark import REFERENCE, Benchmark, Row, Table

_ABLATIONS = {
    "no-noise": "no noise",
    "noisy-targets": "noisy targets as input",
    "no-cls-loss": "no classification loss",
    "no-rec-loss": "no reconstruction loss",
}


def _ablations(kind: str) -> tuple[Row, ...]:
    return tuple(
        Row(f"wdae-{kind}-{name}", f"wDAE-{kind.upper()}, {what}") for name, what in _ABLATIONS.items()
    )


_INITIAL = Row(REFERENCE, "initial estimate", curves=True)
_LWOF = Row("lwof", "LwoF", curves=True)
_MLP = Row("wdae-mlp", "wDAE-MLP", curves=True)
_GNN = Row("wdae-gnn", "wDAE-GNN", curves=True)
_PLUS = Row("wdae-gnn-plus", "wDAE-GNN+ (ours)", optional=True, curves=True)
_PLUS_ABLATIONS = tuple(
    Row(f"wdae-gnn-plus-{name}", f"wDAE-GNN+, {what}", optional=True)
    for name, what in {
        "no-denoiser": "no denoiser",
        "no-space": "features and base weights as they are",
        "no-transform": "features as they are",
        "no-refit": "class means as base weights",
        "refined-base": "base weights refined too",
        "no-balance": "no balance",
        "balance-on-base": "balance found on base classes",
        "free-steps": "ε free for each number of shots",
        "steps-for-novel": "ε for novel accuracy alone",
    }.items()
)
_UNBALANCED = Row("wdae-gnn-unbalanced", "wDAE-GNN, no balance", optional=True)
_BALANCED = Row("initial-estimate-balanced", "initial estimate, balanced", optional=True)
_MAIN = (_INITIAL, _LWOF, _MLP, _GNN, _PLUS)
_TRAINVAL = (
    Row("wdae-mlp-trainval", "wDAE-MLP, train+val", steps_from="wdae-mlp"),
    Row("wdae-gnn-trainval", "wDAE-GNN, train+val", steps_from="wdae-gnn"),
)


def _names(*rows: Row) -> tuple[str, ...]:
    return tuple(row.name for row in rows)


MINI_IMAGENET = Benchmark(
    name="mini-imagenet",
    title="MiniImageNet",
    protocol="few-way",
    shots=(1, 5),
    episodes=20_000,
    stage1="stage1-wrn-28-10-rotation",
    rows=(
        *_MAIN,
        _UNBALANCED,
        _BALANCED,
        *_ablations("gnn"),
        *_ablations("mlp"),
        *_TRAINVAL,
        *_PLUS_ABLATIONS,
    ),
    tables=(
        Table(
            2,
            "5-way accuracy on the novel classes",
            ("whole", "held-out"),
            _names(*_MAIN, *_ablations("gnn"), *_ablations("mlp")),
            ("novel",),
        ),
        Table(
            2,
            "the same, validation classes among the base classes",
            ("trainval",),
            _names(_INITIAL, *_TRAINVAL),
            ("novel",),
            ours=(REFERENCE,),
        ),
        Table(
            3,
            "novel classes, and all classes together, held-out pictures of base classes",
            ("held-out",),
            _names(*_MAIN, _UNBALANCED, _BALANCED),
            ("novel", "all"),
        ),
        Table(
            None,
            "what each change of wDAE-GNN+ brings",
            ("held-out",),
            _names(_INITIAL, _GNN, _PLUS, *_PLUS_ABLATIONS),
            ("novel", "all"),
        ),
    ),
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
        Table(4, "5-way accuracy on the novel classes", ("whole", "held-out"), _names(*_MAIN), ("novel",)),
    ),
)

IMAGENET_FS = Benchmark(
    name="imagenet-fs",
    title="ImageNet-FS",
    protocol="all-way",
    shots=(1, 2, 5, 10, 20),
    episodes=100,
    stage1="stage1-resnet10",
    rows=(*_MAIN, *_ablations("gnn")),
    tables=(
        Table(
            1,
            "top-5 accuracy, all novel classes at once",
            ("whole",),
            _names(*_MAIN, *_ablations("gnn")),
            ("novel_top5", "all_top5"),
        ),
    ),
    top5=True,
    half_of_base=True,
)

BENCHMARKS = {benchmark.name: benchmark for benchmark in (MINI_IMAGENET, TIERED_IMAGENET, IMAGENET_FS)}
