from __future__ import annotations

import pytest
import torch
from seeded import generator

from wdae.nn import unit
from wdae.nn.noise import add_noise


@pytest.mark.parametrize("in_pieces", [True, False])  # on a CPU; as a GPU draws it
def test_rows_have_unit_length_and_the_noise_asked_for(
    in_pieces: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the normalisation the noise would be N(0, σ²); its direction shows in what is left."""
    monkeypatch.setattr("wdae.nn.noise.in_pieces", lambda _: in_pieces)
    D, deviation = 400, 0.05
    weights = unit(torch.randn(300, D, generator=generator(0)))
    out = add_noise(weights, deviation, generator(1))
    torch.testing.assert_close(out.norm(dim=-1), torch.ones(300))
    # cos(w, w + σn) = (1 + σ n·w) / |w + σn|, and |w + σn|² is close to 1 + σ² D
    cosine = (out * weights).sum(-1)
    assert float(cosine.mean()) == pytest.approx(1 / (1 + deviation**2 * D) ** 0.5, rel=0.01)
    noise = (out / cosine.unsqueeze(-1) - weights).flatten()
    assert abs(float(noise.mean())) < 4 * float(noise.std()) / len(noise) ** 0.5
    assert float(noise.std()) == pytest.approx(deviation, rel=0.02)
    kurtosis = float(((noise - noise.mean()) / noise.std()).pow(4).mean())
    assert kurtosis == pytest.approx(3, abs=0.1)


def test_blocks_draw_apart_and_the_threads_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wdae.nn.noise._BLOCK", 30)  # rows of 10: 3 a block
    weights = unit(torch.ones(2, 7, 10))
    before = torch.get_num_threads()
    draws = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            draws.append(add_noise(weights, 0.1, generator(3)))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(draws[0], other) for other in draws[1:])
    rows = draws[0].view(-1, 10)
    assert len(rows.unique(dim=0)) == 14
    assert not torch.equal(draws[0], add_noise(weights, 0.1, generator(4)))
    assert torch.equal(weights, unit(torch.ones(2, 7, 10)))
