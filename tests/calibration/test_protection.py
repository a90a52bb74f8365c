"""How often novel classes are expected so that base classes keep what they have."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from wdae.bank.embedded import embedded_bank
from wdae.calibration.balance import measured, tune
from wdae.calibration.protection import ALLOWED, protecting_shares
from wdae.calibration.pseudo_novel import halves, splits
from wdae.evaluation.protocol import few_way
from wdae.methods import InitialEstimate
from wdae.methods.calibration import Calibration
from wdae.methods.many_shots import draw_posterior
from wdae.parts import Part


@pytest.mark.parametrize("n_shot", [1, 5])
def test_base_classes_lose_what_is_allowed_and_no_more(n_shot: int) -> None:
    """Found on half of the validation classes, measured on both halves by an evaluation of its own."""
    bank = embedded_bank()
    method = InitialEstimate(tune(InitialEstimate(), bank, (n_shot,), n_episodes=200).balance)
    found = halves(splits(bank, "validation"))[0]
    shares = protecting_shares(method, found, (n_shot,))
    assert method.balance is not None and method.balance.novel_share == 0.5  # as it was
    method.balance = replace(method.balance, protecting=shares, novel_share=None)
    got = few_way(method, bank, n_shot, n_episodes=300, seed=7, part=Part.VALIDATION).per_episode
    lost = float((got["base"] - got["base_in_all"]).mean())
    assert 0.3 * ALLOWED < lost < 1.5 * ALLOWED
    method.balance = replace(method.balance, novel_share=0.5)
    half = few_way(method, bank, n_shot, n_episodes=300, seed=7, part=Part.VALIDATION).per_episode
    assert float((half["base"] - half["base_in_all"]).mean()) > 2 * lost


def test_the_prior_follows_the_shots_only_where_no_share_is_given() -> None:
    shots = torch.tensor([1, 5, 2, 1, 5])
    balance = Calibration(1.0, offsets={1: 0.0}, novel_share=None, protecting={1: 0.1, 5: 0.4})
    prior = balance.prior(10, shots)
    assert prior[0] == prior[3] < prior[2] < prior[1] == prior[4]
    assert float(prior[1]) == pytest.approx(torch.tensor(0.4 / 5 * 10 / 0.6).log().item(), abs=1e-6)
    given = replace(balance, novel_share=0.5).prior(10, shots)
    assert given.unique().tolist() == pytest.approx([torch.tensor(2.0).log().item()])
    two = replace(balance, novel_share=0.5).prior(10, shots[:2])  # two fifths of the share
    assert float(two[0]) == pytest.approx(torch.tensor(0.2 / 2 * 10 / 0.8).log().item(), abs=1e-6)


def test_shares_of_many_shots_are_found_where_classes_are_learned_on() -> None:
    """More shots bring such classes nearer to base images, so that less of a share protects these."""
    bank = embedded_bank()
    method = InitialEstimate(tune(InitialEstimate(), bank, (1, 20), n_episodes=60).balance)
    assert sorted(measured(method, bank).protecting) == [1, 20]
    method.posterior = draw_posterior(bank.select(Part.BASE_TRAIN), 16, 0.3, 0, share=3.0, intercepts=True)
    shares = measured(method, bank).protecting
    assert sorted(shares) == [1, 20, 100]  # 150 images a class are too few for 500
    assert shares[100] < shares[20]


def test_a_method_without_a_balance_has_nothing_to_protect_with() -> None:
    assert protecting_shares(InitialEstimate(), splits(embedded_bank(), "validation"), (1,)) == {}
