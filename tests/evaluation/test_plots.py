import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wdae.errors import MissingExtraError, WdaeError
from wdae.evaluation.graph_plot import GraphPicture, draw_class_graph, positions
from wdae.evaluation.plots import accuracy_against_shots, training_curves
from wdae.evaluation.results import Result

pytest.importorskip("matplotlib", reason="plots need the extra wdae[plot]")


def rows(n: int = 150) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [
        {"step": i, "loss": 2 / (i + 1), "learning_rate": 0.1, "episodes_per_second": 9.0} for i in range(n)
    ]
    made[10]["validation_accuracy"] = 0.5
    made[20]["validation_accuracy"] = 0.6
    made[30]["loss"] = None
    return made


def results() -> list[Result]:
    rng = np.random.default_rng(0)
    return [
        Result.of(
            {"novel": rng.normal(0.5 + 0.05 * k, 0.1, 30), "all": rng.normal(0.4, 0.1, 30)},
            method=method,
            protocol=protocol,
            n_way=5,
            n_shot=k,
            seed=0,
        )
        for protocol in ("few-way", "all-way")
        for method in ("initial", "wdae-gnn")
        for k in (1, 5)
    ]


def graph(n: int = 12, n_novel: int = 3, prefix: str = "class") -> GraphPicture:
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(2, n, 16))
    edges = np.array([(i, (i + j) % n) for i in range(n) for j in (1, 2)])
    names = tuple(f"{prefix} {i}" for i in range(n))
    return GraphPicture(
        names, before, after, edges, rng.uniform(size=len(edges)), np.arange(n) >= n - n_novel
    )


def is_picture(path: Path) -> bool:
    start = path.read_bytes()[:200]
    return start.startswith(b"\x89PNG") if path.suffix == ".png" else b"<?xml" in start


def test_training_curves_show_each_panel_once(tmp_path: Path) -> None:
    paths = training_curves(rows(), tmp_path)
    assert [p.name for p in paths] == ["training.png", "training.svg"]
    assert all(is_picture(p) for p in paths)
    text = paths[1].read_text()
    for word in (">loss<", ">accuracy<", ">learning rate<", ">validation accuracy<", ">step<"):
        assert word in text
    assert "per second" not in text


def test_nothing_to_draw_is_no_plot(tmp_path: Path) -> None:
    assert training_curves([], tmp_path) == []
    assert training_curves([{"step": 1, "note": "x"}], tmp_path) == []
    assert accuracy_against_shots([], tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_accuracy_against_shots_has_a_figure_per_protocol(tmp_path: Path) -> None:
    paths = accuracy_against_shots(results(), tmp_path)
    assert sorted(p.name for p in paths) == [
        "accuracy-all-way-5way.png",
        "accuracy-all-way-5way.svg",
        "accuracy-few-way-5way.png",
        "accuracy-few-way-5way.svg",
    ]
    text = (tmp_path / "accuracy-few-way-5way.svg").read_text()
    for word in (">initial<", ">wdae-gnn<", ">novel<", ">all<", "accuracy, %"):
        assert word in text


def test_the_class_graph_names_its_classes(tmp_path: Path) -> None:
    paths = draw_class_graph(graph(), tmp_path)
    assert all(is_picture(p) for p in paths)
    text = paths[1].read_text()
    for i in range(12):
        assert text.count(f">class {i}<") == (2 if i >= 9 else text.count(f">class {i}<"))
    assert sum(text.count(f">class {i}<") for i in range(12)) >= 20
    assert ">before refinement<" in text
    assert ">after refinement<" in text


def test_a_large_graph_names_novel_classes_and_their_neighbours_only(tmp_path: Path) -> None:
    text = draw_class_graph(graph(300, 2), tmp_path)[1].read_text()
    assert text.count(">class 298<") == text.count(">class 299<") == 2
    assert ">class 150<" not in text


@pytest.mark.filterwarnings("error")
def test_names_with_markup_dollars_and_other_scripts_are_shown_as_they_are(tmp_path: Path) -> None:
    text = draw_class_graph(graph(4, 1, "a<b> $x$ 狐"), tmp_path)[1].read_text()
    assert ">a&lt;b&gt; $x$ 狐 3<" in text


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        training_curves(rows(), tmp_path / folder)
        accuracy_against_shots(results(), tmp_path / folder)
        draw_class_graph(graph(), tmp_path / folder)
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert len(names) == 8
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_positions_keep_the_distances_of_flat_weights() -> None:
    """Points that lie in a plane through the mean come out with their distances."""
    angles = np.linspace(0, 3, 10)
    circle = (
        np.stack([np.cos(angles), np.sin(angles)], axis=1)
        @ np.linalg.qr(np.random.default_rng(0).normal(size=(8, 2)))[0].T
    )
    before, after = positions(5 * circle[:5], circle[5:])
    flat = np.concatenate([before, after])
    for i in range(10):
        for j in range(10):
            assert np.linalg.norm(flat[i] - flat[j]) == pytest.approx(np.linalg.norm(circle[i] - circle[j]))


def test_positions_of_one_dimension_are_still_a_plane() -> None:
    before, after = positions(np.array([[1.0], [-1.0]]), np.array([[2.0], [-1.0]]))
    assert before.shape == after.shape == (2, 2)


def test_ill_shaped_graphs_are_refused() -> None:
    good = graph()
    with pytest.raises(WdaeError, match="needs novel of shape"):
        GraphPicture(good.names, good.before, good.after, good.edges, good.strengths, good.novel[:-1])


def test_a_missing_library_is_named_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'wdae\[plot\]'"):
        training_curves(rows(), tmp_path)
