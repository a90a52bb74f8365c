from __future__ import annotations

import pytest
import torch

from wdae.bank import FeatureBank
from wdae.calibration.step_size import STEPS, choose_steps, step_curve
from wdae.errors import EpisodeError
from wdae.evaluation.protocol import few_way
from wdae.methods import WDAE, InitialEstimate
from wdae.nn import Denoiser
from wdae.parts import Part
from wdae.synthetic import synthetic_bank


def denoiser(bank: FeatureBank) -> Denoiser:
    return Denoiser(bank.dim, 10, 2, 0.9, generator=torch.Generator().manual_seed(1)).eval()


@pytest.mark.parametrize(("n_shot", "n_steps"), [(1, 1), (5, 1), (1, 3)])
def test_curve_is_the_accuracy_at_each_step(small_bank: FeatureBank, n_shot: int, n_steps: int) -> None:
    """One pass of the denoiser for all ε gives what evaluating each gives; so do several for each ε."""
    net = denoiser(small_bank)
    options = {"n_query": 8, "n_episodes": 100, "seed": 5}
    curve = step_curve(WDAE(net, n_steps=n_steps), small_bank, n_shot, steps=(0.0, 0.3, 1.0), **options)  # type: ignore[arg-type]
    for step, accuracy in curve.items():
        result = few_way(
            WDAE(net, steps={n_shot: step}, n_steps=n_steps),
            small_bank,
            n_shot,
            joint=False,
            part=Part.VALIDATION,
            **options,  # type: ignore[arg-type]
        )
        assert accuracy == pytest.approx(result.metrics["novel"].mean, abs=2e-4)
    start = few_way(InitialEstimate(), small_bank, n_shot, joint=False, part=Part.VALIDATION, **options)  # type: ignore[arg-type]
    assert curve[0.0] == pytest.approx(start.metrics["novel"].mean, abs=2e-4)


def test_the_best_of_each_curve_is_chosen(small_bank: FeatureBank) -> None:
    method = WDAE(denoiser(small_bank))
    chosen = choose_steps(method, small_bank, [1, 5], n_episodes=100, seed=5)
    for n_shot, step in chosen.items():
        curve = step_curve(method, small_bank, n_shot, n_episodes=100, seed=5)
        assert curve[step] == max(curve.values())
    assert list(chosen) == [1, 5]
    assert STEPS == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def test_fewer_validation_classes_than_ways() -> None:
    bank = synthetic_bank(8, 3, 0, 20, 8, seed=0, held_out_per_class=1)
    assert max(step_curve(WDAE(denoiser(bank)), bank, 1, n_episodes=20).values()) > 1 / 3


def test_a_bank_without_validation_classes() -> None:
    bank = synthetic_bank(8, 0, 3, 20, 8, seed=0, held_out_per_class=1)
    with pytest.raises(
        EpisodeError, match="chosen on validation classes, and the bank has none; give the steps"
    ):
        choose_steps(WDAE(denoiser(bank)), bank, [1])
