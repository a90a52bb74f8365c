"""A short, seeded fuzz of every format and of the command line; an hour of it: scripts/fuzz.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_mutated_artefacts_and_command_lines_end_in_one_clear_line(tmp_path: Path) -> None:
    """In a process of its own: it forks, and limits its memory. WDAE_FUZZ_CASES sets how many cases."""
    cases = os.environ.get("WDAE_FUZZ_CASES", "100")
    words = [sys.executable, str(ROOT / "scripts" / "fuzz.py"), "--cases", cases, "--seed", "7"]
    done = subprocess.run(
        [*words, "--keep", str(tmp_path / "kept")], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_fuzz_itself_sees_a_traceback_and_what_happens_outside(tmp_path: Path) -> None:
    """A fuzz that finds nothing must be one that could: it is shown a defect of each kind."""
    code = """
import ctypes, json, os, pathlib, shutil, sys, fuzz, fuzz_artefacts
fuzz.FIXTURES = fuzz_artefacts.FIXTURES = pathlib.Path(shutil.copytree(fuzz.FIXTURES, sys.argv[1]))
nothing = lambda place: None  # no artefact of these is needed here
fuzz_artefacts._make_unfinished = fuzz_artefacts._make_now = fuzz._warm_up = nothing
def defect(path, made, draw):
    outside = path.parent / "outside" / "secret.safetensors"
    return [lambda: 1 / 0, lambda: outside.read_bytes(), lambda: print("\\x1b[31m"),
            lambda: (fuzz.FIXTURES / "README.md").write_text("x"),
            lambda: (path.parent.parent / f"made-{os.urandom(4).hex()}").mkdir(),
            lambda: ctypes.CDLL(None).open(os.fsencode(outside), 0)]
fuzz.KINDS["npy"] = fuzz_artefacts.Kind(fuzz.KINDS["npy"].artefacts, defect)
report = fuzz.fuzz(["npy"], 0, cases=30)
kinds = {" ".join(reason.split()[:2])[:16] for _, _, reason in report.failures}
print(json.dumps([len(report.failures), sorted(kinds)]))
"""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'scripts'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "fixtures")],
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
        env=environment,
    )
    count, kinds = json.loads(done.stdout.splitlines()[-1])
    assert count == 30 + 1  # and the fixtures, which one of them has changed
    assert len(kinds) == 6 + 1, kinds
