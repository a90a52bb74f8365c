"""Every option that a help text, the README or a document mentions exists, and is spelled with dashes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App

from wdae import synthetic_bank
from wdae.cli.app import run_app
from wdae.cli.main import COMMANDS, root

ROOT = Path(__file__).parents[2]
OPTION = re.compile(r"(?<![\w-])--[a-zA-Z][\w.-]*\w")
EVERYWHERE = {"--help", "--version", "--debug", "--trust", "--track", "--no-verify"}
OTHERS = {"--nproc-per-node", "--durations"}  # of torchrun and pytest
OTHERS |= {"--ignore-scripts", "--head", "--address", "--node"}  # of npm, Ray and a benchmark
OTHERS |= {"--format", "--no-owner", "--dbname"}  # of pg_dump and pg_restore


def commands(app: App, words: tuple[str, ...] = ()) -> Iterator[tuple[str, App]]:
    """Every command, ``bank import`` as well as ``train``, that runs something."""
    if app.default_command is not None:
        yield " ".join(words), app
    for name in app:
        if not name.startswith("-"):
            yield from commands(app[name], (*words, name))


WDAE = root()
APPS = dict(commands(WDAE))
ARGUMENTS = {
    name: app.assemble_argument_collection(default_parameter=WDAE.default_parameter, parse_docstring=True)
    for name, app in APPS.items()
}
OPTIONS = {
    name: {option for a in arguments if a.show for option in a.names if option.startswith("--")}
    for name, arguments in ARGUMENTS.items()
}


def is_option(word: str, known: set[str]) -> bool:
    """Whether an option is known, or an entry of a table that is: ``--evaluation.steps.5``."""
    return word in known | EVERYWHERE or word.rpartition(".")[0] in known


def faults(text: str, here: str | None = None) -> list[str]:
    """Options in a text that do not exist: after ``wdae COMMAND``, of that command; elsewhere, of any.

    Args:
        here: the command whose help the text is; options belong to it where no other is named before them.
    """
    joined = re.sub(r"\\\n\s*|(?<=[\w,]) *\n(?=[^\n`$#-])", " ", text)
    everything = set().union(*OPTIONS.values()) | OTHERS
    found = []
    joined = re.sub(r"\bpython \S+\.py\b[^;\n]*", "", joined)  # a script has options of its own
    for line in re.split(r"\n|[`;|.](?:\s|$)|`", joined):
        command = here
        for match in re.finditer(
            rf"\bwdae ((?!wdae\b)[a-z]+(?: (?!wdae\b)[a-z]+){{0,2}})|{OPTION.pattern}", line
        ):
            if match[1]:
                words = match[1].split()
                names = (" ".join(words[:count]) for count in (3, 2, 1))
                named = [name for name in names if name in OPTIONS]
                command = named[0] if named else command
            elif not is_option(match[0], OPTIONS[command] if command else everything):
                found.append(f"{match[0]} ({command or 'any command'}) in: {line.strip()[:100]}")
    return found


def test_the_walk_finds_the_commands() -> None:
    assert {name.split()[0] for name in APPS} == COMMANDS.keys()
    assert "bank import" in APPS
    assert {"--class", "--update", "--patience"} <= OPTIONS["add"]
    assert "--training.n-fake" in OPTIONS["train"]


def test_the_check_itself_finds_faults() -> None:
    assert faults("`wdae add model --clas okapi`, or wdae train\n--trainig.noise 3")
    assert faults("see --no-such-thing")
    assert faults("use --top", here="add")
    assert not faults("Record `x`, python unknown.py --bank x/bank --draws 8; commit 01234567.")
    assert not faults("`wdae train --evaluation.steps.5 0.3` and --class", here=None)


@pytest.mark.parametrize("name", APPS)
def test_no_listed_option_has_an_underscore_or_capitals(name: str) -> None:
    shown = {option for argument in ARGUMENTS[name] if argument.show for option in argument.names}
    shown = {option for option in shown if option.startswith("-")}
    assert not [option for option in shown if "_" in option or option != option.lower()]


@pytest.mark.parametrize("name", APPS)
def test_a_help_text_mentions_options_that_exist(name: str) -> None:
    texts = [APPS[name].help, *(argument.parameter.help or "" for argument in ARGUMENTS[name])]
    assert [fault for text in texts for fault in faults(text, here=name)] == []


@pytest.mark.parametrize("name", APPS)
def test_every_listed_option_is_explained(name: str) -> None:
    silent = [a.names for a in ARGUMENTS[name] if a.show and a.parse and not a.parameter.help]
    assert silent == []


DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "src").rglob("*.md")),
    *sorted((ROOT / "recipes").rglob("*.yaml")),
]


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda f: f.relative_to(ROOT).as_posix())
def test_a_document_mentions_options_that_exist(file: Path) -> None:
    assert faults(file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(("command", "option"), [("extract", "--model"), ("reproduce", "--held-out-model")])
def test_former_names_are_understood_and_not_listed(command: str, option: str) -> None:
    arguments = ARGUMENTS[command]
    assert [a.show for a in arguments if option in a.names] == [False]


def test_no_verify_leaves_checksums_out_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic_bank(8, 0, 5, 10, 4, held_out_per_class=2).save(tmp_path / "bank")
    file = tmp_path / "bank" / "bank.safetensors"
    data = bytearray(file.read_bytes())
    data[8 + int.from_bytes(data[:8], "little")] ^= 1  # the first feature's last bit
    file.write_bytes(data)
    shown = ["bank", "show", f"{tmp_path / 'bank'}"]
    assert run_app(WDAE, shown) == 2
    assert "checksum does not match" in capsys.readouterr().err
    for option in ("--no-verify", "--no_verify", "--fast"):
        assert run_app(WDAE, [*shown, option]) == 0
        assert capsys.readouterr().err == "checksums of files are not compared (--no-verify)\n"
    assert run_app(WDAE, shown) == 2
