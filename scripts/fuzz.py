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
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from fuzz_artefacts import COMMAND_LINE, FIXTURES, KINDS, TRAINING, command_line, make_artefacts, status_of
from fuzz_guard import CANARY, Guard, watch, watched
from fuzz_mutations import mutate

SECONDS = 10
"""Of the processor's time; on the wall's clock three times as many."""
MEMORY = 2**30
BATCH = 400


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
    watching = watch(outside)
    try:
        with drawing, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = status_of(command)
    finally:
        _GUARD.place = None
        signal.alarm(0)
        _GUARD.seen += watched(watching)
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


_GUARD = Guard()


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
