"""Mutated artefacts and command lines, fed to wdae: nothing but one clear line may come of it.

    python scripts/fuzz.py --minutes 60 --kind all
    python scripts/fuzz.py --cases 20000 --kind artefacts --seed 1
    python scripts/fuzz.py --again KIND:NUMBER --seed 1        # one case, with its traceback

Artefacts are copies of those of tests/fixtures/v1 and small files of features, pictures, pickles and
unfinished work made here. A case is a copy of one of them, mutated as a forger would (checksums
recomputed), and one command that takes it. Cases run in a forked process with limited memory. A failure is
any exception that is not a WdaeError, a process that dies, 10 seconds without an end, 1 GiB more memory,
anything changed outside the case's folder or opened in a folder that nobody named (by the system's own
account too, so that libraries cannot hide it), and any program started. The mutated artefact of a failure
is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import io
import json
import os
import pickle
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "fixtures" / "v1"
SECONDS = 10
"""Of the processor's time; on the wall's clock three times as many."""
MEMORY = 2**30
BATCH = 400
CANARY = "PWNED"

HOSTILE: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e308, 2**31, 2**63, 10**30, "", " ", "0", "a", "nan"),
    *("../outside/secret.safetensors", "/etc/passwd", "os:system", "evil_mod:make", "x" * 5000, "C:\\x"),
    *("\x1b[31mred\x1b[0m", "a\nb", "\u202eevil", "=1+1", "\ud800", "\0", "é", "[bold]", "$x$", "<b>"),
    *([], {}, [[]], [None], [1, 2], ["a", "b"], {"a": 1}, {"": {}}, [0] * 300, [[[[[[1]]]]]]),
]
INTERESTING = [0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**40, 2**63 - 1, 2**64 - 1]

Words = list[str]


class Kind(NamedTuple):
    """Artefacts of one format (files or folders), and the commands that take one."""

    artefacts: Callable[[Path], Iterable[Path]]
    commands: Callable[[Path, Path, random.Random], list[Words | Callable[[], object]]]


# --- mutation ---------------------------------------------------------------------------------------------


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Flip, cut, insert, repeat, or put a telling number somewhere."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5, 20))):
        at = draw.randrange(len(out) + 1)
        match draw.randrange(7):
            case 0 if out:
                out[at % len(out)] ^= 1 << draw.randrange(8)
            case 1 if out:
                out[at % len(out)] = draw.randrange(256)
            case 2:
                del out[at:]
            case 3:
                out[at:at] = draw.randbytes(draw.choice((1, 4, 100)))
            case 4:
                size = draw.choice((1, 2, 4, 8))
                number = draw.choice(INTERESTING) & (2 ** (8 * size) - 1)
                out[at : at + size] = number.to_bytes(size, draw.choice(("little", "big")))
            case 5:
                out[at:at] = out[at : at + draw.choice((1, 10, 1000))]
            case 6:
                del out[at : at + draw.choice((1, 4, 50))]
    return bytes(out)


def mutate_tree(value: Any, draw: random.Random) -> Any:
    """Change one thing somewhere in plain data."""
    if isinstance(value, (dict, list)) and value and draw.random() < 0.8:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        key = draw.choice(list(keys))
        copy = value.copy()
        copy[key] = mutate_tree(copy[key], draw)
        return copy
    match draw.randrange(6):
        case 0 if isinstance(value, dict) and value:
            gone = draw.choice(list(value))
            return {k: v for k, v in value.items() if k != gone}
        case 1 if isinstance(value, dict):
            return {
                **value,
                draw.choice(["unknown", "", "../x", "x" * 300, "\x1b", *value]): draw.choice(HOSTILE),
            }
        case 2 if isinstance(value, list):
            return value + draw.choice((value, value * 20, [draw.choice(HOSTILE)]))
        case 3 if isinstance(value, (int, float)) and not isinstance(value, bool):
            return draw.choice((value + 1, -value, value * 10, value * 1000, float(value), str(value)))
        case 4:
            deep: Any = value
            for _ in range(draw.choice((1, 40, 3000))):
                deep = [deep]
            return deep
    return draw.choice(HOSTILE)


def mutate_file(path: Path, draw: random.Random) -> None:
    """Mutate a file by its kind."""
    data = path.read_bytes()
    if path.suffix == ".safetensors" and b'"state"' in data[:100_000] and draw.random() < 0.7:
        with contextlib.suppress(Exception):  # mutated before, and no checkpoint any more
            mutate_checkpoint(path, draw)
            return
    if path.suffix in (".json", ".jsonl", ".safetensors") and draw.random() < 0.8:
        with contextlib.suppress(ValueError, RecursionError):
            if path.suffix == ".safetensors":
                size = int.from_bytes(data[:8], "little")
                header = _dumps(mutate_tree(json.loads(data[8 : 8 + size]), draw))
                path.write_bytes(struct.pack("<Q", len(header)) + header + data[8 + size :])
                return
            if path.suffix == ".json":
                path.write_bytes(_dumps(mutate_tree(json.loads(data), draw)))
                return
            lines = data.splitlines() or [b"{}"]
            at = draw.randrange(len(lines))
            lines[at] = _dumps(mutate_tree(json.loads(lines[at]), draw))
            path.write_bytes(b"\n".join(lines) + b"\n")
            return
    if path.suffix in (".yaml", ".csv", ".tsv", ".txt") and draw.random() < 0.7:
        lines = data.splitlines(keepends=True) or [b""]
        at = draw.randrange(len(lines))
        key, separator, _ = lines[at].partition(b": " if path.suffix == ".yaml" else b",")
        hostile = [
            b"*a",
            b"&a [*a]",
            b"!!python/object:os.system x",
            b"[" * 100,
            b"9" * 5000,
            b"{",
            b"\xff",
            b"\0",
        ]
        text = draw.choice([*hostile, *(_dumps(value) for value in HOSTILE)])
        lines[at] = draw.choice(
            (key + separator + text + b"\n", text + b"\n", lines[at] * 3, b"  " + lines[at])
        )
        path.write_bytes(b"".join(lines))
        return
    path.write_bytes(mutate_bytes(data, draw))


def mutate_checkpoint(path: Path, draw: random.Random) -> None:
    """Mutate the state or a tensor of a checkpoint or a saved method, its checksum recomputed."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    from wdae.storage.checkpoint import _digest

    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        metadata = dict(file.metadata())
    text = metadata["state"]
    if draw.random() < 0.7:
        text = _dumps(mutate_tree(json.loads(text), draw)).decode()
    elif tensors:
        name = draw.choice(sorted(tensors))
        tensor = tensors.pop(name)
        odd = [
            tensor.double(),
            tensor.reshape(-1),
            torch.full_like(tensor, -1),
            tensor[None],
            None,
        ]
        odd += [torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor + 2**40]
        odd += [torch.zeros(3, dtype=tensor.dtype), torch.zeros(0, dtype=tensor.dtype)]
        other = draw.choice(odd)
        if other is not None:
            tensors[draw.choice((name, name, name, "other"))] = other.contiguous().clone()
    metadata |= {"state": text, "sha256": _digest(tensors, text)}
    save_file(tensors, path, metadata)


def mutate(place: Path, draw: random.Random, *, links: bool) -> None:
    """Mutate an artefact; of a folder some files, and at times links and strange names among them."""
    if place.is_file():
        mutate_file(place, draw)
        return
    files = sorted(path for path in place.rglob("*") if path.is_file())
    manifests = [path for path in files if path.suffix in (".json", ".yaml")]
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        path = draw.choice(manifests if manifests and draw.random() < 0.6 else files)
        if path.is_symlink() or not path.is_file():
            continue
        match draw.randrange(20):
            case 0:
                path.unlink()
            case 1 if links:
                path.unlink()
                path.symlink_to(place.parent / "outside" / draw.choice(("secret.safetensors", "gone")))
            case 2:
                path.unlink()
                path.mkdir()
            case 3:
                path.unlink()
                os.mkfifo(path)
            case _:
                mutate_file(path, draw)
    if draw.random() < 0.9:
        reseal(place, everything=draw.random() < 0.8)


def reseal(place: Path, *, everything: bool = True) -> None:
    """Recompute the checksums of every manifest, as anyone can; ``everything``: of the listed files too."""
    for path in place.rglob("*.json"):
        if not path.is_file() or path.is_symlink():
            continue
        try:
            value = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            continue
        if not isinstance(value, dict) or "sha256" not in value:
            continue
        if everything and isinstance(value.get("files"), dict):
            for name, entry in value["files"].items():
                file = path.parent / str(name)[:200].replace("\0", "")
                if isinstance(entry, dict) and file.is_file() and ".." not in str(name):
                    data = file.read_bytes()
                    entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        seal(value)
        path.write_bytes(_dumps(value))


def seal(value: dict[str, Any]) -> dict[str, Any]:
    """The manifest with its own checksum recomputed."""
    value.pop("sha256", None)
    with contextlib.suppress(RecursionError):
        value["sha256"] = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    return value


def _dumps(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except RecursionError:
        return b"[" * 3000 + b"]" * 3000


# --- artefacts --------------------------------------------------------------------------------------------


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
            status = _status([word for word in command if word != "--resume"])
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
            if _status(words) != 0:
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


# --- running ----------------------------------------------------------------------------------------------


class Failure(Exception):  # noqa: N818
    """What a case must not do."""


def run_case(kind: str, number: int, seed: int, place: Path, made: Path) -> None:
    """Build one case below ``place`` and run it; raises on any failure."""
    draw = random.Random(f"{seed}:{kind}:{number}")
    outside, work = place / "outside", place / "work"
    for folder in (outside, work):
        folder.mkdir(parents=True)
    shutil.copy(made / "a.safetensors", outside / "secret.safetensors")
    (work / "evil_mod.py").write_text(f"import pathlib\npathlib.Path({str(place / CANARY)!r}).touch()\n")
    os.chdir(work)
    if kind == COMMAND_LINE:
        shutil.copytree(made / "model", work / "model")
        commands: list[Any] = [command_line(made, draw)]
    else:
        origin = draw.choice(list(KINDS[kind].artefacts(made)))
        target = place / origin.name
        if origin.is_dir():
            shutil.copytree(origin, target)
        else:
            shutil.copy(origin, target)
        mutate(target, draw, links=kind not in ("pickle", "picture list"))  # people link their pictures
        commands = KINDS[kind].commands(target, made, draw)
    command = draw.choice(commands)
    (place / "command.json").write_text(json.dumps(command if isinstance(command, list) else "a function"))
    if kind in TRAINING:
        signal.signal(signal.SIGALRM, signal.default_int_handler)  # as Ctrl-C: the recipe says how long
        signal.alarm(4 if draw.random() < 0.2 else 1)
    # Drawing takes most of the time of a report, and sees nothing of the file: a tenth of the cases do it.
    drawing = contextlib.nullcontext() if draw.random() < 0.1 else mock.patch(FIGURE, _quick_figure)
    _GUARD.place, _GUARD.seen = place, []
    out, err = io.StringIO(), io.StringIO()
    watch = _watch(outside)
    try:
        with drawing, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = _status(command)
    finally:
        _GUARD.place = None
        signal.alarm(0)
        _GUARD.seen += _watched(watch)
    if _GUARD.seen:
        raise Failure("; ".join(_GUARD.seen))
    if (place / CANARY).exists():
        raise Failure("code was run")
    if status not in (0, 1, 2) and not (status == 130 and kind in TRAINING):
        raise Failure(f"exit status {status}")
    if status == 2 and not err.getvalue().strip():
        raise Failure("exit status 2 without a word")
    odd = {c for c in out.getvalue() + err.getvalue() if not c.isprintable()} - set(
        "\n\t\u00a0\u3000\u200c\u200d"
    )
    if odd:
        raise Failure(f"printed {sorted(odd)}")
    now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if now - _GUARD.memory > MEMORY:
        raise Failure(f"{(now - _GUARD.memory) / 2**20:.0f} MiB of memory")


FIGURE = "matplotlib.figure.Figure.savefig"


def _quick_figure(figure: Any, path: Any, **_: Any) -> None:
    Path(path).write_bytes(b"a picture")


def _status(command: Any) -> int:
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


class _Guard:
    """Watches what the interpreter opens and starts while a case runs."""

    place: Path | None = None
    memory = 0

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.place is None:
            return
        if event in ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn", "marshal.loads"):
            if event != "marshal.loads":  # what imports of our own modules do
                self.seen.append(f"{event} {arguments!r}"[:200])
        elif event == "subprocess.Popen" and CANARY in repr(arguments):
            self.seen.append(f"{event} {arguments!r}"[:200])
        elif event == "open" and isinstance(arguments[0], (str, bytes)):
            self._opened(os.fsdecode(arguments[0]), arguments[2])
        elif event in _CHANGES:
            self._changed(event, arguments)

    def _changed(self, event: str, arguments: tuple[Any, ...]) -> None:
        place, self.place = self.place, None
        try:
            paths, folders = _CHANGES[event]
            for at, folder in zip(paths, folders, strict=True):
                if isinstance(arguments[at], (str, bytes)):
                    number = arguments[folder] if folder < len(arguments) else -1
                    base = Path.cwd() if number in (-1, None) else Path(f"/proc/self/fd/{number}").readlink()
                    path = base / os.fsdecode(arguments[at])
                    real = Path(os.path.realpath(path.parent), path.name)
                    if place is not None and not real.is_relative_to(place) and not _may_write(real):
                        self.seen.append(f"{event} {real}"[:200])
        except (OSError, ValueError):
            pass
        finally:
            self.place = place

    def _opened(self, name: str, flags: Any) -> None:
        place, self.place = self.place, None
        try:
            path = Path.cwd() / name
            if isinstance(flags, int) and flags & os.O_NOFOLLOW and path.is_symlink():
                return  # refused by the system
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            real = Path(os.path.realpath(path))
            if place is not None and real.is_relative_to(place / "outside"):
                self.seen.append(f"opened {name[:200]}")
            elif writes and place is not None and not real.is_relative_to(place) and not _may_write(real):
                self.seen.append(f"wrote {name[:200]}")
        except (OSError, ValueError):
            pass
        finally:
            self.place = place


_CHANGES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "os.remove": ((0,), (1,)),
    "os.rmdir": ((0,), (1,)),
    "os.mkdir": ((0,), (2,)),
    "os.rename": ((0, 1), (2, 3)),
    "os.link": ((1,), (3,)),
    "os.symlink": ((1,), (2,)),
    "os.truncate": ((0,), (9,)),
    "os.chmod": ((0,), (2,)),
}
"""Events of the interpreter that change something: where the paths stand, and the folders they start from."""


def _watch(folder: Path) -> int:
    """Let the system tell of everything that is opened or changed in a folder, by libraries too."""
    if not sys.platform.startswith("linux"):
        return -1
    libc = ctypes.CDLL(None)
    number = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    libc.inotify_add_watch(number, os.fsencode(folder), 0x2 | 0x4 | 0x20 | 0xC0 | 0x100 | 0x200)
    return number


def _watched(number: int) -> list[str]:
    if number < 0:
        return []
    try:
        data = os.read(number, 4096)
    except BlockingIOError:
        return []
    finally:
        os.close(number)
    seen, at = [], 0
    while at < len(data):
        _, kind, _, size = struct.unpack_from("iIII", data, at)
        name = data[at + 16 : at + 16 + size].rstrip(b"\0").decode(errors="replace")
        if not kind & 0x40000000:  # somebody who lists the folders of this machine is not meant
            seen.append(f"the system says that outside/{name} was opened or changed")
        at += 16 + size
    return seen


def _may_write(path: Path) -> bool:
    return (
        (str(path).startswith(("/dev/", "/proc/")) and "shm" not in path.parts)
        or "__pycache__" in path.parts
        or "cache" in str(path).lower()
    )


_GUARD = _Guard()


class Report(NamedTuple):
    """Cases run by kind, and failures: kind, number, reason."""

    cases: Counter[str]
    failures: list[tuple[str, int, str]]


def fuzz(
    kinds: list[str],
    seed: int,
    *,
    cases: int | None = None,
    seconds: float | None = None,
    first: int = 0,
    keep: Path | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> Report:
    """Run cases of several kinds in turn until there are ``cases`` of them or time is up."""
    before = state_of(FIXTURES)
    base = Path(tempfile.mkdtemp(prefix="wdae-fuzz-"))
    made, report = base / "made", Report(Counter(), [])
    os.environ["WDAE_CACHE"] = os.environ["MPLCONFIGDIR"] = str(base / "cache")
    make_artefacts(made)
    _warm_up(made)
    until = None if seconds is None else time.monotonic() + seconds
    number = first
    try:
        while (cases is None or number - first < cases) and (until is None or time.monotonic() < until):
            stop = number + BATCH if cases is None else min(number + BATCH, first + cases)
            number = _batch(kinds, seed, range(number, stop), base, made, report, until, keep, say)
            say(f"{sum(report.cases.values())} cases, {len(report.failures)} failures")
    finally:
        shutil.rmtree(base, ignore_errors=True)
    if state_of(FIXTURES) != before:
        report.failures.append(("fixtures", 0, f"{FIXTURES} was changed"))
    return report


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Everything in a folder, files with size and time of change: what differs afterwards was written to."""
    found = {path: path.lstat() for path in folder.rglob("*") if "__pycache__" not in path.parts}
    return {str(p): (0, 0) if p.is_dir() else (s.st_size, s.st_mtime_ns) for p, s in found.items()}


def _batch(
    kinds: list[str],
    seed: int,
    numbers: range,
    base: Path,
    made: Path,
    report: Report,
    until: float | None,
    keep: Path | None,
    say: Callable[[str], object],
) -> int:
    """Cases in one forked process; returns the number of the next case."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _work(kinds, seed, numbers, base, made, writer, until)
    os.close(writer)
    current, began, used, stopped = numbers.start - 1, time.monotonic(), 0.0, False
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        os.set_blocking(reader, False)
        buffer = b""
        while True:
            data = pipe.read(65536)
            if data == b"":
                break
            if data is None:
                if time.monotonic() - began > 3 * SECONDS or _used(child) - used > SECONDS:
                    os.kill(child, signal.SIGKILL)
                    stopped = True
                    break
                time.sleep(0.005)
                continue
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                event = json.loads(line)
                if event[0] == "begin":
                    current, began, used = event[1], time.monotonic(), _used(child)
                else:
                    kind = kinds[event[1] % len(kinds)]
                    report.cases[kind] += 1
                    if event[2]:
                        _failed(report, kind, event[1], event[2], base, keep, say)
                    current = event[1]
    _, status = os.waitpid(child, 0)
    if status != 0:
        kind = kinds[current % len(kinds)]
        reason = f"no end after {SECONDS} seconds" if stopped else f"died: {status}"
        report.cases[kind] += 1
        _failed(report, kind, current, reason, base, keep, say)
    return current + 1


def _used(process: int) -> float:
    """Seconds of the processor's time that a process has used."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _work(
    kinds: list[str], seed: int, numbers: range, base: Path, made: Path, writer: int, until: float | None
) -> None:
    """The forked process: runs cases, tells of each."""
    status = 1
    try:
        tempfile.tempdir = os.environ["WDAE_CACHE"]  # where a command may put what it removes again
        (base / "cache").mkdir(exist_ok=True)
        sys.addaudithook(_GUARD)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 3 * MEMORY, size + 3 * MEMORY))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))
        _GUARD.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        for number in numbers:
            if until is not None and time.monotonic() > until:
                break
            place = base / f"case-{number}"
            os.write(writer, json.dumps(["begin", number]).encode() + b"\n")
            reason = ""
            try:
                run_case(kinds[number % len(kinds)], number, seed, place, made)
            except BaseException as error:
                where = traceback.extract_tb(error.__traceback__)
                ours = [f for f in where if "/wdae/" in f.filename] or where
                spot = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
                reason = f"{type(error).__name__}: {str(error)[:300]}{spot}"
            os.write(writer, json.dumps(["end", number, reason]).encode() + b"\n")
            if not reason:
                os.chdir(base)
                shutil.rmtree(place, ignore_errors=True)
            elif "of memory" in reason:
                break  # the most that it ever took: a fresh process for the next case
        status = 0
    finally:
        os._exit(status)


def _failed(
    report: Report,
    kind: str,
    number: int,
    reason: str,
    base: Path,
    keep: Path | None,
    say: Callable[[str], object],
) -> None:
    report.failures.append((kind, number, reason))
    say(f"FAILURE {kind}:{number}: {reason}")
    place = base / f"case-{number}"
    if keep is not None and place.exists():
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(place, keep / f"{kind.replace(' ', '-')}-{number}", symlinks=True)
    shutil.rmtree(place, ignore_errors=True)


def _warm_up(made: Path) -> None:
    """Import all that the cases need, before forking and before memory is limited."""
    import h5py  # noqa: F401
    import matplotlib.pyplot as plt
    import torch
    import torch._dynamo  # interrupted half-way, its import could not be done again

    import wdae.classifier
    import wdae.cli.recipe
    import wdae.extract.run
    import wdae.stage1.run
    import wdae.stage2.run  # noqa: F401

    torch.set_num_threads(1)
    plt.close("all")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--cases", type=int)
    parser.add_argument(
        "--kind", default="all", help=f"all, artefacts, {COMMAND_LINE!r}, or: {', '.join(KINDS)}"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--again", help="KIND:NUMBER: one case, with its traceback")
    options = parser.parse_args()
    if options.again:
        kind, _, number = options.again.rpartition(":")
        base = Path(tempfile.mkdtemp(prefix="wdae-fuzz-"))
        os.environ["WDAE_CACHE"] = os.environ["MPLCONFIGDIR"] = str(base / "cache")
        make_artefacts(base / "made")
        _warm_up(base / "made")
        sys.addaudithook(_GUARD)
        print(base)
        run_case(kind, int(number), options.seed, base / f"case-{number}", base / "made")
        return 0
    quick = [kind for kind in KINDS if kind not in (*TRAINING, "early model")]  # twice as often as the others
    every = {"all": [*KINDS, *quick, COMMAND_LINE, COMMAND_LINE], "artefacts": [*KINDS, *quick]}
    kinds = every.get(options.kind) or options.kind.split(",")
    seconds = None if options.minutes is None else 60 * options.minutes
    if seconds is None and options.cases is None:
        seconds = 60.0
    report = fuzz(
        kinds,
        options.seed,
        cases=options.cases,
        seconds=seconds,
        first=options.first,
        keep=options.keep,
        say=print,
    )
    for kind, count in sorted(report.cases.items()):
        failed = sum(1 for failure in report.failures if failure[0] == kind)
        print(f"{kind:<16} {count:>6} cases  {failed:>4} failures")
    print(f"{sum(report.cases.values())} cases, {len(report.failures)} failures")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
