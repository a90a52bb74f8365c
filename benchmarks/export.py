"""Whether exports answer as the library does, what fewer bits cost, and how quickly commands start.

    python benchmarks/export.py --pictures DIR --node FOLDER

DIR has pictures called as ImageNet calls them (n01532829...jpg), MiniImageNet's for example. FOLDER has
onnxruntime for Node: npm install --ignore-scripts onnxruntime-node. Without it, that part is left out. The
exports are asked in a fresh environment that has onnxruntime, numpy and Pillow alone. The tables of
docs/guides/deploy.md and backbones.md are made from the record. It can be run in pieces: models (--models)
and parts (--parts) that are not asked for keep their figures.

Torch is held to AVX2 by its environment variables. onnxruntime has no such switch: its figures are those of
the widest instructions that the machine has, and the same pictures are embedded by torch beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import venv
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from common import RESULTS, keep
from wdae.classifier import load
from wdae.classifier.embedded import imagenet_classes
from wdae.classifier.light.folder import ModelFolder
from wdae.data.decode import decode
from wdae.export import export_onnx
from wdae.printing import markdown_table, say

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
PARTS = ("answers", "starting")
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "DNNL_MAX_CPU_ISA": "AVX2"}
PRECISIONS = ("float32", "float16", "int8")
BACKBONES = {"embedded": "ResNet-12, embedded", "lite0": "EfficientNet-Lite0"}

IN_PYTHON = """
import json, sys
import numpy as np, onnxruntime
from PIL import Image
session = onnxruntime.InferenceSession(sys.argv[1])
for line in open(sys.argv[2]):
    picture = np.asarray(Image.open(line.rstrip("\\n")).convert("RGB"))
    wanted = ["name", "probabilities", "unknown"]
    name, chances, unknown = session.run(wanted, {"picture": picture})
    print(json.dumps([str(name), [round(float(p), 7) for p in chances], bool(unknown)]))
assert not {"wdae", "torch"} & set(sys.modules)
"""
IN_NODE = """
const ort = require("onnxruntime-node"), fs = require("fs");
(async () => {
  const session = await ort.InferenceSession.create(process.argv[2]);
  const sizes = JSON.parse(fs.readFileSync(process.argv[3] + "/sizes.json"));
  for (let i = 0; i < sizes.length; i++) {
    const data = new Uint8Array(fs.readFileSync(process.argv[3] + "/" + i + ".rgb"));
    const picture = new ort.Tensor("uint8", data, [sizes[i][0], sizes[i][1], 3]);
    const { name, probabilities, unknown } = await session.run({ picture });
    const chances = Array.from(probabilities.data, (p) => Number(p.toFixed(7)));
    console.log(JSON.stringify([name.data[0], chances, Boolean(unknown.data[0])]));
  }
})();
"""

TIMED = """
import json, os, subprocess, sys, time
began = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
seconds, cpu = time.perf_counter() - began, used.ru_utime + used.ru_stime
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "megabytes": used.ru_maxrss / 1024}))
sys.exit(os.waitstatus_to_exitcode(status))
"""
BY_TORCH = """
import sys, time
from pathlib import Path
from wdae.classifier import load
backbone, files = load(sys.argv[1]).backbone, sorted(Path(sys.argv[2]).iterdir())
backbone.features(files[:32])
began = time.perf_counter()
backbone.features(files)
print(len(files) / (time.perf_counter() - began))
"""

Answers = list[tuple[str, Any, bool]]


def library(folder: ModelFolder, files: list[str]) -> Answers:
    """What the library says of picture files."""
    backbone, answers = folder.backbone(), folder.answers()
    assert backbone is not None
    found: Answers = []
    for _, features, faults in backbone.embed(files):
        assert not faults
        for one in answers.predictions(features, len(answers.names)):
            chances = dict(zip(one.classes, one.probabilities, strict=True))
            found.append((one.classes[0], np.array([chances[name] for name in answers.names]), one.unknown))
    return found


def told(command: list[str], **options: Any) -> Answers:
    """What a program says, a line a picture."""
    output = subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout
    return [
        (name, np.array(chances), unknown) for name, chances, unknown in map(json.loads, output.splitlines())
    ]


def compared(wanted: Answers, found: Answers) -> dict[str, float]:
    assert len(wanted) == len(found)
    pairs = list(zip(wanted, found, strict=True))
    return {
        "pictures": len(pairs),
        "same_top_1": float(np.mean([a[0] == b[0] for a, b in pairs])),
        "largest_difference": float(max(np.abs(a[1] - b[1]).max() for a, b in pairs)),
        "same_unknown": float(np.mean([a[2] == b[2] for a, b in pairs])),
    }


def accuracy(found: Answers, names: list[str], known: Collection[str]) -> float:
    """Of the pictures of classes that the model knows."""
    pairs = zip(found, names, strict=True)
    return float(np.mean([one[0] == name for one, name in pairs if name in known]))


def fresh_python(folder: Path) -> str:
    """An environment with onnxruntime, numpy and Pillow alone."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", "onnxruntime", "numpy", "pillow"], check=True)
    return python


def answers_of(name: str, files: list[str], python: str, node: Path | None, place: Path) -> dict[str, Any]:
    folder, model = ModelFolder.open(place / name), load(place / name)
    names = imagenet_classes()
    truth, wanted = [names[Path(file).name[:9]] for file in files], library(folder, files)
    listing = place / "files.txt"
    listing.write_text("\n".join(files) + "\n")
    record: dict[str, Any] = {"accuracy": accuracy(wanted, truth, folder.names), "precisions": {}}
    for precision in PRECISIONS:
        file = export_onnx(model, place / f"{name}-{precision}.onnx", precision=precision, lean=True)  # type: ignore[arg-type]
        found = told([python, "-c", IN_PYTHON, str(file), str(listing)])
        own = compared(wanted, found) | {"bytes": file.stat().st_size}
        own["accuracy"] = accuracy(found, truth, folder.names)
        record["precisions"][precision] = own
        say(f"{name} {precision}: {own}")
    if node is not None:
        record["node"] = compared(wanted, in_node(place / f"{name}-float32.onnx", files, node, place))
        say(f"{name} in Node: {record['node']}")
    return record


def in_node(file: Path, pictures: list[str], node: Path, place: Path) -> Answers:
    raw, sizes = place / "raw", []
    raw.mkdir(exist_ok=True)
    for i, picture in enumerate(pictures):
        pixels = decode(Path(picture).read_bytes())
        (raw / f"{i}.rgb").write_bytes(pixels.tobytes())
        sizes.append(pixels.shape[:2])
    (raw / "sizes.json").write_text(json.dumps(sizes))
    (place / "ask.cjs").write_text(IN_NODE)
    environment = os.environ | {"NODE_PATH": str(node / "node_modules")}
    return told(["node", str(place / "ask.cjs"), str(file), str(raw)], env=environment)


def surroundings() -> dict[str, str]:
    """Of processes that are timed: held to AVX2, and with compiled modules as an installed package has."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"} | AVX2


def wdae(*words: str) -> dict[str, float]:
    """Run a command: seconds of the wall and of the processor, megabytes.

    A process of its own starts it: what is started counts the memory of what starts it as its own.
    """
    asked = [sys.executable, "-I", "-S", "-c", TIMED, sys.executable, "-m", "wdae.cli.main", *words]
    told = subprocess.run(asked, check=True, capture_output=True, text=True, env=surroundings())
    figures: dict[str, float] = json.loads(told.stdout)
    return figures


def best(runs: Iterable[dict[str, float]]) -> dict[str, float]:
    """The least of each figure: the others were disturbed."""
    found = list(runs)
    return {key: min(run[key] for run in found) for key in found[0]}


def starting(name: str, files: list[str], place: Path, repeats: int) -> dict[str, Any]:
    model, some = str(place / name), files[:300]
    many = place / "many"
    many.mkdir(exist_ok=True)
    for i, file in enumerate(some):
        (many / f"{i}.jpg").write_bytes(Path(file).read_bytes())
    wdae("predict", model, files[0])  # modules are compiled, files are in memory
    one = best(wdae("predict", model, files[0]) for _ in range(repeats))
    info = best(wdae("info", model) for _ in range(repeats))
    all_of_them = best(wdae("predict", model, str(many)) for _ in range(max(1, repeats // 2)))
    spent = all_of_them["seconds"] - one["seconds"], all_of_them["cpu_seconds"] - one["cpu_seconds"]
    rates = {
        "pictures_per_second": (len(some) - 1) / spent[0],
        "pictures_per_cpu_second": (len(some) - 1) / spent[1],
    }
    asked = [sys.executable, "-c", BY_TORCH, model, str(many)]
    by_torch = subprocess.run(asked, check=True, capture_output=True, text=True, env=surroundings()).stdout
    found: dict[str, Any] = {"predict_one": one, "info": info, "predict_300": all_of_them | rates}
    found |= {"torch_avx2_pictures_per_second": float(by_torch), "load": os.getloadavg()[0]}
    say(f"{name}: {found}")
    return found


def table(record: dict[str, Any]) -> str:
    """The record as the guide shows it."""
    rows = []
    for name, one in record["models"].items():
        asked = {f"{key}, Python": value for key, value in one["precisions"].items()}
        if "node" in one:
            asked["float32, Node"] = one["node"]
        for how, figures in asked.items():
            size = f"{figures['bytes'] / 1e6:.1f}" if "bytes" in figures else ""
            right = f"{figures['accuracy']:.1%}" if "accuracy" in figures else ""
            rows.append(
                [
                    BACKBONES[name],
                    how,
                    size,
                    f"{figures['same_top_1']:.1%}",
                    f"{figures['largest_difference']:.1g}",
                    f"{figures['same_unknown']:.1%}",
                    f"{right} ({one['accuracy']:.1%})" if right else "",
                ]
            )
    head = [
        "backbone",
        "weights, run by",
        "MB (`--lean`)",
        "same class",
        "largest difference of a probability",
    ]
    head += ["same unknown", "right (the library)"]
    return "\n".join(markdown_table(head, rows, left=head[:2]))


def starting_table(record: dict[str, Any]) -> str:
    """How quickly commands start, as the guide shows it."""
    rows = []
    for name, one in record["starting"].items():
        many = one["predict_300"]
        figures = [one["info"]["seconds"], one["predict_one"]["seconds"], one["predict_one"]["megabytes"]]
        rates = [many["pictures_per_second"], one["torch_avx2_pictures_per_second"]]
        shown = [*(f"{value:.2f}" for value in figures[:2]), f"{figures[2]:.0f}"]
        shown += [f"{rates[0]:.0f}", f"{many['megabytes']:.0f}", f"{rates[1]:.0f}"]
        rows.append([BACKBONES[name], *shown])
    head = ["backbone", "info, s", "one photo, s", "MB", "pictures a second", "MB for 300"]
    return "\n".join(markdown_table([*head, "pictures a second by torch, AVX2"], rows, left=head[:1]))


def between(guide: Path, mark: str, shown: str) -> str:
    """A guide with other text between its marks."""
    text = guide.read_text(encoding="utf-8")
    first, last = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    return text[: text.index(first) + len(first)] + "\n" + shown + "\n" + text[text.index(last) :]


def show(record: dict[str, Any], guides: Path = GUIDES) -> dict[Path, str]:
    """The guides with the record's tables."""
    deploy, backbones = guides / "deploy.md", guides / "backbones.md"
    return {
        deploy: between(deploy, "export", table(record)),
        backbones: between(backbones, "starting", starting_table(record)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--node", type=Path)
    parser.add_argument(
        "--python", help="of an environment with onnxruntime, numpy and Pillow; made if not given"
    )
    parser.add_argument("--models", nargs="+", default=list(BACKBONES))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=5, help="of commands that are timed")
    parser.add_argument("--output", type=Path, help="folder of the record; guides stay as they are then")
    parser.add_argument(
        "--guide", action="store_true", help="write the tables of the record into the guides alone"
    )
    args = parser.parse_args()
    if not args.guide:
        files = sorted(str(file) for file in args.pictures.rglob("n*.jpg"))
        files = random.Random(0).sample(files, min(args.count, len(files)))
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            models, starts = {}, {}
            for name in args.models:
                wdae("learn", "-o", str(place / name), "--backbone", name)
            if "starting" in args.parts:
                starts = {name: starting(name, files, place, args.repeats) for name in args.models}
            if "answers" in args.parts:
                python = args.python or fresh_python(place / "venv")
                models = {name: answers_of(name, files, python, args.node, place) for name in args.models}
        kept = (args.output or RESULTS) / "export-cpu.json"
        earlier = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
        found = {
            "models": earlier.get("models", {}) | models,
            "starting": earlier.get("starting", {}) | starts,
        }
        say(keep("export-cpu", found, args.output))
    if args.output is None:
        record = json.loads((RESULTS / "export-cpu.json").read_text(encoding="utf-8"))
        for guide, text in show(record).items():
            guide.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
