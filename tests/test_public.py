"""The public names are what they say, suffice for the documents, and give the command line's figures."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import succeeds

import wdae
from wdae.errors import StorageError

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPETS = [page for page in PAGES if not page.name.startswith("add-a-")]  # which change the library itself
SMALL = {
    "denoiser.hidden": 16,
    "training.steps": 4,
    "training.episodes_per_step": 4,
    "training.n_fake": 5,
    "training.base_queries": 10,
    "training.validate_every": 2,
    "training.validation_episodes": 20,
    "evaluation.episodes": 20,
    "evaluation.step_episodes": 20,
    "space.choice_episodes": 20,
    "device": "cpu",
    "precision": "float32",
}


@pytest.mark.parametrize("name", [n for n in wdae.__all__ if n != "__version__"])
def test_a_public_name_is_a_documented_class_or_function(name: str) -> None:
    thing = getattr(wdae, name)
    assert inspect.isclass(thing) or inspect.isfunction(thing), f"{name} is {thing!r}"
    assert inspect.getdoc(thing)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = wdae.nothing


def imported(code: str) -> Iterator[str]:
    """What a snippet takes from the library: ``name`` for a promised one, ``module.name`` for any other."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "wdae":
            inside = (node.module or "").partition(".")[2]
            yield from (f"{inside}.{alias.name}".lstrip(".") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("wdae."))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "wdae":
            yield node.attr


@pytest.mark.parametrize("file", SNIPPETS, ids=lambda f: f.relative_to(ROOT).as_posix())
def test_a_document_imports_promised_names_only(file: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", file.read_text(), re.MULTILINE | re.DOTALL)
    names = {name for block in blocks for name in imported(block)}
    assert names <= {*wdae.__all__}


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    # The same, shorter: what is tested here are the names, and that it runs.
    quick, exact = wdae.train, wdae.evaluate
    monkeypatch.setitem(
        vars(wdae), "train", lambda recipe, bank: quick(wdae.load_recipe(recipe, SMALL), bank)
    )
    monkeypatch.setitem(vars(wdae), "evaluate", lambda *args, **kw: exact(*args, **{**kw, "episodes": 20}))
    exec(compile(code[1], "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert "wdae-gnn" in out
    assert re.search(r"\d\d\.\d\d ± \d\.\d\d", out)


@pytest.mark.parametrize("name", ["wdae-gnn", "wdae-gnn-plus"])
def test_python_gives_the_figures_of_the_command_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bank = wdae.synthetic_bank(16, 6, 6, 40, 24, held_out_per_class=15)
    bank.save(tmp_path / "bank")
    options = [word for key, value in SMALL.items() for word in (f"--{key}", value)]
    recipe = ROOT / "recipes" / "mini-imagenet" / f"{name}.yaml"
    succeeds("train", "-r", recipe, "--bank", tmp_path / "bank", "-o", tmp_path / "run", *options)
    capsys.readouterr()
    succeeds("evaluate", tmp_path / "run", "--bank", tmp_path / "bank", "--episodes", 30, "--json")
    wanted = json.loads(capsys.readouterr().out)

    method = wdae.train(wdae.load_recipe(f"mini-imagenet/{name}", SMALL), wdae.load(tmp_path / "bank"))  # type: ignore[arg-type]
    assert json.loads(wdae.evaluate(method, bank, episodes=30).json()) == wanted
    assert json.loads(wdae.evaluate(tmp_path / "run", bank, episodes=30).json()) == wanted
    loaded = wdae.load(tmp_path / "run")
    assert isinstance(loaded, wdae.WDAE) and isinstance(method, wdae.WDAE)
    assert loaded.steps == method.steps
    assert loaded.balance == method.balance


def test_a_run_from_python_is_a_run(tmp_path: Path) -> None:
    bank = wdae.synthetic_bank(16, 6, 6, 40, 24, held_out_per_class=15)
    wdae.train(wdae.load_recipe("mini-imagenet/wdae-mlp", SMALL), bank, output=tmp_path / "run")
    assert (tmp_path / "run" / "report.html").is_file()
    assert wdae.load(tmp_path / "run").name == "wdae-mlp"  # type: ignore[union-attr]


def test_load_opens_whatever_was_written(tmp_path: Path) -> None:
    bank = wdae.synthetic_bank(8, 0, 5, 12, 8, held_out_per_class=4)
    bank.save(tmp_path / "bank")
    assert isinstance(wdae.load(tmp_path / "bank"), wdae.FeatureBank)
    wdae.save(wdae.learn(bank, method="initial-estimate"), tmp_path / "model")
    assert isinstance(wdae.load(tmp_path / "model"), wdae.Model)
    result = wdae.few_way(wdae.InitialEstimate(), bank, 1, n_query=5, n_episodes=10)
    assert isinstance(wdae.load(result.save(tmp_path)), wdae.Result)
    assert isinstance(wdae.load(ROOT / "src/wdae/assets/resnet12"), wdae.PictureBackbone)


def test_load_compares_checksums_unless_told_otherwise(tmp_path: Path) -> None:
    wdae.synthetic_bank(8, 0, 5, 10, 4, held_out_per_class=2).save(tmp_path / "bank")
    file = tmp_path / "bank" / "bank.safetensors"
    data = bytearray(file.read_bytes())
    data[8 + int.from_bytes(data[:8], "little")] ^= 1
    file.write_bytes(data)
    with pytest.raises(StorageError, match="checksum"):
        wdae.load(tmp_path / "bank")
    assert isinstance(wdae.load(tmp_path / "bank", verify=False), wdae.FeatureBank)


@pytest.mark.parametrize(("name", "words"), [("empty", "holds nothing"), ("absent", "does not exist")])
def test_load_says_what_it_takes(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match=f"{name} {words}.*give a feature bank"):
        wdae.load(tmp_path / name)
