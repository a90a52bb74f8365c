import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import pytest
from cyclopts import App

from wdae.cli.app import normalise, run_app
from wdae.cli.main import COMMANDS
from wdae.cli.options import Output
from wdae.cli.recipe import recipe_command
from wdae.config import Config, Field
from wdae.errors import BankError
from wdae.version import __version__

WDAE = str(Path(sys.executable).with_name("wdae"))


class Training(Config):
    noise: float = Field(0.1, ge=0)
    """Standard deviation of the ``noise``."""
    clip: float | None = 1.0
    flag: bool = False
    kind: Literal["gnn", "mlp"] = "gnn"
    name: str = "x"
    label: str | None = None
    layers: int | tuple[int, ...] = 2
    offset: float = 0.0
    n_fake: int = 20
    options: dict[str, float] = Field({})


class Evaluation(Config):
    shots: tuple[int, ...] = (1, 5)
    epsilon: dict[int, float] = Field({1: 0.3})
    names: tuple[str, ...] | None = None


class Recipe(Config):
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    seed: int = 0


@pytest.fixture
def calls() -> list[Any]:
    return []


@pytest.fixture
def root(calls: list[Any]) -> App:
    app = App(name="train")

    @app.default
    @recipe_command(Recipe)
    def train(
        recipe: Recipe, source: Path | None = None, *, bank: Path, output: Output, force: bool = False
    ) -> None:
        """Train a denoiser.

        A second paragraph that is
        broken in the source.

        Parameters
        ----------
        bank:
            The feature bank.
        """
        calls.append((recipe, source, bank, output, force))

    root = App(name="wdae", help_format="markdown")
    root.command(app)

    @root.command
    def fail() -> None:
        raise BankError("class 'okapi' has 0 images; give at least 1")

    @root.command
    def interrupt() -> None:
        raise KeyboardInterrupt

    @root.command
    def defect() -> None:
        raise RuntimeError("ours")

    return root


def train(root: App, calls: list[Any], *words: str) -> Recipe:
    assert run_app(root, ["train", "--bank", "b", "-o", "o", *words]) == 0
    recipe: Recipe = calls[-1][0]
    return recipe


def test_only_given_options_override_the_file(root: App, calls: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("training: {noise: 0.5, clip: 3}\nseed: 9\n")
    recipe = train(root, calls, "--recipe", str(path), "--training.noise", "0.1")
    # 0.1 is the default too: that it was given is what counts.
    assert (recipe.training.noise, recipe.training.clip, recipe.seed) == (0.1, 3.0, 9)
    assert train(root, calls) == Recipe()


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--training.noise", "1e-3"], "training.noise", 0.001),
        (["--training.noise=1"], "training.noise", 1.0),
        (["--training.offset", "-0.25"], "training.offset", -0.25),
        (["--training.offset", "-1e-3"], "training.offset", -0.001),
        (["--training.clip", "null"], "training.clip", None),
        (["--training.clip", "None"], "training.clip", None),
        (["--training.flag"], "training.flag", True),
        (["--training.flag", "false"], "training.flag", False),
        (["--training.flag=True"], "training.flag", True),
        (["--training.kind", "mlp"], "training.kind", "mlp"),
        (["--training.name", "12"], "training.name", "12"),
        (["--training.name", "none"], "training.name", "none"),
        (["--training.name", "true"], "training.name", "true"),
        (["--training.label", "none"], "training.label", None),
        (["--training.label", "7"], "training.label", "7"),
        (["--training.layers", "3"], "training.layers", 3),
        (["--training.layers", "[3, 4]"], "training.layers", (3, 4)),
        (["--evaluation.shots", "1", "10"], "evaluation.shots", (1, 10)),
        (["--evaluation.shots", "1,10"], "evaluation.shots", (1, 10)),
        (["--evaluation.shots", "1", "--evaluation.shots", "10"], "evaluation.shots", (1, 10)),
        (["--evaluation.shots", "[1, 10]"], "evaluation.shots", (1, 10)),
        (["--evaluation.shots", "-1", "2"], "evaluation.shots", (-1, 2)),
        (["--evaluation.names", "a,b", "c"], "evaluation.names", ("a,b", "c")),
        (["--evaluation.names", "null"], "evaluation.names", None),
        (["--evaluation.epsilon.5", "0.4"], "evaluation.epsilon", {1: 0.3, 5: 0.4}),
        (["--evaluation.epsilon", '{"5": 0.4}'], "evaluation.epsilon", {1: 0.3, 5: 0.4}),
        (["--seed", "1e3"], "seed", 1000),
        (["--training.n-fake", "7"], "training.n_fake", 7),
        (["--training.n_fake", "7"], "training.n_fake", 7),
        (["--training.n_fake=7"], "training.n_fake", 7),
        (["--training.options.inner_steps", "7"], "training.options", {"inner_steps": 7.0}),
        (["--training.options.inner-steps", "7"], "training.options", {"inner_steps": 7.0}),
        (["--training.name", "a_b"], "training.name", "a_b"),
    ],
)
def test_values_of_every_kind(root: App, calls: list[Any], words: list[str], key: str, value: Any) -> None:
    found: Any = train(root, calls, *words)
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


def test_options_before_and_after_positional_arguments(root: App, calls: list[Any]) -> None:
    train(root, calls, "--training.noise", "0.2", "HERE", "--training.flag", "--force")
    recipe, source, bank, output, force = calls[-1]
    assert (recipe.training.noise, recipe.training.flag) == (0.2, True)
    assert (source, bank, output, force) == (Path("HERE"), Path("b"), Path("o"), True)


def test_every_fault_of_the_command_line_at_once(
    root: App, calls: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--training.noise", "-1", "--training.kind", "gmn", "--seed", "1.5", "--evaluation.shots", "x"]
    assert run_app(root, ["train", "--bank", "b", "-o", "o", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: the recipe has 4 faults:\n")
    for key in ("training.noise", "training.kind", "seed", "evaluation.shots"):
        assert f"'{key}' must be" in error
    assert calls == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--bank", "b", "-o", "o", "--training.nosie", "3"], "--training.noise"),
        (["train", "--bank", "b", "-o", "o", "--bnak", "3"], "--bank"),
        (["train", "-o", "o"], "--bank"),
        (["train", "--bank", "b", "-o", "o", "--training.noise"], "--training.noise"),
        (["tain"], "unknown command 'tain'; did you mean 'train'?"),
        (["train", "--bank", "b", "-o", "o", "-r", "absent.yaml"], "no recipe at absent.yaml"),
        (
            ["train", "--bank", "b", "-o", "o", "-r", "mini-imagenet/wdae-gn"],
            "did you mean 'mini-imagenet/wdae-g",
        ),
        (["fail"], "error: class 'okapi' has 0 images; give at least 1\n"),
    ],
)
def test_mistakes_are_one_message_and_status_2(
    root: App, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(root, words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err


def test_ctrl_c_is_a_line_and_status_130(root: App, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(root, ["interrupt"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_debug_keeps_tracebacks(root: App, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BankError):
        run_app(root, ["fail", "--debug"])
    monkeypatch.setenv("WDAE_DEBUG", "1")
    with pytest.raises(BankError):
        run_app(root, ["fail"])


def test_a_defect_of_ours_keeps_its_traceback(root: App) -> None:
    with pytest.raises(RuntimeError, match="ours"):
        run_app(root, ["defect"])


def test_help_documents_every_key(root: App, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(root, ["train", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for words in (
        "Train a denoiser. A second paragraph that is broken in the source.",
        "--bank PATH The feature bank. [required]",
        "--training.noise NUMBER Standard deviation of the noise. (a number ≥ 0) [default: 0.1]",
        "--evaluation.shots INT...",
        "[default: [1, 5]]",
        "--training.kind",
        "--training.n-fake",
        "'gnn' | 'mlp'",
    ):
        assert words in text


def test_true_and_false_belong_to_the_flag_before_them() -> None:
    assert normalise(["-o", "true", "--a", "False", "--b=1", "true"]) == [
        "-o",
        "true",
        "--a=false",
        "--b=1",
        "true",
    ]


def wdae(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([WDAE, *words], capture_output=True, text=True, env={**os.environ, **variables})


def test_the_installed_command_lists_its_commands_without_importing_them() -> None:
    code = (
        "import sys\nfrom wdae.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as done:\n    assert done.code == 0\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'matplotlib', 'pydantic', 'yaml', 'rich'} & set(sys.modules)\n"
        "ours = [m for m in sys.modules if m.startswith('wdae.') and m.split('.')[1] not in "
        "('cli', 'errors', 'lazy', 'version')]\n"
        "commands = [m for m in sys.modules if m.startswith('wdae.cli.') and m.split('.')[2] not in "
        "('app', 'main')]\n"
        "assert not heavy | set(ours) | set(commands), (heavy, ours, commands)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout


def test_every_command_has_its_help_without_torch() -> None:
    code = (
        f"import sys\nfrom wdae.cli.main import main\nfor name in {[*COMMANDS]!r}:\n"
        "    try:\n        main([name, '--help'])\n    except SystemExit as done:\n"
        "        assert done.code == 0, name\n"
        "    heavy = {'torch', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "    assert not heavy, (name, heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert f"Usage: wdae {name} " in done.stdout


def test_version() -> None:
    done = wdae("--version")
    assert (done.returncode, done.stdout.strip()) == (0, __version__)


def test_unknown_command_from_the_shell() -> None:
    done = wdae("trian")
    assert done.returncode == 2
    assert done.stderr.strip() == "error: unknown command 'trian'; did you mean 'train'?"


def test_help_takes_less_than_0_4_seconds() -> None:
    def once() -> float:
        began = time.perf_counter()
        assert wdae("--help").returncode == 0
        return time.perf_counter() - began

    assert min(once() for _ in range(5)) < 0.4


@pytest.mark.parametrize("words", [["--help"], ["methods", "--json"]])
def test_a_reader_that_has_left_is_no_error(words: list[str]) -> None:
    """``--json`` prints lines one by one, as predict does; they fail within the command."""
    reader, writer = os.pipe()
    os.close(reader)
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}
    done = subprocess.run([WDAE, *words], stdout=writer, stderr=subprocess.PIPE, text=True, env=unbuffered)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(os.name != "posix", reason="signals are sent the POSIX way")
def test_ctrl_c_from_the_shell_while_working() -> None:
    code = (
        "import sys, time\nfrom cyclopts import App\nfrom wdae.cli.app import run_app\n"
        "app = App(name='wdae')\n"
        "@app.command\ndef work() -> None:\n    print('working', flush=True)\n    time.sleep(30)\n"
        "sys.exit(run_app(app, ['work']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert (process.returncode, error) == (130, "interrupted\n")
