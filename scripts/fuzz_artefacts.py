"""What is fuzzed: artefacts of every format with the commands that take them, and command lines."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import random
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "fixtures" / "v1"

Words = list[str]


class Kind(NamedTuple):
    """Artefacts of one format (files or folders), and the commands that take one."""

    artefacts: Callable[[Path], Iterable[Path]]
    commands: Callable[[Path, Path, random.Random], list[Words | Callable[[], object]]]


def make_artefacts(place: Path) -> None:
    """Small files of features, pictures and pickles; built once."""
    import h5py
    import numpy as np
    import torch
    from PIL import Image
    from safetensors.torch import save_file

    draw = np.random.default_rng(0)
    X = draw.normal(size=(20, 16)).astype(np.float32)
    Y = np.repeat(np.arange(10), 2)
    names = [f"class {i}" for i in range(10)]
    place.mkdir(parents=True)
    np.save(place / "a.npy", X)
    np.savez(place / "a.npz", features=X, labels=Y, class_names=np.array(names))
    np.savez_compressed(place / "b.npz", features=X.astype(np.float16), labels=np.array(names)[Y])
    with h5py.File(place / "a.h5", "w") as file:
        file["all_features"], file["all_labels"], file["count"] = X, Y, [20]
    with h5py.File(place / "b.hdf5", "w") as file:
        file.create_dataset("features", data=X, compression="gzip", chunks=(5, 16))
        file.create_dataset("labels", data=[names[y] for y in Y], dtype=h5py.string_dtype())
    rows = [",".join(["label", *(f"f{i}" for i in range(16))])]
    rows += [",".join([names[y], *(f"{v:.4f}" for v in x)]) for x, y in zip(X, Y, strict=True)]
    (place / "a.csv").write_text("\n".join(rows) + "\n")
    (place / "a.tsv").write_text("\n".join(rows).replace(",", "\t") + "\n")
    (place / "a.json").write_text(json.dumps({"features": X.tolist(), "labels": [names[y] for y in Y]}))
    (place / "labels.txt").write_text("\n".join(names[y] for y in Y))
    save_file(
        {"features": torch.from_numpy(X), "labels": torch.from_numpy(Y)},
        place / "a.safetensors",
        metadata={"class_names": json.dumps(names)},
    )
    pictures = draw.integers(0, 256, (6, 12, 16, 3), dtype=np.uint8)
    image = Image.fromarray(pictures[0]).resize((40, 30))
    image.save(place / "p.jpg", exif=Image.Exif())
    image.save(place / "progressive.jpg", progressive=True)
    image.convert("CMYK").save(place / "cmyk.jpg")
    image.save(place / "p.png")
    image.convert("P").save(place / "palette.png", transparency=0)
    image.save(place / "p.webp")
    image.save(place / "p.gif", save_all=True, append_images=[image.rotate(90)])
    image.save(place / "p.bmp")
    image.save(place / "p.tiff", compression="tiff_lzw")
    image.convert("I;16").save(place / "wide.tiff")
    for protocol in (0, 2, 4):
        folder = place / f"pickles-{protocol}"
        folder.mkdir()
        content = {"image_data": pictures, "class_dict": {"n01": [0, 1, 2], "n02": [3, 4, 5]}}
        (folder / "mini-imagenet-cache-train.pkl").write_bytes(pickle.dumps(content, protocol))
    shutil.copytree(FIXTURES, place / "fixtures")
    shutil.copytree(FIXTURES / "models" / "none", place / "model")  # commands may change it
    lists = place / "list"
    lists.mkdir()
    for i, pixels in enumerate(pictures):
        Image.fromarray(pixels).save(lists / f"{i}.png")
    (lists / "list.csv").write_text(
        "path,label,part\n" + "".join(f"{i}.png,c{i % 2},base\n" for i in range(6))
    )
    _make_unfinished(place)
    _make_now(place)


def _make_unfinished(place: Path) -> None:
    """Work that stopped just before its end: learning from features and from pictures, and an extraction."""
    folder = place / "unfinished"
    shutil.copytree(place / "fixtures" / "learn" / ".model.unfinished", folder / ".model.unfinished")
    asked = folder / ".model.unfinished" / "asked.json"
    value = json.loads(asked.read_text()) | {"source": str(place / "fixtures" / "banks" / "float32")}
    asked.write_text(json.dumps(value))
    for name, last in (
        ("pictures", "wdae.classifier.sources._learn"),
        ("bank", "wdae.extract.job.ExtractJob.save_bank"),
    ):
        command = _go_on(folder / name, place)
        with mock.patch(last, side_effect=KeyboardInterrupt), contextlib.redirect_stderr(io.StringIO()):
            status = status_of([word for word in command if word != "--resume"])
        if status != 130 or not (folder / f".{name}.unfinished").is_dir():
            raise SystemExit(f"no unfinished work to begin with: {command}")


def _make_now(place: Path) -> None:
    """What the code of today writes: fields that the fixtures of earlier versions do not have."""
    from wdae.stage1.model_file import load_model, write_model
    from wdae.storage.tensors import load_tensors

    fixtures, now = place / "fixtures", place / "now"
    bank, trained = f"{fixtures / 'banks' / 'float32'}", fixtures / "stage1" / "wide-resnet" / "model"
    few = ["--shots", "1", "--episodes", "4", "--queries", "5", "--device", "cpu"]
    pictures = [word for word in _go_on(now / "models" / "pictures", place) if word != "--resume"]
    features = ["learn", bank, "-o", f"{now / 'models' / 'features'}"]
    for words in (
        [*features, "--method", f"{fixtures / 'stage2' / 'wdae-gnn-plus'}"],
        ["add", features[-1], "--class", "okapi", f"{place / 'a.npy'}"],
        ["add", features[-1], "--class", "okapi two", f"{place / 'a.npy'}"],
        ["set", features[-1], "novel-share", "0.4"],
        pictures,
        ["add", pictures[-1], "--class", "okapi", f"{place / 'p.png'}", f"{place / 'p.jpg'}"],
        ["bank", "join", bank, bank, "-o", f"{now / 'banks' / 'joined'}"],
        ["evaluate", "initial-estimate", "--bank", bank, *few, "-o", f"{now / 'results'}"],
    ):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
            if status_of(words) != 0:
                raise SystemExit(f"{words}: {err.getvalue()}")
    write_model(
        now / "stage1" / "model", load_tensors(trained / "model.safetensors"), load_model(trained).card
    )
    names = json.loads((now / "models" / "features" / "model.json").read_text())["base_classes"]
    _known(place / "known.npz", names)


def _known(path: Path, names: list[str]) -> None:
    """Features of classes that the fixtures' models know."""
    import numpy as np

    rows = np.random.default_rng(1).normal(size=(20, 16)).astype(np.float32)
    np.savez(path, features=rows, labels=np.array(names)[np.arange(20) % len(names)])


def _go_on(output: Path, made: Path) -> Words:
    """The command that goes on with the unfinished work of that name."""
    backbone = ["--backbone", f"{made / 'fixtures' / 'stage1' / 'wide-resnet' / 'model'}"]
    pictures = f"{made / 'fixtures' / 'pictures'}"
    match output.name:
        case "model":
            return ["learn", f"{made / 'fixtures' / 'banks' / 'float32'}", "-o", f"{output}", "--resume"]
        case "pictures":
            return ["learn", pictures, *backbone, "-o", f"{output}", "--resume"]
    where = ["--data", pictures, "--chunk", "8", "--device", "cpu", "--precision", "float32"]
    return ["extract", *backbone, *where, "-o", f"{output}"]


def _made(*suffixes: str) -> Callable[[Path], Iterable[Path]]:
    return lambda made: [path for path in sorted(made.iterdir()) if path.suffix in suffixes]


def _fixture(pattern: str, now: str = "none") -> Callable[[Path], Iterable[Path]]:
    def found(made: Path) -> Iterable[Path]:
        fixtures = made / "fixtures"  # never those of the project: a command could change them
        old = sorted(path for path in fixtures.glob(pattern) if not path.name.startswith("expected"))
        today = sorted((made / "now").glob(now))
        return [*old, *today * max(1, len(old) // max(1, len(today)))]  # half and half

    return found


def _bank(path: Path, made: Path, draw: random.Random) -> list[Any]:
    measure = ["evaluate", "initial-estimate", "--bank", f"{path}", "--shots", "1", "--episodes", "4"]
    measure += ["--queries", "5"]
    rows = ["--rows", "initial-estimate", "--shots", "1", "--curve-shots", "1", "--episodes", "4"]
    return [
        ["reproduce", "mini-imagenet", "--held-out-bank", f"{path}", *rows, "--queries", "2", "-o", "out"],
        ["bank", "show", f"{path}"],
        ["bank", "show", f"{path}", "--json"],
        [*measure, "--device", "cpu"],
        ["bank", "join", f"{path}", f"{path}", "-o", "joined"],
    ]


def _model(path: Path, made: Path, draw: random.Random) -> list[Any]:
    import numpy as np

    import wdae

    def estimated() -> None:
        estimator = wdae.FewShotClassifier.load(path)
        estimator.predict(np.ones((2, estimator.n_features_in_)))

    model = f"{path}"
    return [
        lambda: wdae.load(path),
        estimated,
        ["info", model],
        ["info", model, "--json"],
        ["predict", model, f"{made / 'a.npy'}"],
        ["predict", model, f"{made / 'p.png'}"],
        ["add", model, "--class", "new", f"{made / 'a.npy'}"],
        ["add", model, "--class", "new", f"{made / 'p.png'}"],
        ["evaluate", model, f"{made / 'fixtures' / 'pictures'}"],
        ["remove", model, "okapi"],
        ["undo", model],
        ["redo", model],
        ["merge", model, "okapi", "--into", "okapi two"],
        ["rename", model, "okapi", "okapi again"],
        ["set", model, "novel-share", "0.3"],
        ["predict", model, f"{made / 'known.npz'}", "--expect", "new=0.2", "--only", "added"],
        ["explain", model, "okapi"],
        ["evaluate", model, f"{made / 'known.npz'}"],
        ["export", model, "--to", "linear", "-o", "out.safetensors"],
    ]


def _stage1(path: Path, made: Path, draw: random.Random) -> list[Any]:
    return [
        ["extract", "--backbone", f"{path}", "--data", f"{made / data}", "-o", "bank", "--device", "cpu"]
        for data in ("fixtures/pictures", "fixtures/pictures", "list")
    ]


def _run(path: Path, made: Path, draw: random.Random) -> list[Any]:
    from wdae.evaluation.html import write_report
    from wdae.runs.run import Run

    bank = f"{made / 'fixtures' / 'banks' / 'float32'}"
    few = ["--bank", bank, "--shots", "1", "--episodes", "4", "--queries", "5", "--device", "cpu"]
    return [
        ["evaluate", f"{path}", *few],
        ["evaluate", f"{path}", *few, "--csv"],
        lambda: write_report(Run.open(path)),
    ]


def _resume(path: Path, made: Path, draw: random.Random) -> list[Any]:
    bank = f"{made / 'fixtures' / 'banks' / 'float32'}"
    return [["train", "--bank", bank, "-o", f"{path}", "--resume"]]


def _unfinished(path: Path, made: Path, draw: random.Random) -> list[Any]:
    return [_go_on(path.with_name(path.name.removeprefix(".").removesuffix(".unfinished")), made)]


def _comparison(path: Path, made: Path, draw: random.Random) -> list[Any]:
    bank = f"{made / 'fixtures' / 'banks' / 'float32'}"
    recipe = path / "recipe.yaml"
    if recipe.is_file() and not recipe.is_symlink():  # as if it had been begun with this bank
        recipe.write_bytes(recipe.read_bytes().replace(b"bank: banks/float32", f"bank: {bank}".encode()))
    return [["compare", "--bank", bank, "-o", f"{path}", "--resume"]]


def _reproduction(path: Path, made: Path, draw: random.Random) -> list[Any]:
    bank = f"{made / 'fixtures' / 'banks' / 'float32'}"
    return [["reproduce", "mini-imagenet", "--held-out-bank", bank, "-o", f"{path}", "--resume"]]


def _method(path: Path, made: Path, draw: random.Random) -> list[Any]:
    bank = f"{made / 'fixtures' / 'banks' / 'float32'}"
    few = ["--shots", "1", "--episodes", "4", "--queries", "5", "--device", "cpu"]
    return [["evaluate", f"{path}", "--bank", bank, *few]]


def _results(path: Path, made: Path, draw: random.Random) -> list[Any]:
    def show() -> None:
        from rich.console import Console

        from wdae.evaluation.table import ResultTable

        table = ResultTable.load(path)
        Console().print(table.rich())
        print(table.markdown(), table.csv(), table.json())

    return [show]


def _recipe(path: Path, made: Path, draw: random.Random) -> list[Any]:
    from wdae.classifier.learn_job import LearnConfig
    from wdae.comparison.config import CompareRecipe
    from wdae.config import dump, load
    from wdae.extract.config import ExtractConfig
    from wdae.reproduce.config import ReproduceRecipe
    from wdae.stage1.config import Stage1Config
    from wdae.stage2.config import MetaRecipe

    def whole() -> None:
        kinds = (CompareRecipe, ExtractConfig, LearnConfig, MetaRecipe, ReproduceRecipe, Stage1Config)
        dump(load(draw.choice(kinds), path))

    given = ["--recipe", f"{path}", "-o", "out"]
    return [
        *(whole, whole, whole),
        ["train", *given, "--bank", "none"],
        ["pretrain", *given, "--device", "cpu"],
        ["extract", *given, "--device", "cpu"],
        ["compare", *given, "--methods", "none"],
        ["reproduce", "mini-imagenet", *given],
    ]


def _features(path: Path, made: Path, draw: random.Random) -> list[Any]:
    options = draw.choice(([], ["--all-base"], ["--novel", "0..1"], ["--labels", f"{made / 'labels.txt'}"]))
    return [
        ["bank", "import", f"{path}", "-o", "bank", *options],
        ["predict", f"{made / 'model'}", f"{path}"],
        ["evaluate", f"{made / 'model'}", f"{path}"],
        ["evaluate", f"{made / 'now' / 'models' / 'features'}", f"{path}", "--json"],
        ["bank", "import", f"{made / 'a.npy'}", "--labels", f"{path}", "-o", "bank"],
        ["bank", "import", f"{made / 'a.npz'}", "--base-weights", f"{path}", "-o", "bank"],
    ]


def _picture(path: Path, made: Path, draw: random.Random) -> list[Any]:
    folder = path.parent / "set" / "cat"
    folder.mkdir(parents=True)
    shutil.copy(path, folder)
    return [["data", "check", f"{folder.parent}", "--workers", "0"]]


def _pictures(path: Path, made: Path, draw: random.Random) -> list[Any]:
    return [["data", "check", f"{path}", "--workers", "0"]]


KINDS: dict[str, Kind] = {
    "bank": Kind(_fixture("banks/*", "banks/*"), _bank),
    "model": Kind(_fixture("models/*", "models/*"), _model),
    "early model": Kind(_fixture("models-early"), _model),
    "stage-1 model": Kind(_fixture("stage1/*/model", "stage1/model"), _stage1),
    "run": Kind(_fixture("stage2/*"), _run),
    "checkpoint": Kind(_fixture("stage2/*-unfinished"), _resume),
    "unfinished": Kind(lambda made: sorted((made / "unfinished").glob(".*")), _unfinished),
    "comparison": Kind(_fixture("compare/run"), _comparison),
    "reproduction": Kind(_fixture("reproduce/run"), _reproduction),
    "method": Kind(_fixture("methods/*.safetensors"), _method),
    "result": Kind(_fixture("results/*", "results"), _results),
    "recipe": Kind(lambda _: sorted(ROOT.glob("recipes/**/*.yaml")), _recipe),
    "npy": Kind(_made(".npy"), _features),
    "npz": Kind(_made(".npz"), _features),
    "hdf5": Kind(_made(".h5", ".hdf5"), _features),
    "csv": Kind(_made(".csv", ".tsv", ".txt"), _features),
    "json": Kind(_made(".json"), _features),
    "safetensors": Kind(_made(".safetensors"), _features),
    "picture": Kind(_made(".jpg", ".png", ".webp", ".gif", ".bmp", ".tiff"), _picture),
    "pickle": Kind(lambda made: sorted(made.glob("pickles-*")), _pictures),
    "picture list": Kind(lambda made: [made / "list"], _pictures),
}
COMMAND_LINE = "command line"
TRAINING = ("checkpoint", "unfinished", "comparison", "reproduction")


def command_line(made: Path, draw: random.Random) -> Words:
    """Words that could be meant: commands, options of theirs and values, some of them hostile."""
    from wdae.cli.main import COMMANDS, root

    name = draw.choice(list(COMMANDS))
    words = [name]
    if name in ("bank", "data"):
        inner = [word for word in root()[name] if not word.startswith("-")]
        words.append(draw.choice([*inner, "none"]))
    values = [
        *(
            "0",
            "-1",
            "1",
            "nan",
            "1e400",
            "true",
            "null",
            "[1,",
            "{a: *b}",
            "9" * 5000,
            "x" * 5000,
            "",
            " ",
            "\0",
        ),
        *(
            "../x",
            "/",
            "/dev/null",
            "none",
            ".",
            "=1",
            "a\nb",
            "\x1b[31m",
            "\udcff",
            "é",
            "--",
            "-",
            "embedded",
        ),
        *(f"{made / 'a.npz'}", f"{made / 'p.png'}", "model", f"{made}"),
    ]
    options = [
        *(
            "--bank",
            "-o",
            "--output",
            "--recipe",
            "--resume",
            "--force",
            "--json",
            "--csv",
            "--top",
            "--class",
        ),
        *(
            "--seed",
            "--shots",
            "--episodes",
            "--device",
            "--precision",
            "--protocol",
            "--skip-broken",
            "--to",
        ),
        *("--labels", "--names", "--novel", "--validation", "--held-out", "--backbone", "--data", "--layout"),
        *("--method", "--options.x", "--space.power", "--denoiser.hidden", "--training.steps", "--unknown"),
        *(
            "--dtype",
            "--workers",
            "--size",
            "--patience",
            "--false-alarms",
            "--help",
            "--methods",
            "--debugg",
        ),
        *(
            "--all-base",
            "--cosine-scale",
            "--base-weights",
            "--classes",
            "--reading",
            "--sheet-dir",
            "--trust",
        ),
    ]
    for _ in range(draw.randrange(7)):
        option = draw.choice(options)
        style = draw.randrange(4)
        value = draw.choice(values)
        words += [[option], [option, value], [f"{option}={value}"], [value]][style]
    if name in ("demo", "train", "compare", "reproduce", "pretrain", "learn", "extract", "evaluate"):
        words += ["--no-such-option"] * 2  # or some of them would go to work
    return words


def status_of(command: Any) -> int:
    """Run a function, or words of the command line; returns the status of exit."""
    from wdae.errors import WdaeError

    try:
        if callable(command):
            command()
            return 0
        from wdae.cli.app import run_app
        from wdae.cli.main import root

        return run_app(root(), command)
    except WdaeError as error:
        print(error, file=sys.stderr)
        return 2
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
