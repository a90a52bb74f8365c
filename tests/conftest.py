"""What many tests share: one thread, and small synthetic banks."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fuzz import state_of
from fuzz_artefacts import FIXTURES

from wdae.bank import FeatureBank
from wdae.synthetic import synthetic_bank

pytest.register_assert_rewrite("method_checks")  # so that a check that fails shows its values

# Some tests fork this process. Collected in the child, an inference engine that an earlier test left behind
# would wait for its threads, which a fork does not copy, without end.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=gc.disable)


# Tests send signals to themselves and to processes they start, which inherit what is ignored here: SIGHUP
# where the tests were started by nohup, SIGINT where a script started them in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small tensors gain nothing from threads, and sums keep one order."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def fixtures_stay_as_they_are() -> Iterator[None]:
    """Files that earlier versions wrote are read, or copied first: no test may change them."""
    before = state_of(FIXTURES.parent)
    yield
    assert state_of(FIXTURES.parent) == before, "a test has changed tests/fixtures; give commands copies"


@pytest.fixture(scope="session")
def small_bank() -> FeatureBank:
    """24 base classes (6 images of each held out), 6 validation and 8 novel ones; 24 dimensions."""
    return synthetic_bank(24, 6, 8, 26, 24, seed=3, held_out_per_class=6)


@pytest.fixture(scope="session")
def uneven_bank() -> FeatureBank:
    """Another number of images in every class, 9 to 40."""
    return synthetic_bank(14, 4, 9, (9, 40), 16, seed=5, held_out_per_class=3)


@pytest.fixture
def make_results(tmp_path: Path) -> ModuleType:
    """``scripts/make_results.py``, reading the project's records and writing to a folder of its own."""
    script = importlib.reload(importlib.import_module("make_results"))  # undoes what other tests set
    (tmp_path / "images").mkdir()
    script.PAGE, script.IMAGES = tmp_path / "results.md", tmp_path / "images"
    script.README = Path(shutil.copy(script.README, tmp_path / "README.md"))
    return script
