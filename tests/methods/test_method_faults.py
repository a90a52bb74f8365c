"""Methods, and comparisons of them, asked for what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fuzz_artefacts import FIXTURES

from wdae.bank import FeatureBank
from wdae.cli.app import run_app
from wdae.cli.main import root
from wdae.comparison.config import CompareRecipe
from wdae.comparison.run import chosen_methods
from wdae.errors import EpisodeError, ModelError, RecipeError, StorageError
from wdae.evaluation.measure import load_methods
from wdae.evaluation.protocol import few_way
from wdae.methods import BaseClasses, LearnedMethod, Support, make, names
from wdae.methods.base import Method, base_classes, prepared
from wdae.methods.registry import FORMER, register
from wdae.methods.saved import load_method, save_method
from wdae.parts import Part
from wdae.stage2.config import MetaRecipe, TrainingConfig
from wdae.stage2.train import train_learned
from wdae.storage.checkpoint import load_checkpoint, save_checkpoint


def compare(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    status = run_app(root(), ["compare", *map(str, words)])
    return status, capsys.readouterr().err


def test_an_unknown_method_lists_the_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = compare(capsys, "--methods", "lwof-atention,maml", "-o", tmp_path / "run")
    assert status == 2
    assert "did you mean 'lwof-attention'" in said
    assert all(name in said for name in names())
    assert not (tmp_path / "run").exists()
    with pytest.raises(ModelError, match="wdae-gnn"):
        make("zebra")


def test_an_unknown_option_lists_the_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = compare(capsys, "--methods", "lda:shrunk=2", "-o", tmp_path / "run")
    assert status == 2 and "lda has no option 'shrunk'; did you mean 'shrink'? (its options: shrink)" in said
    for name in ("matching", "initial-estimate"):
        with pytest.raises(ModelError, match=f"^{name} has no option 'foo' .*(its options|it has none)"):
            make(name, dim=8, n_base=4, foo=2) if name == "matching" else make(name, foo=2)
    with pytest.raises(ModelError, match="no option 'hiden'; did you mean 'hidden'"):
        make("wdae-gnn", dim=8, hiden=2)


def test_base_accuracy_of_a_method_that_has_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], small_bank: FeatureBank
) -> None:
    status, said = compare(capsys, "--methods", "snail", "--metric", "base", "-o", tmp_path / "run")
    assert status == 2
    assert "snail scores novel classes only, so it has no base accuracy" in said
    method = make("gnn", dim=small_bank.dim, n_base=small_bank.n_base)
    with pytest.raises(EpisodeError, match="novel classes only"):
        few_way(method, small_bank, 1, n_episodes=2, joint=True)
    with pytest.raises(ModelError, match="novel classes only"):
        method.adapt(Support(torch.ones(1, 2, 1, small_bank.dim)), base_classes(small_bank), joint=True)


def test_a_singular_ridge_system(small_bank: FeatureBank) -> None:
    method = make("ridge-cosine", dim=small_bank.dim, n_base=small_bank.n_base, penalty=0.0)
    twice = small_bank.select(Part.NOVEL).features[:1].expand(1, 2, 1, -1)
    with pytest.raises(ModelError, match=r"singular.*penalty above 0"):
        method.adapt(Support(twice), base_classes(small_bank))
    with pytest.raises(ModelError, match="0 or more, got penalty=-1"):
        make("r2d2", dim=4, n_base=2, penalty=-1)


def test_a_class_with_one_example_where_two_are_needed(small_bank: FeatureBank) -> None:
    pool = small_bank.select(Part.BASE_TRAIN)
    keep = torch.ones(len(small_bank.labels), dtype=torch.bool)
    lonely = small_bank.base_classes[2]
    rows = ((small_bank.labels == lonely) & (small_bank.parts == Part.BASE_TRAIN.code)).nonzero().flatten()
    keep[rows[1:]] = False
    bank = small_bank.take(keep)
    recipe = MetaRecipe(method="logistic-regression-h", training=TrainingConfig(steps=1), device="cpu")
    with pytest.raises(EpisodeError, match=f"pairs of images.*{pool.names[2]!r} has 1; give it 2 or more"):
        train_learned(recipe, bank)


def test_a_saved_method_for_another_feature_size(tmp_path: Path, small_bank: FeatureBank) -> None:
    method = make("lwof-attention", dim=small_bank.dim, n_base=small_bank.n_base)
    save_method(tmp_path / "m.safetensors", method, "lwof-attention")
    with pytest.raises(ModelError, match="features of size 24, and size 640 is asked for"):
        load_method(tmp_path / "m.safetensors", dim=640)
    loaded = load_method(tmp_path / "m.safetensors")
    with pytest.raises(ModelError, match="trained on features of size 24, the base weights have 640"):
        loaded.on(BaseClasses(torch.ones(24, 640)))
    with pytest.raises(ModelError, match="the support features have 7"):
        loaded.on(base_classes(small_bank)).adapt(Support(torch.ones(1, 2, 1, 7)))


def test_other_base_classes_than_it_keeps_keys_for(small_bank: FeatureBank) -> None:
    method = make("lwof-attention", dim=small_bank.dim, n_base=99)
    with pytest.raises(ModelError, match="trained with 99 base classes"):
        few_way(method, small_bank, 1, n_episodes=2)


def test_files_and_methods_that_cannot_be_saved_or_loaded(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nothing learned to save"):
        save_method(tmp_path / "m.safetensors", make("fine-tune"), "fine-tune")
    save_checkpoint(tmp_path / "c.safetensors", {"x": torch.ones(1)}, {"kind": "something"})
    with pytest.raises(StorageError, match="not of a trained method"):
        load_method(tmp_path / "c.safetensors")


def test_a_run_whose_method_is_a_link_is_not_followed(tmp_path: Path) -> None:
    save_method(tmp_path / "m.safetensors", make("prototypical", dim=16, n_base=4), "prototypical")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.safetensors").symlink_to(tmp_path / "m.safetensors")
    with pytest.raises(StorageError, match="is a link"):
        load_method(tmp_path / "run" / "model.safetensors")


def test_sizes_that_the_weights_do_not_bear_out_are_not_built(tmp_path: Path) -> None:
    """A file of a kilobyte must not ask for gigabytes: 200,000² values would not fit into memory."""
    save_method(tmp_path / "m.safetensors", make("prototypical", dim=16, n_base=4), "prototypical")
    saved = load_checkpoint(tmp_path / "m.safetensors")
    save_checkpoint(tmp_path / "m.safetensors", saved.tensors, {**saved.state, "dim": 200_000})
    with pytest.raises(StorageError, match="its weights are not those of prototypical of 200000 dimensions"):
        load_method(tmp_path / "m.safetensors")


@pytest.mark.parametrize("shape", [(0,), (), (3, 16), (1,)])
@pytest.mark.parametrize("name", ["space.centre", "space.weights"])
def test_a_space_of_another_size_is_refused(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    saved = load_checkpoint(FIXTURES / "stage2" / "wdae-gnn-plus" / "model.safetensors")
    assert name in saved.tensors
    shape = (16, 3) if shape == (3, 16) and name == "space.weights" else shape
    save_checkpoint(tmp_path / "m.safetensors", {**saved.tensors, name: torch.ones(shape)}, saved.state)
    with pytest.raises(StorageError, match="a space of shapes"):
        load_method(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("fine-tune", {"rate": 0}, "rate > 0"),
        ("logistic-regression", {"strength": 0}, "above 0"),
        ("lwof-average", {"dim": 4, "n_base": 2, "gains": 3}, "gains"),
        ("lwof-average", {}, "dim"),
    ],
)
def test_options_that_a_method_does_not_take(name: str, options: dict[str, int], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        make(name, **options)


def test_more_classes_than_snail_was_made_for() -> None:
    method = make("snail", dim=6, n_base=3, n_way=3)
    with pytest.raises(ModelError, match="made for 3 novel classes, got 4"):
        method.adapt(Support(torch.ones(1, 4, 1, 6)), BaseClasses(torch.ones(3, 6)))


def test_recipes_that_name_no_learned_method(small_bank: FeatureBank) -> None:
    with pytest.raises(RecipeError, match="nothing to train"):
        train_learned(MetaRecipe(method="fine-tune"), small_bank)
    with pytest.raises(RecipeError, match=r"denoiser\.kind"):
        train_learned(MetaRecipe(method="wdae-gnn"), small_bank)
    with pytest.raises(ModelError, match="no method is called 'lwof'"):
        train_learned(MetaRecipe(method="lwof"), small_bank)


def test_an_untrained_method_by_its_name() -> None:
    with pytest.raises(ModelError, match="proto-maml must be trained first: wdae train --method proto-maml"):
        load_methods(["proto-maml"], torch.device("cpu"), torch.float32)
    given = ["initial-estimate", "fine-tune", "lda", "lda:shrink=0.5", "lda"]
    found = load_methods(given, torch.device("cpu"), torch.float32)
    assert [m.name for m in found] == given[:4]
    assert [m.describe().get("shrink") for m in found[2:]] == [0.95, 0.5]


@pytest.mark.parametrize(
    "word", ["lda:shrink", "lda:shrink=2", "lda:size=3", "lda:shrink=many", "lda:shrink=["]
)
def test_options_of_a_method_that_it_does_not_take(word: str) -> None:
    with pytest.raises(ModelError, match="lda"):
        load_methods([word], torch.device("cpu"), torch.float32)


def test_the_reference_is_measured_even_if_not_asked_for() -> None:
    words = [one.word for one in chosen_methods(CompareRecipe(methods=("proto-maml",)))]
    assert words == ["initial-estimate", "proto-maml"]
    assert chosen_methods(CompareRecipe())[0].word == "initial-estimate"
    assert len(chosen_methods(CompareRecipe(methods=("all",), reference="proto-maml"))) == len(names())


def test_a_name_is_taken_once() -> None:
    class Again(LearnedMethod):
        name = "proto-maml"

    with pytest.raises(ModelError, match="already"):
        register(Again)
    assert issubclass(Again, Method)


@pytest.mark.parametrize(("before", "now"), FORMER.items())
def test_a_file_of_before_a_method_had_its_own_name_still_opens(
    before: str, now: str, tmp_path: Path, small_bank: FeatureBank
) -> None:
    """Files say what a method was called when they were written; some such names are other systems now."""
    sizes = {
        "dim": small_bank.dim,
        "n_base": small_bank.n_base,
        "generator": torch.Generator().manual_seed(0),
    }
    method = make(now, **sizes)
    assert isinstance(method, LearnedMethod)
    method.name = before
    save_method(tmp_path / "model.safetensors", method, before)
    opened = load_method(tmp_path / "model.safetensors")
    assert type(opened) is type(method) and opened.name == before
    support, queries = Support(torch.randn(2, 5, 3, small_bank.dim)), torch.randn(2, 4, small_bank.dim)
    found, wanted = (m.adapt(support, base_classes(small_bank))(queries) for m in (opened, method.eval()))
    assert torch.equal(found, wanted)


def test_a_former_name_says_the_new_one() -> None:
    with pytest.raises(ModelError, match="what was called so before is proto-maml-first-order"):
        make("maml-first-order", dim=8, n_base=4)


def test_r2d2_scores_as_published(small_bank: FeatureBank) -> None:
    """α times what scikit-learn's ridge regression of one-hot labels predicts, for each episode by itself."""
    from sklearn.linear_model import Ridge

    method = make("r2d2", dim=small_bank.dim, n_base=small_bank.n_base, penalty=0.7, scale=3.0)
    support, queries = torch.randn(2, 5, 3, small_bank.dim), torch.randn(2, 4, small_bank.dim)
    with torch.no_grad():
        found = method.adapt(Support(support), base_classes(small_bank))(queries)
    for e in range(2):
        rows = torch.nn.functional.normalize(support[e].flatten(0, 1), dim=1).numpy()
        labels = torch.eye(5).repeat_interleave(3, 0).numpy()
        model = Ridge(alpha=0.7, fit_intercept=False).fit(rows, labels)
        wanted = 3.0 * model.predict(torch.nn.functional.normalize(queries[e], dim=1).numpy())
        torch.testing.assert_close(found[e], torch.as_tensor(wanted).float(), atol=1e-4, rtol=1e-4)


def test_centred_mean_against_a_plain_loop(small_bank: FeatureBank) -> None:
    pool, train = (small_bank.select(part).features for part in (Part.NOVEL, Part.BASE_TRAIN))
    method, centre = prepared(make("centred-mean"), small_bank), train.mean(0)
    support, queries = pool[:15].view(1, 5, 3, -1), pool[None, 20:30]
    found = method.adapt(Support(support), base_classes(small_bank))(queries)[0]

    def at(rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(rows - centre, dim=-1)

    means = torch.stack([at(shots).mean(0) for shots in support[0]])
    assert torch.equal(found.argmax(1), torch.cdist(at(queries[0]), means).argmin(1))


def test_the_gnn_reads_labels_from_its_nodes(small_bank: FeatureBank) -> None:
    """With all features alike only the labels of the nodes can tell classes apart: they carry no evidence."""
    method = make(
        "gnn", dim=small_bank.dim, n_base=small_bank.n_base, generator=torch.Generator().manual_seed(0)
    )
    pool = small_bank.select(Part.NOVEL).features
    support = pool[:10].view(1, 5, 2, -1)
    known = base_classes(small_bank)
    with torch.no_grad():
        alike = method.adapt(Support(support[:, :1].expand(1, 5, 2, -1)), known)(pool[None, :3])
        own = method.adapt(Support(support), known)(support.flatten(1, 2))
    assert (alike.softmax(-1) - 0.2).abs().max() < 0.1
    assert torch.equal(own[0].argmax(1), torch.arange(5).repeat_interleave(2))
