"""The detector of what is no class: false alarms as asked for, on base and on added classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from wdae import FeatureBank, Part, synthetic_bank
from wdae.calibration.familiarity import Familiarity
from wdae.calibration.fit_detector import _cautious, fit_detector
from wdae.calibration.outlier_pictures import draw_outliers
from wdae.calibration.outlier_test import with_least
from wdae.calibration.strays import _groups, _limit
from wdae.calibration.unknown import RATE, Detector, Seen, joined, share_below
from wdae.classifier import Model, load, save
from wdae.classifier.learning import learn_from_bank
from wdae.classifier.predictions import predictions
from wdae.classifier.summary import summary
from wdae.errors import StorageError
from wdae.methods.calibration import SHOTS, interpolate
from wdae.nn.cosine import unit
from wdae.storage.tensors import load_tensors


@pytest.fixture(scope="module")
def bank() -> FeatureBank:
    """30 base classes, 12 validation and 12 novel ones of 60 images, of which 30 are held out."""
    return synthetic_bank(30, 12, 12, 60, 24, seed=1, held_out_per_class=30)


@pytest.fixture(scope="module")
def outliers() -> dict[str, torch.Tensor]:
    """All near one direction, where no class is."""
    generator = torch.Generator().manual_seed(9)
    return {"noise": unit(torch.ones(24) + 0.3 * torch.randn(40, 24, generator=generator))}


@pytest.fixture(scope="module")
def detector(bank: FeatureBank, outliers: dict[str, torch.Tensor]) -> Detector:
    found = fit_detector(bank, outliers=outliers)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def learned(bank: FeatureBank, outliers: dict[str, torch.Tensor]) -> Model:
    """Learned once; tests take a model of its own with the same base classes."""
    return learn_from_bank(bank, method="initial-estimate", outliers=outliers)


def rejected(detector: Detector, rows: torch.Tensor, groups: list[torch.Tensor], rate: float) -> float:
    threshold = detector.threshold(rate, [len(group) for group in groups])
    return float((detector.familiarity(rows, detector.added(groups)) < threshold).double().mean())


@dataclass(frozen=True)
class Small:
    """A model of somebody's own: far fewer pictures than a feature has numbers."""

    detector: Detector
    base: list[torch.Tensor]
    added: list[torch.Tensor]
    unseen: torch.Tensor
    nothing: torch.Tensor

    @property
    def fresh(self) -> torch.Tensor:
        """Pictures of base classes that nothing was learned from."""
        return torch.cat([rows[20:] for rows in self.base])


@pytest.fixture(scope="module", params=[0, 1])
def small(request: pytest.FixtureRequest) -> Small:
    """11 base classes of 20 pictures, of which 4 are held out, in 256 dimensions; 5 to add, 7 unseen."""
    generator = torch.Generator().manual_seed(request.param)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    axes, common = normal(24, 256) / 16, torch.zeros(256)
    common[0] = 3.0
    means = normal(23, 24)
    classes = [unit((mean + 0.6 * normal(60, 24)) @ axes + 0.15 * normal(60, 256) + common) for mean in means]
    nothing = unit(2 * torch.eye(256)[1] + 0.1125 * normal(80, 256))
    parts = [Part.BASE_HELD_OUT.code] * 4 + [Part.BASE_TRAIN.code] * 16
    bank = FeatureBank.build(
        torch.cat([rows[:20] for rows in classes[:11]]),
        torch.arange(11).repeat_interleave(20),
        [f"class {c}" for c in range(11)],
        torch.tensor(parts * 11),
    )
    found = fit_detector(bank, outliers={"noise": nothing[:40]})
    assert found is not None
    return Small(found, classes[:11], classes[11:16], torch.cat(classes[16:]), nothing[40:])


@pytest.mark.parametrize(("n_way", "n_shot"), [(0, 0), (1, 5), (2, 5), (5, 5), (5, 1), (5, 20)])
def test_a_small_model_tells_the_unknown_however_many_classes_are_added(
    small: Small, n_way: int, n_shot: int
) -> None:
    groups = [rows[:n_shot] for rows in small.added[:n_way]]
    assert rejected(small.detector, small.nothing, groups, RATE) > 0.9
    assert rejected(small.detector, small.unseen, groups, RATE) > (0.5 if n_shot == 1 else 0.7)
    assert rejected(small.detector, small.fresh, groups, RATE) < 0.08
    if n_way > 2:
        own = torch.cat([rows[20:] for rows in small.added])
        assert rejected(small.detector, own, groups, RATE) < 0.16


def test_fresh_pictures_are_as_ordinary_as_those_held_out(small: Small) -> None:
    """However few there are to tell pictures of nothing from."""
    assert float((small.detector.ordinary(small.fresh) < 0.1 * RATE).double().mean()) < 0.01
    assert bool((small.detector.ordinary(small.nothing) < 0).all())


def test_what_is_said_of_nothing_holds_with_classes_added(small: Small) -> None:
    said = small.detector.figures["caught_noise"]
    groups = [rows[:5] for rows in small.added]
    assert said <= rejected(small.detector, small.nothing, [], RATE)
    assert said == pytest.approx(rejected(small.detector, small.nothing, groups, RATE), abs=0.1)


def test_a_detector_of_before_tells_nothing_where_its_threshold_is_0(small: Small) -> None:
    """Its added classes let through whatever is no less ordinary than the least of their examples."""
    none = (0.0,) * 201
    of_before = {k: replace(one, base=none, added=none) for k, one in small.detector.by_shots.items()}
    kept = replace(small.detector, by_shots=of_before).tensors()
    old = Detector.of_tensors({k: v for k, v in kept.items() if k != "spread"}, 11, 256)
    groups = [rows[:5] for rows in small.added]
    assert old.spread == 0 and old.threshold(RATE, [5] * 5) == 0
    assert rejected(old, small.nothing, groups, RATE) == 1
    assert rejected(old, small.nothing, groups, 0.0) == 0
    odd = [torch.cat([groups[0], small.fresh[:1]]), *groups[1:]]
    assert rejected(old, small.nothing, odd, RATE) == 1


def test_a_class_of_nothing_can_be_added(small: Small) -> None:
    spread = 0.03 * torch.randn(60, 256, generator=torch.Generator().manual_seed(5))
    pages = unit(small.nothing[:1] + spread)
    for n_shot in (1, 5):
        groups = [pages[:n_shot], small.added[0][:n_shot]]
        assert rejected(small.detector, pages[5:], groups, RATE) < 0.15
    assert rejected(small.detector, pages, [], RATE) == 1


@pytest.mark.parametrize("rate", [0.0, RATE, 0.3])
def test_numpy_finds_the_same(small: Small, rate: float) -> None:
    groups = [rows[:k] for k, rows in zip((1, 2, 5, 10, 20), small.added, strict=True)]
    added = small.detector.added(groups)
    kept = {name: t.float() if t.is_floating_point() else t for name, t in small.detector.tensors().items()}
    arrays = {name: tensor.numpy() for name, tensor in kept.items()}
    own = added.means.numpy(), added.shots.numpy(), added.ordinary.numpy()
    light = Familiarity(arrays, arrays["means"], arrays["counts"], *own)
    rows = torch.cat([small.fresh[::9], small.unseen[::9], small.nothing])
    wanted = small.detector.familiarity(rows, added)
    assert float(wanted.min()) < 0 < float(wanted.max())
    assert light.familiar(rows.numpy()) == pytest.approx(wanted.numpy(), rel=1e-3, abs=1e-3)
    assert light.is_unknown(rows.numpy(), rate).mean() == rejected(small.detector, rows, groups, rate)


@pytest.mark.parametrize("rate", [0.05, 0.2])
@pytest.mark.parametrize("n_shot", [1, 5, 7])
def test_false_alarms_are_as_asked_for_on_base_and_on_added_classes(
    bank: FeatureBank, detector: Detector, rate: float, n_shot: int
) -> None:
    held_out, pool = bank.select(Part.BASE_HELD_OUT), bank.select(Part.NOVEL)
    assert rejected(detector, held_out.features, [], rate) == pytest.approx(rate, abs=0.02)
    wrong, unseen = [], []
    for turn in range(8):
        chosen = [(turn + 2 * i) % 12 for i in range(5)]
        groups = [pool.of_class(c)[:n_shot] for c in chosen]
        own = torch.cat([pool.of_class(c)[n_shot:] for c in chosen])
        others = torch.cat([pool.of_class(c) for c in range(12) if c not in chosen])
        wrong.append([rejected(detector, rows, groups, rate) for rows in (held_out.features, own)])
        unseen.append(rejected(detector, others, groups, rate))
    base, added = torch.tensor(wrong).mean(0).tolist()
    assert base < rate + 0.03 and added < rate + 0.06
    if n_shot > 1:  # one example says too little
        assert sum(unseen) / 8 > 1.5 * max(base, added)


def test_what_is_said_of_unseen_classes_is_about_true(bank: FeatureBank, detector: Detector) -> None:
    pool = bank.select(Part.NOVEL)
    measured = rejected(detector, pool.features, [], RATE)
    assert set(detector.by_shots) == set(SHOTS)
    assert detector.figures["caught"] == pytest.approx(measured, abs=0.15)


def test_pictures_of_nothing(detector: Detector, outliers: dict[str, torch.Tensor]) -> None:
    assert detector.figures["caught_noise"] > 0.9
    assert rejected(detector, outliers["noise"], [], RATE) > 0.9
    # ... unless somebody adds a class of them
    rows = outliers["noise"]
    assert rejected(detector, rows[10:], [rows[:10]], RATE) < 0.4


def test_without_validation_classes_base_classes_play_unknown(bank: FeatureBank) -> None:
    found = fit_detector(synthetic_bank(12, 0, 0, 20, 16, seed=2, held_out_per_class=8))
    assert found is not None and found.by_shots and 0 <= found.figures["caught"] <= 1
    assert fit_detector(synthetic_bank(12, 0, 0, 20, 16, seed=2, held_out_per_class=0)) is None


def test_classes_that_play_novel_are_unknown_to_the_detector_that_they_are_tried_on() -> None:
    said, found = [], []
    for seed in (2, 3, 4):
        bank = synthetic_bank(24, 0, 24, 30, 64, seed=seed, held_out_per_class=6)
        detector, pool = fit_detector(bank), bank.select(Part.NOVEL)
        assert detector is not None and len(detector.strays) == 3
        five = [pool.of_class(c)[:5] for c in range(5)]
        others = torch.cat([pool.of_class(c) for c in range(5, 24)])
        said.append([detector.figures["caught"], detector.figures["caught_5"]])
        found.append(
            [rejected(detector, rows, some, RATE) for rows, some in ((pool.features, []), (others, five))]
        )
        own = torch.cat([pool.of_class(c)[5:] for c in range(5)])
        assert rejected(detector, own, five, RATE) < 0.1
    assert torch.tensor(said).mean(0).tolist() == pytest.approx(torch.tensor(found).mean(0).tolist(), abs=0.1)


def test_strays_are_found_at_few_false_warnings(bank: FeatureBank, detector: Detector) -> None:
    pool = bank.select(Part.NOVEL)
    sound, strange = [], []
    for c in range(12):
        for start in range(0, 60, 5):
            rows = pool.of_class(c)[start : start + 5]
            sound.append(bool((detector.agreement(rows) < detector.stray(5)).any()))
            rows = torch.cat([rows[1:], pool.of_class((c + 5) % 12)[start : start + 1]])
            strange.append(bool(detector.agreement(rows)[-1] < detector.stray(5)))
    assert sum(sound) / len(sound) <= 0.08
    assert sum(strange) / len(strange) > 2 * sum(sound) / len(sound)
    assert detector.stray(2) == -torch.inf and detector.stray(7) == pytest.approx(
        min(max(detector.stray(7), min(detector.strays.values())), max(detector.strays.values()))
    )


def test_limits_are_lower_where_sound_classes_differ() -> None:
    alike = torch.linspace(0, 1, 201).repeat(8, 1)
    assert _limit(alike) == pytest.approx(RATE, abs=0.006)
    differing = alike + torch.linspace(-0.06, 0.06, 8).unsqueeze(1)
    limit = _limit(differing)
    rates = (differing < limit).double().mean(1)
    bound = rates.mean() + 1.645 * rates.std() / 8**0.5
    assert 0.8 * RATE < float(bound) <= RATE and float(rates.mean()) < RATE
    # of so few, the one that disagrees more has the limit to itself
    two = torch.cat([alike[:1] - 1, alike[:1]])
    assert 0 < float((two[0] < _limit(two)).double().mean()) < RATE


def test_each_picture_plays_as_often_as_the_others() -> None:
    some = Seen(torch.zeros(11, 2), torch.zeros(11, 0))
    rows = torch.stack(_groups(some, 3, 9, torch.Generator().manual_seed(0)))
    assert rows.shape == (9, 3) and all(len(set(row)) == 3 for row in rows.tolist())
    assert torch.bincount(rows.flatten(), minlength=11).amax() <= 3  # three orders, in each of which once


def test_shares_below_against_counting() -> None:
    curve = tuple(float(i) for i in range(11))
    values = torch.tensor([-3.0, 0.0, 2.5, 10.0, 99.0])
    assert share_below(curve, values).tolist() == pytest.approx([0, 0, 0.25, 1, 1])


def test_a_model_keeps_its_detector(
    bank: FeatureBank, learned: Model, outliers: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    model = Model(learned.base)
    pool = bank.select(Part.NOVEL)
    model.add({"okapi": pool.of_class(0)[:5], "quokka": pool.of_class(1)[:3]})
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    rows = torch.cat([pool.features[::7], outliers["noise"]])
    for rate in (0.0, 0.05, 0.3, 1.0):
        wanted = [one.unknown for one in predictions(model, rows, 1, rate)]
        assert [one.unknown for one in predictions(again, rows, 1, rate)] == wanted
        assert any(wanted) == (rate > 0)
    said = summary(tmp_path / "model")["unknown"]
    assert "never seen" in said and "noise" in said and "5 %" in said


def test_only_some_classes_leave_the_others_unknown(bank: FeatureBank, learned: Model) -> None:
    model = Model(learned.base)
    held_out = bank.select(Part.BASE_HELD_OUT)
    rows = held_out.of_class(0)
    among = [one.unknown for one in predictions(model, rows, 1, 0.05)]
    without = [one.unknown for one in predictions(model, rows, 1, 0.05, only=model.names[1:])]
    assert sum(among) < 0.4 * len(rows) and sum(without) > sum(among)


@pytest.mark.parametrize(
    ("name", "forge"),
    [
        ("projection", lambda t: t[:, :-1]),
        ("widths", lambda t: 0 * t),
        ("means", lambda t: t * torch.inf),
        ("known", lambda t: t.flip(1)),
        ("alone", lambda t: t + 1),
        ("own", lambda t: t[:, :5]),
        ("power", lambda t: t - 9),
        ("strays", lambda t: t[:2]),
        ("shots", lambda t: t + 1),
        ("exponent", lambda t: -t),
        ("spread", lambda t: t - 1e3),
    ],
)
def test_a_forged_detector_is_refused(detector: Detector, name: str, forge: object) -> None:
    kept = detector.tensors()
    assert Detector.of_tensors(kept, 30, 24).known == pytest.approx(detector.known, rel=1e-5)
    assert callable(forge)
    with pytest.raises((ValueError, RuntimeError)):
        Detector.of_tensors(kept | {name: forge(kept[name])}, 30, 24)


def test_a_model_with_half_a_detector_is_refused(learned: Model, tmp_path: Path) -> None:
    from wdae.storage import manifest as manifests
    from wdae.storage.tensors import save_tensors

    save(Model(learned.base), tmp_path / "model")
    file = tmp_path / "model" / "base.safetensors"
    tensors = {k: v.clone() for k, v in load_tensors(file).items() if k != "unknown/widths"}
    save_tensors(file, tensors)
    from wdae.classifier.store import ModelManifest

    manifest = manifests.read(ModelManifest, tmp_path / "model").model_dump(mode="json")
    content = {k: v for k, v in manifest.items() if k not in ("format", "version", "written_by", "sha256")}
    content["files"]["base.safetensors"] = manifests.entry(file)
    manifests.write(ModelManifest, tmp_path / "model", content)
    with pytest.raises(StorageError, match="altered"):
        load(tmp_path / "model")


def test_a_model_without_a_detector_goes_by_its_scores(bank: FeatureBank, learned: Model) -> None:
    old = Model(replace(learned.base, detector=None))
    rows = bank.select(Part.BASE_HELD_OUT).features
    share = sum(one.unknown for one in predictions(old, rows, 1, 0.05)) / len(rows)
    assert share == pytest.approx(0.05, abs=0.01)


def test_drawn_outliers_are_the_same_for_a_seed(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    first, again = draw_outliers(tmp_path / "a", 2, 0), draw_outliers(tmp_path / "b", 2, 0)
    other = draw_outliers(tmp_path / "c", 2, 1)
    for kind in first:
        bytes_ = [[file.read_bytes() for file in some[kind]] for some in (first, again, other)]
        assert bytes_[0] == bytes_[1] != bytes_[2]


def test_few_pictures_make_thresholds_cautious() -> None:
    """Of nineteen pictures the least familiar one counts as a twentieth, with the one to come."""
    familiar = torch.linspace(0.05, 0.95, 19)
    assert interpolate(_cautious(familiar, 19), RATE) == pytest.approx(0.05, abs=0.02)
    assert interpolate(_cautious(familiar, 19), 0.01) < 0.02
    assert interpolate(_cautious(familiar.repeat(10), 19), RATE) == pytest.approx(0.05, abs=0.02)


def test_of_few_pictures_the_least_is_not_the_end() -> None:
    few, many = torch.linspace(1, 3, 20), torch.linspace(1, 3, 300)
    assert float(with_least(few)[0]) < 0.1 and len(with_least(few)) == 21
    assert float(with_least(few, 0.5)[0]) == 0.5
    assert float(with_least(few, 2.0)[0]) == 1  # pictures of nothing amid the others
    assert torch.equal(with_least(many), many)


def test_an_example_is_as_ordinary_as_itself() -> None:
    """However its share was rounded: elsewhere, or in a batch of another size."""
    few, one = torch.full((2,), 0.02), torch.ones(2)
    told = joined(0 * one, one, torch.tensor([0.02 - 1e-6, 0.01]), few)
    assert told.tolist() == pytest.approx([1.0, 0.1])
