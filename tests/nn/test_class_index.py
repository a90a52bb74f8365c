"""An index of classes: its graph, what depends on it, and files that are no index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from wdae.nn.class_index import RECALL, ClassIndex, check_index, search_width
from wdae.nn.cosine import unit
from wdae.nn.denoiser import Denoiser
from wdae.nn.graph import build_graph, surroundings
from wdae.nn.incremental import BaseState

pytest.importorskip("usearch")
D = 24


def classes(n: int, seed: int = 0) -> Tensor:
    """Unit rows in clusters, as class weights lie."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(max(1, n // 40), D, generator=generator)
    rows = centres[torch.randint(len(centres), (n,), generator=generator)]
    return unit(rows + torch.randn(n, D, generator=generator))


def denoiser(layers: int = 2) -> Denoiser:
    made = Denoiser(D, 16, layers, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():  # running statistics of their own, as training leaves them
        for name, buffer in made.named_buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
    return made.eval()


def test_the_graph_of_an_index_is_that_of_all_pairs_but_for_its_recall() -> None:
    weights = classes(3000)
    exact, found = build_graph(weights), build_graph(weights, many=3000)
    assert exact.index is None and found.index is not None
    same = (exact.neighbours.unsqueeze(2) == found.neighbours.unsqueeze(1)).any(2).double().mean()
    assert float(same) >= RECALL
    assert found.index.facts["recall"] >= RECALL and found.index.facts["neighbours"] == 10
    own = torch.arange(3000).unsqueeze(1)
    assert not bool((found.neighbours == own).any())
    cosines = (weights.unsqueeze(1) * weights[found.neighbours]).sum(-1)
    torch.testing.assert_close(cosines, found.similarities, atol=1e-5, rtol=0)
    assert bool((found.similarities.diff(dim=1) <= 0).all())


def test_a_recall_that_is_too_low_widens_the_search_and_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("wdae.nn.class_index.WIDTH", 2)
    monkeypatch.setattr("wdae.nn.class_index.CONNECTIVITY", 4)
    monkeypatch.setattr("wdae.nn.class_index._SPARE", 1.0)
    weights = unit(torch.randn(3000, D, generator=torch.Generator().manual_seed(0)))
    found = ClassIndex.build(weights)
    assert found.facts["expansion_search"] > 11
    monkeypatch.setattr("wdae.nn.class_index._WIDEST", 11)
    capsys.readouterr()
    assert ClassIndex.build(weights).facts["recall"] < RECALL
    assert "% of the nearest classes, not 98" in capsys.readouterr().err


def test_a_search_is_not_wider_than_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wdae.nn.class_index.RECALL", 2.0)  # never reached
    found = ClassIndex.build(classes(2000))
    assert found.facts["recall"] > 0.99 and found.facts["expansion_search"] < 100


def test_a_width_that_has_the_recall_is_kept_where_wider_gains_little() -> None:
    measured = iter([0.970, 0.975, 0.979, 0.9795, 0.9797, 0.9799, 0.9802, 0.9804, 0.9808])
    recall, width = search_width(lambda width: next(measured), 32)
    assert recall == 0.9808 and width > 32
    measured = iter([0.90, 0.96, 0.9601, 0.9602, 0.9603, 0.9604, 0.9605, 0.9606])
    assert search_width(lambda width: next(measured), 32) == (0.96, 40)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_novel_classes_are_refined_from_their_surroundings_alone(layers: int) -> None:
    weights, novel = classes(2000), classes(2000, seed=0)[:10].view(2, 5, D)
    novel = unit(novel + 0.3 * torch.randn(novel.shape, generator=torch.Generator().manual_seed(5)))
    network = denoiser(layers)
    exact = BaseState(network, weights)
    near = BaseState(network, weights, graph=build_graph(weights, many=1))
    assert near.graph is not None
    full = exact.graph.neighbours if exact.graph is not None else None
    assert full is not None and bool((near.graph.neighbours == full).double().mean() > 0.99)
    a, b = (state.refine(novel, with_base=False).novel for state in (exact, near))
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    around = surroundings(near.graph, weights, novel[0], 10, layers)
    assert around.sizes[0] == 5 and around.sizes[-1] == 5 + len(around.near) <= 2005
    assert len(around.graph.neighbours) == around.sizes[-2] and len(around.sizes) == layers + 1


def test_all_classes_in_blocks_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wdae.nn.incremental._ROWS", 300)
    weights, network = classes(1000), denoiser()
    graph = build_graph(weights, many=1)
    blocks = BaseState(network, weights, graph=graph)
    whole = BaseState(network, weights, graph=type(graph)(graph.neighbours, graph.similarities))
    torch.testing.assert_close(blocks.reconstructed, whole.reconstructed, atol=1e-5, rtol=0)


def test_a_saved_index_answers_alike(tmp_path: Path) -> None:
    weights = classes(2000)
    index = ClassIndex.build(weights)
    index.save(tmp_path / "index")
    again = ClassIndex.open(tmp_path / "index", weights, index.facts)
    for a, b in zip(index.nearest(weights[:50], 5), again.nearest(weights[:50], 5), strict=True):
        assert torch.equal(a, b)


def test_files_that_are_no_sound_index_are_refused(tmp_path: Path) -> None:
    weights = classes(600)
    ClassIndex.build(weights).save(tmp_path / "index")
    data = np.fromfile(tmp_path / "index", dtype=np.uint8)
    check_index(data, 600, D)
    for n_classes, dim in ((601, D), (600, D + 1), (0, D)):
        with pytest.raises(ValueError, match="index"):
            check_index(data, n_classes, dim)
    tape = 8 + 600 * D * 2 + 64 + 40 + 2 * 600
    for at, value in (
        (tape - 2, 9),
        (tape + 8, 1),
        (tape + 10, 200),
        (tape + 16, 99),
        (len(data) - 700, 255),
    ):
        forged = data.copy()
        forged[at] = value
        with pytest.raises(ValueError, match="index"):
            check_index(forged, 600, D)
    with pytest.raises(ValueError, match="cut short"):
        check_index(data[:100], 600, D)
    with pytest.raises(ValueError, match="longer or shorter"):
        check_index(data[:-1], 600, D)
    generator = np.random.default_rng(0)
    for _ in range(200):  # whatever is changed: refused, or an index that leads nowhere outside itself
        forged = data.copy()
        forged[generator.integers(8 + 600 * D * 2, len(data), size=3)] = generator.integers(0, 256, size=3)
        (tmp_path / "forged").write_bytes(forged.tobytes())
        try:
            found = ClassIndex.open(tmp_path / "forged", weights, {"expansion_search": 64})
        except ValueError:
            continue
        assert found.nearest(weights[:20], 5)[0].shape == (20, 5)
