"""The ``wdae`` command.

Commands are registered by import path, so that none is imported before it is used: ``wdae train`` is the
function ``train`` of ``wdae/cli/train.py``, unless ``_HOMES`` says otherwise. Command modules import torch
inside their functions only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wdae.version import __version__

if TYPE_CHECKING:
    from cyclopts import App

ABOUT = "Teach a trained classifier new classes from a few pictures each, without forgetting the old ones."
SECTIONS = {
    "Your model": {
        "learn": "Learn a model from your base classes, or take the one that is ready.",
        "add": "Teach a model new classes, from a few pictures each.",
        "predict": "Classify pictures with a model.",
        "evaluate": "Measure your model on labelled pictures; or methods on episodes of a bank.",
        "info": "Show a model's classes, shots, history, sizes and figures.",
        "explain": "Show what a model made of a class, and what it may be confused with.",
        "set": "Change how often a model expects added classes.",
        "remove": "Take added classes out of a model.",
        "merge": "Make one class of several.",
        "rename": "Call an added class otherwise.",
        "undo": "Take the last change of a model back.",
        "redo": "Make a change again that was taken back.",
        "backbones": "What can turn pictures into features: sizes, licences, what each has seen.",
        "export": "Write a model to run elsewhere: onnx, torchscript or a plain matrix.",
        "serve": "Start a page to teach models on, and an API for programs.",
    },
    "Research": {
        "demo": "Train and measure on the bank that ships with the package: a first look.",
        "train": "Train a denoiser of class weights on a feature bank (stage 2).",
        "runs": "Set trained runs side by side: what differs, what each reached, their curves.",
        "compare": "Train and measure many methods on one bank, on the same episodes.",
        "reproduce": "Run the rows of the paper's tables and set them beside its figures.",
        "methods": "List the methods there are, with their papers and what each can do.",
        "pretrain": "Train a backbone and its classifier on the base classes (stage 1).",
        "episodic": "Train a backbone and a few-shot method together, on episodes of pictures.",
        "extract": "Turn pictures into a feature bank with a trained backbone.",
        "bank": "Feature banks: import one, look at one, make a synthetic one.",
        "data": "Sets of pictures: look at one, check it, prepare it.",
    },
}
COMMANDS = {name: about for section in SECTIONS.values() for name, about in section.items()}
_HOMES = {
    "add": "change:add",
    "remove": "change:remove",
    "merge": "change:merge",
    "rename": "change:rename",
    "set": "change:set_",
    "undo": "change:undo",
    "redo": "change:redo",
    "predict": "model:predict",
    "info": "model:info",
    "explain": "model:explain",
    "backbones": "backbones:app",
    "serve": "serve:app",
    "bank": "bank:app",
    "data": "data:app",
}


def main(tokens: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status: 0 done, 2 bad input, 130 interrupted."""
    words = list(sys.argv[1:] if tokens is None else tokens)
    try:
        status = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output (head, less) has left. Python flushes once more at exit: into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 141
    sys.exit(status)


def _run(words: list[str]) -> int:
    # The overview and the version need no parser, whose import takes longer than all else together.
    if not words or words[0] in ("--help", "-h"):
        print(overview())
        return 0
    if words == ["--version"]:
        print(__version__)
        return 0
    # Its plugins are looked for in every installed package; a command has no use for any.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from wdae.cli.app import run_app

    return run_app(root(), words)


def root() -> App:
    """The whole command line, its commands not yet imported."""
    from cyclopts import App, Group, Parameter

    from wdae.cli.options import shown_default

    app = App(
        name="wdae",
        help=ABOUT,
        version=__version__,
        help_format="markdown",
        group_parameters=Group("Options", sort_key=1),
        # A flag is given or not; "--flag false" undoes one that a script sets.
        default_parameter=Parameter(negative_bool=(), negative_iterable=(), show_default=shown_default),
    )
    for name in COMMANDS:
        app.command(f"wdae.cli.{_HOMES.get(name, f'{name}:{name}')}", name=name)
    return app


def overview() -> str:
    """What ``wdae --help`` says."""
    width = max(len(name) for name in COMMANDS)
    commands = "".join(
        f"{title}:\n" + "".join(f"  {name:<{width}}  {about}\n" for name, about in section.items()) + "\n"
        for title, section in SECTIONS.items()
    )
    return (
        f"{ABOUT}\n\nUsage: wdae COMMAND [OPTIONS]\n\n{commands}"
        "Options:\n"
        "  --help, -h  Show this, or the options of a command: wdae COMMAND --help\n"
        "  --version   Show the version\n"
        "  --debug     Show the traceback of an error (also WDAE_DEBUG=1)\n"
        "  --trust     Let files name this backbone of yours: --trust pkg.module:factory\n"
        "  --track     Log metrics of training to tensorboard or mlflow as well: --track tensorboard\n"
        "  --no-verify Do not compare checksums of the files that are read\n\n"
        "Options may be written with underscores as well: --held_out is --held-out."
    )


if __name__ == "__main__":
    main()
