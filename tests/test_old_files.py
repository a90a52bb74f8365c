"""Everything that version 1 wrote still opens, goes on where it stopped, and gives the same numbers.

``fixtures/v1`` holds the files and, beside each kind, what reading them gave when they were written.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import succeeds
from torch import Tensor

from wdae import backbones
from wdae.bank import FeatureBank
from wdae.bank.embedded import embedded_bank
from wdae.bank.format import read_manifest
from wdae.classifier import changing, load
from wdae.classifier.embedded import embedded_backbone, embedded_model
from wdae.classifier.model import Model
from wdae.classifier.picture_backbone import PictureBackbone
from wdae.cli.main import main
from wdae.config.shipped import ASSETS
from wdae.episodes import EpisodeSampler, EpisodeSpec
from wdae.evaluation.protocol import all_way, base_classes, few_way, gather_support, take_rows
from wdae.evaluation.results import Estimate
from wdae.evaluation.table import ResultTable
from wdae.methods.initial_estimate import InitialEstimate
from wdae.methods.saved import load_method
from wdae.parts import Part
from wdae.runs.run import Run
from wdae.stage1.model_file import load_model
from wdae.storage.checkpoint import load_checkpoint
from wdae.storage.files import sha256

V1 = Path(__file__).parent / "fixtures" / "v1"
EYE = "v1_eye:factory"  # the backbone that some of the files name
READ = 1e-5
"""Numbers read or computed once, relative to the largest beside them: room for another order of summing."""
EMBEDDED = 1e-4
"""Features after a dozen convolutions, whose order of summing depends on the processor (AVX2, AVX-512)."""
TRAINED = 2e-3
"""Numbers after further steps of training, which pass rounding on from step to step."""


def expected(kind: str) -> Any:
    return json.loads((V1 / kind / "expected.json").read_text())


def cases(kind: str, key: str | None = None) -> list[str]:
    facts = expected(kind)
    return sorted(facts[key] if key else facts)


def vectors(n: int, dim: int, seed: int = 0) -> Tensor:
    """Inputs that no random generator has a say in."""
    i, j = torch.arange(n, dtype=torch.float64)[:, None], torch.arange(dim, dtype=torch.float64)
    return torch.cos(1 + (i + 1) * (j + 1) + seed).float()


def assert_same(found: Any, wanted: Any, tolerance: float = READ, at: str = "") -> None:
    """Nested lists and dicts agree; floats relative to the largest of their list, or to themselves."""
    if isinstance(found, Tensor):
        found = found.tolist()
    if isinstance(wanted, dict):
        found = {str(k): v for k, v in found.items()}
        assert found.keys() == wanted.keys(), at
        for key, value in wanted.items():
            assert_same(found[key], value, tolerance, f"{at}.{key}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), at
        if wanted and all(isinstance(value, float) for value in wanted):
            there, here = torch.tensor(wanted).double(), torch.tensor(found).double()
            assert (here - there).abs().max() <= tolerance * there.abs().max().clamp(min=1e-30), at
        else:
            for i, (one, other) in enumerate(zip(found, wanted, strict=True)):
                assert_same(one, other, tolerance, f"{at}[{i}]")
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=tolerance, abs=1e-7), at
    else:
        assert found == wanted, at


def assert_known(figures: Mapping[str, Estimate], wanted: dict[str, float], tolerance: float = READ) -> None:
    """The metrics that were measured then; others have been added since."""
    assert_same({key: figures[key].mean for key in wanted}, wanted, tolerance)


def test_a_difference_is_seen() -> None:
    assert_same({"a": [1.0, 2.0]}, {"a": [1.0, 2.000001]})
    for wrong in ({"a": [1.0, 2.1]}, {"a": [1.0]}, {"b": [1.0, 2.0]}, {"a": [2.0, 1.0]}):
        with pytest.raises(AssertionError):
            assert_same({"a": [1.0, 2.0]}, wrong)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all of it to work in, as the current folder: recipes name banks and pictures from there."""
    shutil.copytree(V1, tmp_path / "v1")
    monkeypatch.chdir(tmp_path / "v1")
    return tmp_path / "v1"


# --- banks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", cases("banks", "banks"))
def test_bank(name: str) -> None:
    wanted = expected("banks")["banks"][name]
    bank, manifest = FeatureBank.open(V1 / "banks" / name), read_manifest(V1 / "banks" / name)
    assert (manifest.version, manifest.dtype) == (wanted["version"], wanted["encoding"])
    assert (bank.dim, bank.n_base, len(bank.labels)) == (wanted["dim"], wanted["n_base"], wanted["images"])
    assert list(bank.class_names) == wanted["class_names"]
    assert manifest.info == wanted["info"]
    assert_same(bank.cosine_scale, wanted["cosine_scale"])
    assert_same(bank.base_weights, wanted["base_weights"])
    marked = None if bank.query_only is None else bank.query_only.nonzero()[:, 0].tolist()
    assert marked == wanted["query_only"]
    for part in Part:
        found, facts = bank.select(part), wanted["parts"][part.value]
        assert list(bank.counts(part)) == facts["counts"]
        assert list(found.names) == facts["names"]
        assert_same(found.features[0], facts["first"])
        assert_same(found.features[-1], facts["last"])
    figures = few_way(InitialEstimate(), bank, 1, n_query=5, n_episodes=50, seed=5).metrics
    assert_known(figures, wanted["initial_estimate_few_way"])
    if "initial_estimate_all_way" in wanted:
        figures = all_way(InitialEstimate(), bank, 2, n_episodes=5, seed=5).metrics
        assert_known(figures, wanted["initial_estimate_all_way"])


# --- practitioners' models ------------------------------------------------------------------------------


def assert_model(model: Model, wanted: dict[str, Any], tolerance: float = READ) -> None:
    assert list(model.names) == wanted["names"]
    assert list(model.added) == wanted["added"]
    assert {name: model.shots(name) for name in model.added} == wanted["shots"]
    history = model.history
    assert history.head == wanted["head"]
    assert [change.describe() for change in history.changes] == wanted["changes"]
    states = {str(k): history.at(k).state() for k in range(len(history.changes) + 1)}
    assert {k: {a: list(b) for a, b in state.items()} for k, state in states.items()} == wanted["states"]
    assert [example.source for example in model.examples] == wanted["sources"]
    pictures = [
        None if e.picture is None else [list(e.picture.shape), int(e.picture.sum())] for e in model.examples
    ]
    assert pictures == wanted["pictures"]
    base = model.base
    assert_same(base.info, wanted["info"])
    assert (base.denoiser is not None and base.denoiser.refine_base) == wanted["refine_base"]
    assert_same(base.calibration.as_json(), wanted["calibration"], tolerance)
    if wanted["steps"] is None:
        assert base.denoiser is None
    else:
        assert base.denoiser is not None and base.denoiser.denoiser.kind == wanted["kind"]
        assert_same(base.denoiser.steps, wanted["steps"], tolerance)
    assert (None if model.backbone is None else model.backbone.card) == wanted["backbone"]
    assert_same(model.scores(torch.tensor(wanted["queries"])), wanted["scores"], tolerance)


@pytest.mark.parametrize("name", cases("models", "models"))
def test_model(name: str) -> None:
    wanted = expected("models")["models"][name]
    model = load(V1 / "models" / name, trust=EYE)
    assert_model(model, wanted)
    if "picture_files" in wanted:
        assert model.backbone is not None
        features = model.backbone.features([V1 / file for file in wanted["picture_files"]])
        assert_same(features, wanted["picture_features"])
        assert_same(model.scores(features), wanted["picture_scores"])


def test_an_early_model(tmp_path: Path) -> None:
    """Written by the first code that had models, before the rest of the fixtures."""
    shutil.copytree(V1 / "models-early", tmp_path / "model")
    wanted = json.loads((V1 / "models-early-expected.json").read_text())
    model = load(tmp_path / "model")
    assert list(model.names) == wanted["names"]
    assert_same(model.scores(torch.tensor(wanted["queries"])), wanted["scores"])
    assert [example.source for example in model.examples_of("okapi")] == ["a.jpg", "b.jpg", ""]
    assert model.backbone is not None and model.backbone.image_size == 84
    with changing(tmp_path / "model") as model:
        model.restore(0)
    assert load(tmp_path / "model").added == ()


@pytest.mark.parametrize("name", cases("models", "models"))
def test_model_can_be_changed(name: str, place: Path) -> None:
    wanted = expected("models")["models"][name]
    folder = place / "models" / name
    with changing(folder) as model:
        model.add({"another": vectors(2, model.base.dim, 9)})
    assert list(load(folder).names) == [*wanted["names"], "another"]
    with changing(folder) as model:
        model.undo()
    assert_same(load(folder).scores(torch.tensor(wanted["queries"])), wanted["scores"])
    with changing(folder) as model:
        model.restore(0)
    assert load(folder).added == ()


def test_unfinished_learning_goes_on(place: Path) -> None:
    wanted = expected("learn")
    work = place / "learn" / ".model.unfinished"
    assert_same(load_checkpoint(work / "denoiser.safetensors").state["progress"], wanted["progress"])
    asked = json.loads((work / "asked.json").read_text())
    asked["source"] = str(place / "banks" / "float32")
    (work / "asked.json").write_text(json.dumps(asked))
    succeeds("learn", "banks/float32", "-o", "learn/model", "--resume")
    model = load("learn/model")  # its method is trained as every method is since, from the beginning
    assert list(model.names) == wanted["whole"]["names"]
    assert model.base.denoiser is not None and model.base.denoiser.denoiser.kind == "gnn"
    assert model.base.info["recipe"]["denoiser"]["hidden"] == asked["recipe"]["hidden"] == 8
    assert not work.exists()


# --- stage 1 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wide-resnet", "eye"])
def test_stage1_model(name: str) -> None:
    wanted = expected("stage1")[name]
    model = load_model(V1 / "stage1" / name / "model", trust=EYE)
    assert_same({key: model.card[key] for key in wanted["card"]}, wanted["card"] | {"version": 2})
    assert_same(model.card["figures"], wanted["figures"])
    assert_same(model.card["recipe"], wanted["recipe"])
    classifier = model.network.classifier
    assert_same(classifier.scale.item(), wanted["scale"])
    assert_same(classifier.weight[:, : len(wanted["weights"][0])], wanted["weights"])
    with torch.no_grad():
        features = model.network.backbone(vectors(6, 256, 1).view(2, 3, 16, 16))
    assert_same(features, wanted["features_of_vectors_6_256_seed1_as_2_3_16_16"])
    assert_same(Run.open(V1 / "stage1" / name).metrics(), wanted["metrics"])


def test_unfinished_stage1_goes_on(place: Path) -> None:
    wanted = expected("stage1")["eye-unfinished"]
    saved = load_checkpoint("stage1/eye-unfinished/last.safetensors")
    assert (saved.state["step"], saved.state["total_steps"]) == (wanted["step"], wanted["total_steps"])
    found = {key: [list(t.shape), float(t.double().sum())] for key, t in saved.tensors.items()}
    assert_same(found, wanted["tensors"])
    whole = "stage1/eye-unfinished"
    words = ("--recipe", f"{whole}/recipe.yaml", "-o", whole, "--resume", "--device", "cpu")
    succeeds("pretrain", *words, "--trust", EYE)
    goal, model = (load_model(f, trust=EYE) for f in ("stage1/eye/model", f"{whole}/model"))
    for key, tensor in goal.network.state_dict().items():
        assert_same(
            model.network.state_dict()[key].float().flatten(), tensor.float().flatten().tolist(), TRAINED
        )


def test_a_stage1_model_extracts_what_it_did(place: Path) -> None:
    wanted = json.loads(Path("stage1/extracted.json").read_text())
    words = ["--model", "stage1/wide-resnet/model", "--data", "pictures", "--cache_dir", "cache", "-o", "new"]
    succeeds("extract", *words, "--device", "cpu", "--precision", "float32")
    bank = FeatureBank.open("new")
    assert list(bank.class_names) == wanted["class_names"]
    assert {part.value: list(bank.counts(part)) for part in Part} == wanted["counts"]
    assert_same(bank.select(Part.NOVEL).features[0], wanted["first"])
    assert_same(bank.cosine_scale, wanted["cosine_scale"])


# --- stage 2 and other methods --------------------------------------------------------------------------


def assert_method(path: Path, wanted: dict[str, Any], tolerance: float = READ) -> None:
    bank = FeatureBank.open(V1 / "banks" / "float32")
    method = load_method(path, dim=bank.dim)
    assert method.name == wanted["name"]
    assert_same(method.describe(), wanted["describe"], tolerance)
    pool, held_out = bank.select(Part.NOVEL), bank.select(Part.BASE_HELD_OUT)
    for k in (1, 5):
        spec = EpisodeSpec(5, (k,), 5, 25)
        episodes = EpisodeSampler(pool, spec, 0, base_query=held_out).draw(0, 2)
        scorer = method.on(base_classes(bank)).adapt(gather_support(pool, episodes), joint=method.joint)
        with torch.no_grad():
            scores = scorer(take_rows(pool.features, episodes.query.flatten(1)))[:, :3]
        assert_same(scores, wanted[f"scores_{k}shot"], tolerance)
        figures = few_way(method, bank, k, n_query=5, n_episodes=60, seed=11).metrics
        assert_known(figures, wanted[f"few_way_{k}shot"], tolerance)


def now(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Facts of results of version 1, as they are given since."""
    return [facts | {"version": 2} for facts in results]


@pytest.mark.parametrize("name", ["wdae-gnn", "wdae-mlp", "wdae-gnn-plus", "relation"])
def test_run_of_train(name: str) -> None:
    wanted = expected("stage2")[name]
    assert_method(V1 / "stage2" / name / "model.safetensors", wanted)
    if "metrics" in wanted:
        assert_same(Run.open(V1 / "stage2" / name).metrics(), wanted["metrics"])
        results = ResultTable.load(V1 / "stage2" / name / "results").results
        assert_same([result.to_dict() for result in results], now(wanted["results"]))


@pytest.mark.parametrize("name", ["wdae-gnn", "wdae-gnn-plus"])
def test_unfinished_training_goes_on(name: str, place: Path) -> None:
    wanted = expected("stage2")
    folder = place / "stage2" / f"{name}-unfinished"
    saved = load_checkpoint(folder / "checkpoint.safetensors")
    assert_same(saved.state["progress"], wanted[f"{name}-unfinished"]["progress"])
    found = {key: [list(t.shape), float(t.double().sum())] for key, t in saved.tensors.items()}
    assert_same(found, wanted[f"{name}-unfinished"]["tensors"])
    succeeds("train", "--bank", "banks/float32", "-o", folder, "--resume")
    # since then, of slopes that are as good the one nearest 1 is taken
    assert_method(
        folder / "model.safetensors", wanted[f"{name}-unfinished"].get("finished", wanted[name]), TRAINED
    )
    assert len(Run.open(folder).metrics()) == len(wanted[name]["metrics"])
    results = {r.to_dict()["method"]: r for r in ResultTable.load(folder / "results").results}
    assert results.keys() == {facts["method"] for facts in wanted[name]["results"]}


@pytest.mark.parametrize("name", cases("methods"))
def test_saved_method(name: str) -> None:
    assert_method(V1 / "methods" / f"{name}.safetensors", expected("methods")[name])


# --- results, comparisons, reproductions ----------------------------------------------------------------


@pytest.mark.parametrize("protocol", cases("results"))
def test_results(protocol: str) -> None:
    found = [
        result.to_dict() | {"per_episode": {key: value.tolist() for key, value in result.per_episode.items()}}
        for result in ResultTable.load(V1 / "results" / protocol).results
    ]
    assert_same(found, now(expected("results")[protocol]))


def times(folder: Path, pattern: str) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob(pattern)}


def test_a_comparison_is_complete(place: Path) -> None:
    wanted = expected("compare")
    for name, facts in wanted["methods"].items():
        assert_method(V1 / "compare" / "run" / "methods" / name / "model.safetensors", facts)
    before = times(place / "compare" / "run", "*.safetensors")
    figures = json.loads((V1 / "compare/run/comparison.json").read_text())
    succeeds("compare", "--bank", "banks/float32", "-o", "compare/run", "--resume")
    assert times(place / "compare" / "run", "*.safetensors") == before  # nothing trained or measured again
    assert json.loads(Path("compare/run/comparison.json").read_text()) == figures
    results = ResultTable.load("compare/run/results").results
    assert_same([result.to_dict() for result in results], now(wanted["results"]))


def test_a_reproduction_is_complete(place: Path) -> None:
    wanted = expected("reproduce")
    before = times(place / "reproduce" / "run" / "rows", "*.safetensors")
    succeeds(
        "reproduce", "mini-imagenet", "--held-out-bank", "banks/float32", "-o", "reproduce/run", "--resume"
    )
    assert times(place / "reproduce" / "run" / "rows", "*.safetensors") == before
    record = json.loads(Path("reproduce/run/results.json").read_text())
    figures = [
        {
            (table["number"], line["row"], line["n_shot"]): {
                "metrics": line["metrics"],
                "gains": line["gains"],
            }
            for table in tables
            for line in table["rows"]
        }
        for tables in (record["tables"], wanted["tables"])
    ]
    # The rows of table 3 stand in two tables now, and one of them would hold nothing but the reference.
    assert {(2, "initial-estimate", 1), (3, "wdae-gnn", 1), (3, "wdae-gnn", 5)} <= figures[0].keys()
    for key, line in figures[0].items():
        assert_same(line, figures[1][key])
    assert record["split_held_out"] is False
    assert_same(record["curves"], wanted["curves"])


# --- what ships with the package ------------------------------------------------------------------------


def test_bank_and_backbone_are_those_that_were_shipped() -> None:
    """Models that people keep name the backbone by its checksum; figures are of this bank."""
    wanted = expected("shipped")["files"]
    for file in ("mini-imagenet/bank.safetensors", "resnet12/model.safetensors"):
        assert sha256(ASSETS / file) == wanted[file]


def test_a_model_of_the_backbone_that_shipped_before(capsys: pytest.CaptureFixture[str]) -> None:
    """It opens and scores features (above); of pictures it says why not, and what to do."""
    model, picture = V1 / "models" / "gnn", V1 / "pictures" / "novel" / "novel 0" / "0.png"
    with pytest.raises(SystemExit) as left:
        main(["predict", str(model), str(picture)])
    assert left.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    for words in ("weights ab3028cf", "takes features, but no pictures", "wdae learn PHOTOS --backbone"):
        assert words in said


def test_ready_model() -> None:
    wanted, model = expected("shipped")["model"], embedded_model()
    assert list(model.names) == wanted["names"]
    assert_same(model.base.info, wanted["info"])
    assert model.base.denoiser is not None
    assert_same(model.base.denoiser.steps, wanted["steps"])
    assert_same(model.base.calibration.as_json(), wanted["calibration"])
    dim, queries = model.base.dim, vectors(3, model.base.dim)
    assert_same(model.scores(queries), wanted["scores_of_vectors_3"])
    model.add({"okapi": vectors(2, dim, 5), "quokka": vectors(1, dim, 6)})
    after = "scores_after_adding_okapi_vectors_2_seed5_quokka_vectors_1_seed6"
    assert_same(model.scores(queries), wanted[after])


def test_embedded_backbone_and_bank() -> None:
    wanted = expected("shipped")
    backbone, facts = embedded_backbone(), wanted["backbone"]
    assert_same(backbone.card, facts["card"])
    files = [V1 / file for file in facts["files"]]
    assert_same(backbone.features(files), facts["features"])
    # Models learned when it saw pictures of 84 px say so, and see as they did.
    before = PictureBackbone({**backbone.card, "image_size": 84})
    assert_same(before.features(files), facts["features_at_84_px"])
    bank, facts = embedded_bank(), wanted["bank"]
    assert list(bank.class_names) == facts["names"]
    assert_same(bank.cosine_scale, facts["cosine_scale"])
    assert_same(bank.select(Part.NOVEL).features[0], facts["first_novel"])
    figures = few_way(InitialEstimate(), bank, 1, n_episodes=100, seed=5).metrics
    assert_known(figures, facts["initial_estimate"])


@pytest.mark.parametrize("name", cases("backbones"))
def test_backbone(name: str) -> None:
    """Weights under the names that files use give the features that they gave."""
    wanted = expected("backbones")[name]
    network = backbones.build(name, **wanted["options"]).eval()
    state = network.state_dict()
    assert network.feature_dim == wanted["feature_dim"]
    assert {key: list(value.shape) for key, value in state.items()} == wanted["tensors"]
    with torch.no_grad():
        for n, (key, value) in enumerate(state.items()):
            if value.is_floating_point():
                wave = torch.sin(0.7 * torch.arange(value.numel(), dtype=torch.float64) + n).view(value.shape)
                if key.endswith("running_var") or (value.ndim == 1 and key.endswith("weight")):
                    wave = 1 + 0.1 * wave
                else:
                    wave *= math.sqrt(2 / value[0].numel()) if value.ndim > 1 else 0.1
                value.copy_(wave)
        features = network(vectors(6, 32 * 32, 1).view(2, 3, 32, 32))
    assert_same(features[:, :16], wanted["first_16_features_with_waves"], EMBEDDED)
    assert_same(features.norm(dim=1), wanted["norms"], EMBEDDED)
