"""What every command shares: how errors end, and what the raw words on the command line mean."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cyclopts import App, CycloptsError

from wdae.errors import WdaeError, nearest
from wdae.printing import printable
from wdae.runs.interrupt import as_interrupts, exit_status
from wdae.runtime.process import keep_freed_memory, shorten_thread_waits
from wdae.storage.trust import trusting

_NO_VERIFY = "--no-verify"
DONE, BAD_INPUT = 0, 2
_FORMER = {"--out": "--output", "--model-dtype": "--dtype", "--fast": _NO_VERIFY}


def run_app(app: App, tokens: Sequence[str]) -> int:
    """Run an app on raw words and return the exit status.

    A user's mistake is one clear message on stderr and status 2, Ctrl-C a line and status 130 (SIGTERM 143,
    SIGHUP 129); anything else is a defect of ours and keeps its traceback, as all of them do with
    ``--debug`` or WDAE_DEBUG=1.
    """
    words = [word for word in tokens if word != "--debug"]
    debug = len(words) < len(tokens) or os.environ.get("WDAE_DEBUG", "") not in ("", "0")
    keep_freed_memory()
    shorten_thread_waits()
    try:
        _refuse_unknown_command(app, words)
        app.suppress_keyboard_interrupt = False  # or cyclopts would exit by itself, without a word
        words, trust = split_option(normalise(words), "--trust", "pkg.module:factory")
        words, trackers = split_option(words, "--track", "tensorboard")
        with as_interrupts(), trusting(trust), _tracking(trackers), _verifying(_NO_VERIFY not in words):
            words = [word for word in words if word != _NO_VERIFY]
            app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except (WdaeError, CycloptsError) as error:
        if debug:
            raise
        return _fail(str(error))
    except BrokenPipeError:  # whoever read our output has left: main ends quietly
        raise
    except (OSError, MemoryError) as error:  # the machine's, not ours: a vanished folder, no memory left
        if debug:
            raise
        named = (
            f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else error
        )
        return _fail(str(named) or "there is not enough memory for this")
    except KeyboardInterrupt:
        if debug:
            raise
        print("interrupted", file=sys.stderr)
        return exit_status()
    return DONE


@contextmanager
def _tracking(names: Sequence[str]) -> Iterator[None]:
    if not names:  # a command that logs nothing need not import what would
        yield
        return
    from wdae.runs.tracking import tracking

    with tracking(names):
        yield


@contextmanager
def _verifying(on: bool) -> Iterator[None]:
    if on:
        yield
        return
    from wdae.storage.manifest import without_checksums

    with without_checksums():
        print("checksums of files are not compared (--no-verify)", file=sys.stderr)
        yield


def normalise(words: Sequence[str]) -> list[str]:
    """Words as the parser takes them: options with dashes and present names, a flag's value joined to it.

    >>> normalise(["--a.b_c", "false", "--name", "x_y", "--", "--d_e"])
    ['--a.b-c=false', '--name', 'x_y', '--', '--d_e']
    """
    out: list[str] = []
    for i, word in enumerate(words):
        if word == "--":
            return [*out, *words[i:]]
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            name = name.replace("_", "-")
            out.append(_FORMER.get(name, name) + equals + value)
        elif word.lower() in ("true", "false") and out and out[-1].startswith("--") and "=" not in out[-1]:
            out[-1] += f"={word.lower()}"
        else:
            out.append(word)
    return out


def split_option(words: Sequence[str], option: str, example: str) -> tuple[list[str], list[str]]:
    """The words without an option that every command has, and the values that were given for it.

    >>> split_option(["predict", "--trust", "a.b:c", "x", "--trust=d:e", "--", "--trust"], "--trust", "a:b")
    (['predict', 'x', '--', '--trust'], ['a.b:c', 'd:e'])
    """
    rest, values = list(words), list[str]()
    end = rest.index("--") if "--" in rest else len(rest)
    for i in reversed(range(end)):
        name, equals, value = rest[i].partition("=")
        if name == option:
            if not equals and i + 1 >= end:
                raise WdaeError(f"{option} needs a name: {option} {example}")
            values.insert(0, value if equals else rest.pop(i + 1))
            del rest[i]
            end = rest.index("--") if "--" in rest else len(rest)
    return rest, values


def _refuse_unknown_command(app: App, words: Sequence[str]) -> None:
    """Name the nearest command here: cyclopts would import every command's module to do so."""
    if words and not words[0].startswith("-"):
        known = [name for name in app if not name.startswith("-")]
        if words[0] not in known:
            raise WdaeError(f"unknown command {words[0]!r}{nearest(words[0], known)}")


def _fail(message: str) -> int:
    print("error:", printable(message, keep="\n"), file=sys.stderr)
    return BAD_INPUT
