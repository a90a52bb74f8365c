"""``wdae export``: a model to run elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from wdae.cli.options import Expect, Model, Only, check_model, parse_only, parse_share
from wdae.printing import counted, say, size_text

SUFFIXES = {"onnx": ".onnx", "torchscript": ".pt", "linear": ".safetensors"}


def export(
    model: Model,
    /,
    *,
    to: Literal["onnx", "torchscript", "linear"],
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    part: Literal["auto", "whole", "squares", "classifier"] = "auto",
    precision: Literal["float32", "float16", "int8"] = "float32",
    false_alarms: float = 0.05,
    lean: bool = False,
    expect: Expect = None,
    only: Only = None,
) -> None:
    """Write the model as it is now to a file that runs without this library.

    onnx takes a picture of any size (uint8, height × width × RGB) if the model has a backbone, and gives its
    name, probabilities and whether it is unknown; else it takes features. wdae info reads what the file says
    of itself, and wdae learn --from opens it again. torchscript takes prepared squares (RGB from 0 to 1) or
    features, and gives scores and probabilities. linear is a matrix and a bias for features, usable in ten
    lines of NumPy. Class names travel inside.

    Parameters
    ----------
    to
        The kind of file.
    output
        The file to write; by default named like the model.
    part
        whole: from a picture on; squares: from batches of prepared squares on; classifier: from features on;
        auto: whole if there is a backbone.
    precision
        Of the backbone's weights in an ONNX file: float16 and int8 make it smaller, not faster.
    false_alarms
        Share of pictures of known classes that an ONNX file may call unknown wrongly; 0 turns it off.
    lean
        Leave out of an ONNX file what wdae learn --from needs.
    """
    check_model(model)
    share = parse_share(expect)
    from wdae.classifier.store import load
    from wdae.export import export_linear, export_onnx, export_torchscript

    opened = load(model)
    chosen = parse_only(only, opened.names)
    path = output or model.with_name(model.name + SUFFIXES[to])
    if to == "linear":
        export_linear(opened, path, expect=share, only=chosen)
    elif to == "onnx":
        export_onnx(
            opened,
            path,
            part,
            precision=precision,
            false_alarms=false_alarms,
            lean=lean,
            expect=share,
            only=chosen,
        )
    else:
        export_torchscript(opened, path, part, expect=share, only=chosen)
    n_classes = len(opened.head_for(only=chosen).names)
    say(f"{path}: {counted(n_classes, 'class', 'classes')}, {size_text(path.stat().st_size)}")
