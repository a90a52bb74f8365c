from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from wdae.bank import FeatureBank
from wdae.calibration.balance import tune
from wdae.classifier import Model, learn, load, save
from wdae.classifier.learning import as_recipe, fitted, learn_from_bank
from wdae.classifier.light.folder import ModelFolder
from wdae.errors import StorageError
from wdae.evaluation.protocol import few_way
from wdae.methods import WDAE, InitialEstimate
from wdae.methods.base import Support, base_classes
from wdae.methods.calibration import BalancedScorer, Calibration
from wdae.methods.many_shots import draw_posterior, regressed_base
from wdae.methods.records import PosteriorRecord
from wdae.methods.saved import load_method, save_method
from wdae.nn.cosine import unit
from wdae.nn.denoiser import Denoiser
from wdae.nn.posterior import regression
from wdae.parts import Part
from wdae.stage2.run import fit_method
from wdae.synthetic import synthetic_bank

BALANCE = Calibration(12.0, {1: 0.9, 20: 1.0}, {1: 0.5, 20: -1.0})


@pytest.fixture(scope="module")
def bank() -> FeatureBank:
    return synthetic_bank(20, 4, 6, 60, 16, seed=2, held_out_per_class=10)


def method(bank: FeatureBank, strength: float = 0.3) -> InitialEstimate:
    drawn = draw_posterior(bank.select(Part.BASE_TRAIN), 4, strength, 0, share=1.0, intercepts=True, fewest=9)
    return InitialEstimate(BALANCE, drawn)


def test_anchors_are_images_of_every_base_class(bank: FeatureBank) -> None:
    train = bank.select(Part.BASE_TRAIN)
    found = draw_posterior(train, 4, 0.3, 0)
    assert found is not None and found.anchors.shape == (80, 16) and found.n_base == 20
    nearest = (found.anchors @ train.features.T).max(1)
    assert bool((nearest.values > 0.999).all())
    assert torch.bincount(train.labels[nearest.indices], minlength=20).tolist() == [4] * 20
    assert draw_posterior(train, 0, 0.3, 0) is None


def test_few_shots_are_as_without_and_many_are_better(bank: FeatureBank) -> None:
    plain, learned = InitialEstimate(BALANCE), method(bank)
    for n_shot in (1, 5, 40):
        a, b = (few_way(m, bank, n_shot, n_query=10, n_episodes=60) for m in (plain, learned))
        if n_shot < 10:
            assert a.metrics == b.metrics
        else:
            assert b.metrics["area"].mean > a.metrics["area"].mean


def test_the_further_fit_leaves_novel_classes_on_a_par_with_base_classes(bank: FeatureBank) -> None:
    """Base images count more than novel ones while weights are fitted, not afterwards."""
    tuned = tune(InitialEstimate(), bank, (20,), where="validation", n_episodes=60).balance
    played = InitialEstimate(tuned)
    drawn = draw_posterior(bank.select(Part.BASE_TRAIN), 32, 0.3, 0, share=3.0, intercepts=True)
    assert drawn is not None
    learned, before = (InitialEstimate(tuned, replace(drawn, as_counted=own)) for own in (True, False))
    novel, base = (
        [few_way(m, bank, 20, n_query=10, n_episodes=60).metrics[key].mean for m in (played, learned, before)]
        for key in ("novel_in_all", "base_in_all")
    )
    assert novel[2] < novel[0] - 0.05 and novel[1] > novel[0] - 0.03
    assert base[1] > base[0] - 0.03


def test_weights_stay_as_refined_where_base_weights_move_too(bank: FeatureBank) -> None:
    """They would be fitted beside the learned base weights, and the moved ones score."""
    base, shots = base_classes(bank), Support(bank.select(Part.NOVEL).features[:24].view(1, 2, 12, 16))
    network = Denoiser(16, 8, generator=torch.Generator().manual_seed(0)).eval()
    found = {}
    for moves in (True, False):
        plain = WDAE(network, 12.0, {20: 1.0}, balance=BALANCE, refine_base=moves)
        learned = copy.copy(plain)
        learned.posterior = method(bank).posterior
        scorers = [one.on(base).adapt(shots, joint=True) for one in (plain, learned)]
        found[moves] = torch.equal(*(one(bank.select(Part.NOVEL).features[:1, None]) for one in scorers))
    assert found == {True: True, False: False}


def test_novel_accuracy_is_the_same_with_and_without_base_classes(bank: FeatureBank) -> None:
    joint, alone = (few_way(method(bank), bank, 12, n_query=5, n_episodes=20, joint=j) for j in (True, False))
    assert joint.per_episode["novel"].tolist() == pytest.approx(alone.per_episode["novel"].tolist())


def test_other_base_classes_are_not_learned_on_against(bank: FeatureBank) -> None:
    base, shots = base_classes(bank), Support(bank.select(Part.NOVEL).features[:24].view(1, 2, 12, 16))
    fewer = replace(base, weights=base.weights[:15])
    scorers = [m.on(fewer).adapt(shots, joint=True) for m in (InitialEstimate(BALANCE), method(bank))]
    torch.testing.assert_close(scorers[0].novel, scorers[1].novel)


def test_episodes_in_which_different_classes_have_many(bank: FeatureBank) -> None:
    features = bank.select(Part.NOVEL).features[:72].view(2, 3, 12, 16)
    mask = torch.ones(2, 3, 12, dtype=torch.bool)
    mask[0, 1, 4:] = mask[1, 0, 2:] = mask[1, 2, 1:] = False
    adapter = method(bank).on(base_classes(bank))
    queries = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
    both = adapter.adapt(Support(features, mask), joint=True)
    for e in range(2):
        alone = adapter.adapt(Support(features[e : e + 1], mask[e : e + 1]), joint=True)
        torch.testing.assert_close(both(queries)[e], alone(queries[e : e + 1])[0], atol=1e-5, rtol=0)
    assert isinstance(both, BalancedScorer) and both.slope.shape == (2, 1, 3)


def test_few_shots_keep_their_accuracy_beside_many(bank: FeatureBank) -> None:
    """Images of a class of fewer shots are rarer while weights are fitted, not afterwards."""
    tuned = tune(InitialEstimate(), bank, (3, 40), where="validation", n_episodes=60).balance
    drawn = draw_posterior(bank.select(Part.BASE_TRAIN), 32, 0.3, 0, share=3.0, intercepts=True, fewest=2)
    adapter = InitialEstimate(tuned, drawn).on(base_classes(bank))
    pool, generator = bank.select(Part.NOVEL), torch.Generator().manual_seed(0)
    found = {}
    for many in (3, 40):
        right = []
        for _ in range(20):
            rows = torch.stack([pool.of_class(c)[torch.randperm(60, generator=generator)] for c in range(6)])
            mask = torch.ones(1, 6, many, dtype=torch.bool)
            mask[0, :3, 3:] = False
            scorer = adapter.adapt(Support(rows[None, :, :many], mask), joint=True)
            best = scorer(rows[None, :3, 40:].flatten(1, 2))[0].argmax(1).view(3, 20)
            right.append((best == 20 + torch.arange(3)[:, None]).double().mean())
        found[many] = float(torch.stack(right).mean())
    assert found[40] > found[3] - 0.06, found


def test_it_is_kept_in_the_file(bank: FeatureBank, tmp_path: Path) -> None:
    saved = method(bank, 0.7)
    save_method(tmp_path / "m.safetensors", saved)
    again = load_method(tmp_path / "m.safetensors")
    assert isinstance(again, InitialEstimate) and again.posterior is not None and saved.posterior is not None
    assert torch.equal(again.posterior.anchors, saved.posterior.anchors)
    assert (again.posterior.strength, again.posterior.n_base) == (0.7, 20)
    assert (again.posterior.share, again.posterior.intercepts, again.posterior.fewest) == (1.0, True, 9)
    assert again.posterior.as_counted and again.posterior.eased
    state = PosteriorRecord(n_base=20, strength=0.7)  # as files of before have it
    assert not state.as_counted and not state.eased
    saved.posterior = replace(saved.posterior, anchors=torch.zeros(0, 16))
    save_method(tmp_path / "none.safetensors", saved)
    with pytest.raises(StorageError, match="base images of shape"):
        load_method(tmp_path / "none.safetensors")


def test_a_model_learns_on_with_all_its_base_classes() -> None:
    """Trained with some of the base classes set aside, it is taught beside all of them."""
    bank = synthetic_bank(20, 0, 2, 20, 12, seed=0, held_out_per_class=6)
    short = {
        "denoiser.hidden": 8,
        "training.steps": 2,
        "evaluation.step_episodes": 10,
        "evaluation.anchors": 3,
    }
    model = learn(bank, recipe=short)
    posterior = model.base.method.posterior
    assert posterior is not None and posterior.n_base == 20 and len(posterior.anchors) == 60
    rows = bank.select(Part.NOVEL).of_class(0)[:15]
    model.add({"okapi": rows})
    learned_on = model.head.weights[-1]
    model.base.method.posterior = None
    plain = type(model)(model.base)
    plain.add({"okapi": rows})
    assert not torch.allclose(plain.head.weights[-1], learned_on)


def test_by_default_all_but_single_shots_are_learned_on() -> None:
    bank = synthetic_bank(20, 0, 3, 20, 12, seed=0, held_out_per_class=6)
    short = {"denoiser.hidden": 8, "training.steps": 2, "evaluation.step_episodes": 10}
    model = learn(bank, recipe=short)
    rows = bank.select(Part.NOVEL)
    shots = {"one": rows.of_class(0)[:1], "two": rows.of_class(1)[:2], "five": rows.of_class(2)[:5]}
    model.add(shots)
    learned_on = model.head.matrix[20:]
    model.base.method.posterior = None
    plain = type(model)(model.base)
    plain.add(shots)
    moved = (plain.head.matrix[20:] - learned_on).norm(dim=1)
    assert moved[0] < 1e-5 and bool((moved[1:] > 1e-3).all())


def test_a_method_of_before_is_taught_with_as_those_of_now(bank: FeatureBank) -> None:
    before = method(bank)
    assert before.posterior is not None
    before.posterior = replace(before.posterior, as_counted=False)
    model = learn_from_bank(bank, method=before)
    assert model.base.method.posterior is not None and model.base.method.posterior.as_counted
    assert not before.posterior.as_counted


def test_one_more_class_beside_many_gives_what_all_at_once_give(
    bank: FeatureBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept of the classes before is what would be found anew, to the last digit."""
    monkeypatch.setattr("wdae.methods.many_shots.TOGETHER", 3)
    monkeypatch.setattr("wdae.nn.posterior.TOGETHER", 3)
    model = learn(bank, method="initial-estimate")
    model.base.method.posterior = replace(method(bank).posterior, fewest=2)  # type: ignore[type-var]
    pool = bank.select(Part.NOVEL)
    classes = {f"new {c}": pool.of_class(c)[:4] for c in range(6)}
    classes["the same again"] = classes["new 2"]
    for name, rows in classes.items():
        model.add({name: rows})
        assert len(model.head.names) == len(model.names)
    fresh = type(model)(model.base)
    vars(model.base).pop("adapter", None)
    fresh.add(dict(reversed(classes.items())))
    order = [fresh.names.index(name) for name in model.names]
    queries = pool.features[:20]
    assert torch.equal(model.scores(queries), fresh.scores(queries)[:, order])


def regressed(bank: FeatureBank) -> InitialEstimate:
    found = method(bank)
    assert found.posterior is not None
    found.posterior = replace(found.posterior, fewest=2, regressed=regressed_base(bank, 0.3, 0))
    return found


def test_base_weights_are_regressed_where_they_tell_images_apart_no_worse(bank: FeatureBank) -> None:
    found = regressed_base(bank, 0.3, 0)
    assert found is not None and found.shape == (20, 17)
    assert torch.equal(found, found.half().float())  # as a file keeps it
    best = bank.with_base_weights(found[:, :-1], 10.0)
    assert regressed_base(best, 1e5, 0) is None
    none_right = bank.with_base_weights(base_classes(bank).weights.flip(0), 10.0)
    assert regressed_base(none_right, 1e5, 0) is not None
    few = synthetic_bank(20, 4, 6, 30, 16, seed=2, held_out_per_class=10)  # 20 to learn from
    assert regressed_base(few, 0.3, 0) is None


def test_base_weights_are_regressed_from_all_of_some_hundred_images() -> None:
    bank = synthetic_bank(4, 2, 2, 150, 8, seed=3)
    train = bank.select(Part.BASE_TRAIN)
    assert min(train.counts) > 100
    found, rows = regressed_base(bank, 0.3, 0), unit(train.features.float())
    wanted = regression(rows, train.labels, 4, 0.3 * len(rows) / 400)
    assert found is not None
    assert torch.allclose(found, wanted, atol=0.01 * float(wanted.abs().max()))


def test_from_ten_shots_on_base_scores_are_regressed_ones(bank: FeatureBank) -> None:
    learned = regressed(bank)
    assert learned.posterior is not None and learned.posterior.regressed is not None
    adapter, novel = learned.on(base_classes(bank)), bank.select(Part.NOVEL).features
    queries, anew = novel[None, :8], learned.posterior.regressed
    for k in (9, 10):
        scores = adapter.adapt(Support(novel[: 2 * k].view(1, 2, k, 16)), joint=True)(queries)[0, :, :20]
        wanted = queries[0] @ anew[:, :-1].T + anew[:, -1]
        assert torch.allclose(scores, wanted, atol=1e-4) == (k == 10)
    joint = few_way(learned, bank, 12, n_query=5, n_episodes=20)
    alone = few_way(learned, bank, 12, n_query=5, n_episodes=20, joint=False)
    assert joint.per_episode["novel"].tolist() == pytest.approx(alone.per_episode["novel"].tolist())


def test_regressed_base_scores_in_some_episodes_alone(bank: FeatureBank) -> None:
    features = bank.select(Part.NOVEL).features[:72].view(2, 3, 12, 16)
    mask = torch.ones(2, 3, 12, dtype=torch.bool)
    mask[0, :, 4:] = mask[1, 0, 2:] = False  # none of many shots, and two classes of three
    adapter = regressed(bank).on(base_classes(bank))
    queries = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(0))
    both = adapter.adapt(Support(features, mask), joint=True)
    for e in range(2):
        alone = adapter.adapt(Support(features[e : e + 1], mask[e : e + 1]), joint=True)
        torch.testing.assert_close(both(queries)[e], alone(queries[e : e + 1])[0], atol=1e-4, rtol=0)
    assert isinstance(both, BalancedScorer) and both.base_slope is not None
    assert both.base_slope.shape == (2, 1, 20)


def test_a_model_scores_as_its_method_does_beside_regressed_weights(
    bank: FeatureBank, tmp_path: Path
) -> None:
    """Classes of one, five and fifteen shots in one model, which is the same when it is read again."""
    rows = bank.select(Part.NOVEL)
    shots = {"a": rows.of_class(0)[:1], "b": rows.of_class(1)[:5], "c": rows.of_class(2)[:15]}
    model = learn_from_bank(bank, method=regressed(bank))
    posterior = model.base.method.posterior
    assert posterior is not None and posterior.regressed is not None
    model.add(shots)
    mask = torch.zeros(1, 3, 15, dtype=torch.bool)
    features = torch.zeros(1, 3, 15, 16)
    for i, some in enumerate(shots.values()):
        mask[0, i, : len(some)], features[0, i, : len(some)] = True, some
    queries = rows.features[:30]
    wanted = model.base.adapter.adapt(Support(features, mask), joint=True)(queries[None])[0]
    torch.testing.assert_close(model.scores(queries), wanted, atol=1e-4, rtol=1e-4)
    save(model, tmp_path / "model")
    assert torch.equal(load(tmp_path / "model").scores(queries), model.scores(queries))
    answers = ModelFolder.open(tmp_path / "model").answers()
    light = torch.from_numpy(answers.scores(queries.numpy()))
    torch.testing.assert_close(light, model.scores(queries), atol=1e-4, rtol=1e-4)
    model.remove(["c"])
    plain = Model(replace(model.base))
    plain.add({name: shots[name] for name in "ab"})
    assert torch.equal(model.head.gains[:20], plain.head.gains[:20])
    assert float(model.head.gains[:20].std()) == 0  # base classes are scored as before again


def test_weights_that_learn_again_from_held_out_images_are_not_regressed(bank: FeatureBank) -> None:
    model = learn_from_bank(replace(bank, base_weights=None), method=regressed(bank))
    assert model.base.method.posterior is not None and model.base.method.posterior.regressed is None


def test_regressed_weights_are_kept_in_the_file(bank: FeatureBank, tmp_path: Path) -> None:
    saved = regressed(bank)
    assert saved.posterior is not None and saved.posterior.regressed is not None
    save_method(tmp_path / "m.safetensors", saved)
    again = load_method(tmp_path / "m.safetensors")
    assert isinstance(again, InitialEstimate) and again.posterior is not None
    assert again.posterior.regressed is not None
    assert torch.equal(again.posterior.regressed, saved.posterior.regressed)
    saved.posterior = replace(saved.posterior, regressed=torch.zeros(20, 16))
    save_method(tmp_path / "short.safetensors", saved)
    with pytest.raises(StorageError, match="regressed base weights of shape"):
        load_method(tmp_path / "short.safetensors")


def test_held_out_images_that_test_have_no_say_in_base_weights(
    bank: FeatureBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {
        "denoiser.hidden": 8,
        "training.steps": 2,
        "evaluation.step_episodes": 10,
        "space.shrink": 1.0,
        "space.power": 1.0,
        "space.centre": 0.0,
    }
    seen: list[int] = []

    def count(some: FeatureBank, *_: object) -> None:
        seen.append(sum(some.counts(Part.BASE_HELD_OUT)))

    monkeypatch.setattr("wdae.stage2.run.regressed_base", count)
    for split in (False, True):
        recipe = as_recipe(short | {"evaluation.split_held_out": split})
        fit_method(fitted(recipe, bank), bank)
    assert seen == [200, 100]
