"""How often new things are expected, and which classes come into question, are matters of asking."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import wdae
from safetensors import safe_open

from wdae import FewShotClassifier
from wdae.bank import FeatureBank
from wdae.classifier import BaseKnowledge, LearnConfig, Model, learn, load, save
from wdae.classifier.base_knowledge import MOST_KEPT, HeldOut
from wdae.classifier.cost import cost
from wdae.classifier.predictions import measure, predictions
from wdae.errors import ModelError
from wdae.export import export_linear, export_torchscript
from wdae.parts import Part
from wdae.synthetic import synthetic_bank


@pytest.fixture
def taught(base: BaseKnowledge, newcomers: dict[str, torch.Tensor]) -> Model:
    model = Model(base)
    model.add({name: rows[:3] for name, rows in newcomers.items()})
    return model


@pytest.fixture
def queries(small_bank: FeatureBank) -> torch.Tensor:
    return torch.cat([small_bank.select(part).features for part in (Part.NOVEL, Part.BASE_HELD_OUT)])


def test_more_expected_is_more_found(taught: Model, queries: torch.Tensor) -> None:
    """The odds of an added class against a base class move by those of the shares, and nothing else moves."""
    n_base = taught.head.n_base
    found = []
    for share in (0.01, 0.1, 0.5, 0.9, 0.99):
        scores = taught.scores(queries, expect=share)
        found.append(int((scores.argmax(1) >= n_base).sum()))
        moved = scores - taught.scores(queries, expect=0.5)
        assert moved[:, :n_base].abs().max() == 0
        odds = torch.tensor(share / (1 - share)).log()
        torch.testing.assert_close(moved[:, n_base:], odds.expand_as(moved[:, n_base:]), atol=1e-4, rtol=0)
    assert found == sorted(found) and found[0] < found[-1]
    for wrong in (0, 1, -0.5, 1.5, True, "0.2"):
        with pytest.raises(ModelError, match="between 0 and 1"):
            taught.scores(queries, expect=wrong)  # type: ignore[arg-type]


def test_what_is_unfamiliar_does_not_depend_on_what_is_expected(taught: Model, queries: torch.Tensor) -> None:
    few, many = (
        [p.unknown for p in predictions(taught, queries, 1, 0.2, expect=share)] for share in (0.01, 0.99)
    )
    assert few == many and any(few) and not all(few)


def test_a_share_that_is_set_is_a_change_like_any_other(
    taught: Model, queries: torch.Tensor, tmp_path: Path
) -> None:
    before = taught.scores(queries)
    assert taught.novel_share is None  # so few that base classes lose little
    taught.set_novel_share(0.9)
    after = taught.scores(queries)
    assert torch.equal(after, taught.scores(queries, expect=0.9)) and taught.novel_share == 0.9
    save(taught, tmp_path / "model")
    assert load(tmp_path / "model").novel_share == 0.9
    torch.testing.assert_close(load(tmp_path / "model").scores(queries), after, atol=1e-5, rtol=0)
    taught.undo()
    assert torch.equal(taught.scores(queries), before)
    taught.redo()
    assert torch.equal(taught.scores(queries), after)
    taught.set_novel_share(None)
    assert torch.equal(taught.scores(queries), before)


def test_a_share_given_to_learn_is_where_the_model_starts(
    small_bank: FeatureBank, queries: torch.Tensor
) -> None:
    shots = {"okapi": small_bank.select(Part.NOVEL).of_class(0)[:3]}
    asked, plain = (
        learn(small_bank, LearnConfig(novel_share=share), method="initial-estimate") for share in (0.3, None)
    )
    for model in (asked, plain):
        model.add(shots)
    torch.testing.assert_close(asked.scores(queries), plain.scores(queries, expect=0.3))
    assert (asked.novel_share, plain.novel_share) == (0.3, None)


def test_only_some_classes_come_into_question(taught: Model, queries: torch.Tensor) -> None:
    whole = taught.scores(queries, expect=0.5)
    added = taught.scores(queries, only="added")
    assert added.shape[1] == len(taught.added)
    shift = (added - whole[:, taught.head.n_base :]).unique()
    assert float(shift.max() - shift.min()) < 1e-4  # the same but for a constant
    names = ["new 2", taught.base.names[3], "new 0"]
    head = taught.head_for(only=names)
    assert head.names == (taught.base.names[3], "new 0", "new 2") and head.n_base == 1
    got = {p.classes[0] for p in predictions(taught, queries, only=names)}
    assert got <= set(names)
    with pytest.raises(ModelError, match="did you mean 'new 0'"):
        taught.scores(queries, only=["new 00"])
    with pytest.raises(ModelError, match="none was added"):
        Model(taught.base).scores(queries, only="added")
    result = measure(taught, {"new 1": queries[:3]}, only="added")
    assert result.names == taught.added and result.figures["added_among_added"] == result.figures["accuracy"]


def test_classes_of_different_shots_are_equal_among_themselves(
    base: BaseKnowledge, newcomers: dict[str, torch.Tensor]
) -> None:
    """What protects base classes must not favour one added class over another."""
    model = Model(base)
    model.add({"one": newcomers["new 0"][:1], "many": newcomers["new 1"][:10]})
    assert model.head.prior[0] != model.head.prior[1]
    assert model.head_for(only="added").prior.tolist() == [0.0, 0.0]


def test_the_estimator_asks_so_too(taught: Model, queries: torch.Tensor) -> None:
    estimator = FewShotClassifier()
    estimator.n_features_in_ = taught.base.dim
    estimator._take(taught)
    X = queries.numpy()
    many = estimator.predict_proba(X, expect=0.9)
    assert (many != estimator.predict_proba(X)).any()
    np.testing.assert_array_equal(many, estimator.set_params(novel_share=0.9).predict_proba(X))
    chances = estimator.predict_proba(X, only="added")
    assert chances.shape[1] == len(estimator.classes_)
    assert chances[:, : estimator.n_base_].max() == 0 and np.allclose(chances.sum(1), 1)
    labels = estimator.predict(X, only=["new 1", "new 2"])
    assert set(labels) == {"new 1", "new 2"}
    assert (estimator.classes_[chances.argmax(1)] == estimator.predict(X, only="added")).all()
    taught.undo()
    estimator.redo()
    assert "new 1" in estimator.classes_


def test_exports_answer_the_same_question(taught: Model, queries: torch.Tensor, tmp_path: Path) -> None:
    export_linear(taught, tmp_path / "m.safetensors", only="added")
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert json.loads(file.metadata()["labels"]) == list(taught.added)
        assert file.get_tensor("weight").shape[0] == len(taught.added)
    export_torchscript(taught, tmp_path / "m.pt", expect=0.9)
    scores, _ = torch.jit.load(str(tmp_path / "m.pt"))(queries)
    torch.testing.assert_close(scores, taught.scores(queries, expect=0.9), atol=1e-4, rtol=0)


def test_what_a_class_costs_is_counted_on_pictures_that_were_held_out(
    small_bank: FeatureBank, base: BaseKnowledge, tmp_path: Path
) -> None:
    held_out = small_bank.select(Part.BASE_HELD_OUT)
    model = Model(base)
    before = model.head
    name = base.names[4]
    model.add({"double": small_bank.select(Part.BASE_TRAIN).of_class(4)[:5]})
    model.set_novel_share(0.9)
    found = cost(model, before)
    assert found is not None and found.n_pictures == len(held_out.labels)
    right, taken = [0, 0], 0
    for feature, label in zip(held_out.features, held_out.labels.tolist(), strict=True):
        old, new = (int(head.scores(feature[None]).argmax()) for head in (before, model.head))
        right[0] += old == label
        right[1] += new == label
        taken += new == len(base.names) and label == 4
    one_picture = 1.01 / len(held_out.labels)  # kept at half precision, one may fall on the other side
    for told, count in zip((found.before, found.after), right, strict=True):
        assert told == pytest.approx(count / len(held_out.labels), abs=one_picture)
    assert found.after < found.before
    assert abs({one.base: one.n_taken for one in found.taken}[name] - taken) <= 1
    counts = [one.n_taken for one in found.taken]
    assert counts == sorted(counts, reverse=True)
    worst = found.taken[0].base
    assert f"of {worst!r} now called 'double'" in found.as_text() and " → " in found.as_text()
    save(model, tmp_path / "model")
    assert cost(load(tmp_path / "model"), before) == found


def test_the_whole_curve_of_base_against_added(
    taught: Model, small_bank: FeatureBank, newcomers: dict[str, torch.Tensor]
) -> None:
    held_out = small_bank.select(Part.BASE_HELD_OUT)
    added = {name: rows[3:] for name, rows in newcomers.items()}
    base = {name: held_out.of_class(c) for c, name in enumerate(held_out.names)}
    given, kept = measure(taught, added | base).trade_off, measure(taught, added).trade_off
    assert given is not None and kept is not None and kept.kept and not given.kept
    for row, other in zip(given.rows(), kept.rows(), strict=True):
        figures = measure(taught, added | base, expect=row["expect"]).figures
        assert (row["base"], row["added"]) == (figures["base_among_all"], figures["added_among_all"])
        assert other["base"] == pytest.approx(row["base"], abs=0.01)  # the same pictures, at half precision
    figures = measure(taught, added | base).figures
    assert given.now == (figures["base_among_all"], figures["added_among_all"])
    assert given.curve.area == measure(taught, added | base).figures["area_base_added"]
    assert len(given.csv().splitlines()) == len(given.curve.points) + 1
    assert measure(taught, base).trade_off is None and measure(taught, added, only="added").trade_off is None


def test_few_pictures_are_kept_and_some_of_every_class() -> None:
    bank = synthetic_bank(300, 0, 0, 30, 8, seed=0, held_out_per_class=20)
    kept = HeldOut.some(bank.select(Part.BASE_HELD_OUT), seed=0)
    assert len(kept.labels) == MOST_KEPT and kept.features.dtype == torch.float16
    counts = torch.bincount(kept.labels, minlength=300)
    assert counts.min() >= 6 and counts.max() <= 7
    wide = HeldOut.some(
        synthetic_bank(4, 0, 0, 600, 4096, held_out_per_class=500).select(Part.BASE_HELD_OUT), 0
    )
    assert wide.features.numel() * 2 <= 4_000_000


def test_a_model_without_held_out_pictures_says_that_it_cannot_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bank = synthetic_bank(6, 0, 0, 12, 8, seed=0, held_out_per_class=0)
    bank.save(tmp_path / "bank")
    assert wdae("learn", tmp_path / "bank", "-o", tmp_path / "m") == 0
    np.savez(tmp_path / "new.npz", features=torch.randn(2, 8).numpy(), labels=["okapi"] * 2)
    capsys.readouterr()
    assert wdae("add", tmp_path / "m", tmp_path / "new.npz") == 0
    printed = capsys.readouterr().out
    assert "cannot be told" in printed and f"wdae evaluate {tmp_path / 'm'} DIR" in printed
    assert wdae("info", tmp_path / "m") == 0
    assert "no held-out ones to find a balance on" in capsys.readouterr().out


def test_the_commands(small_bank: FeatureBank, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_bank.save(tmp_path / "bank")
    model = tmp_path / "m"
    assert wdae("learn", tmp_path / "bank", "-o", model, "--method", "initial-estimate") == 0
    pool = small_bank.select(Part.NOVEL)
    rows = torch.cat([pool.of_class(c)[:3] for c in range(5)]).numpy()
    np.savez(tmp_path / "new.npz", features=rows, labels=np.repeat([f"new {c}" for c in range(5)], 3))
    np.save(tmp_path / "q.npy", small_bank.select(Part.BASE_HELD_OUT).features.numpy())
    capsys.readouterr()
    assert wdae("add", model, tmp_path / "new.npz") == 0
    assert "base classes: " in (text := capsys.readouterr().out) and " → " in text

    def labels(*words: str) -> list[str]:
        capsys.readouterr()
        assert wdae("predict", model, tmp_path / "q.npy", "--json", *words) == 0
        return [json.loads(line)["predictions"][0]["class"] for line in capsys.readouterr().out.splitlines()]

    def share_new(*words: str) -> float:
        found = labels(*words)
        return sum(name.startswith("new") for name in found) / len(found)

    assert share_new("--expect", "new=0.01") <= share_new() <= share_new("--expect", "new=0.99")
    assert share_new("--expect", "new=0.01") < share_new("--expect", "0.99")
    assert share_new("--only", "added") == 1 and share_new("--only", "base") == 0
    assert set(labels("--only", "new 1,new 2")) <= {"new 1", "new 2"}
    assert wdae("set", model, "novel-share", "0.99") == 0
    assert "99 %" in capsys.readouterr().out
    assert share_new() == share_new("--expect", "new=0.99")
    assert wdae("info", model) == 0
    assert "expects: 99 %" in capsys.readouterr().out
    assert wdae("undo", model) == 0
    assert wdae("info", model) == 0
    said = " ".join(capsys.readouterr().out.split())
    default = r"cost base classes little \(the default, half at most\)"
    assert re.search(default + r": [\d.]+ % with 1 example of each, [\d.]+ % with 2 exam", said)
    assert "an example of another class among 5: share noticed" in said and "stray" not in said
    assert share_new() < share_new("--expect", "new=0.99")
    assert wdae("redo", model) == 0 and wdae("redo", model) == 2
    assert "nothing to redo" in capsys.readouterr().err
    assert wdae("set", model, "novel-share", "default") == 0
    for words in (
        ("set", model, "novel-share", "7"),
        ("predict", model, tmp_path / "q.npy", "--expect", "old=1"),
    ):
        assert wdae(*words) == 2
        assert "between 0 and 1" in capsys.readouterr().err
    assert wdae("evaluate", model, tmp_path / "new.npz", "--only", "added", "--json") == 0
    assert json.loads(capsys.readouterr().out)["figures"]["added_among_added"] == 1.0
    assert wdae("export", model, "--to", "linear", "--only", "added", "-o", tmp_path / "e.safetensors") == 0
    assert ": 5 classes, " in (line := capsys.readouterr().out) and "0.0 MB" not in line


def test_a_set_of_classes_is_shown_where_a_coverage_is_asked_for(
    tmp_path: Path, small_bank: FeatureBank, capsys: pytest.CaptureFixture[str]
) -> None:
    model = learn(small_bank, method="initial-estimate")
    save(model, tmp_path / "model")
    np.save(tmp_path / "some.npy", small_bank.select(Part.BASE_HELD_OUT).features[:5].numpy())
    assert wdae("predict", tmp_path / "model", tmp_path / "some.npy", "--coverage", 0.9, "--csv") == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.endswith(",set_size,set") and len(lines) == 5
    assert all(int(line.split(",")[-2]) == line.count(" | ") + 1 for line in lines)
    assert wdae("predict", tmp_path / "model", tmp_path / "some.npy", "--coverage", 2) != 0
    assert "between 0.5 and 0.99" in capsys.readouterr().err
