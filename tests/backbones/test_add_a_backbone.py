"""The examples of docs/add-a-backbone.md run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from made_trees import folders
from pages import DOCS, blocks, commands, run_command

from wdae import backbones
from wdae.bank import FeatureBank

PAGE = DOCS / "add-a-backbone.md"


def test_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (_, own, _), (_, shell, _), _ = blocks(PAGE)
    (tmp_path / "tiny_net.py").write_text(own)
    folders(tmp_path / "photos", [f"n{i}" for i in range(6)], 8, seed=0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WDAE_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)  # PYTHONPATH
    for words in commands(shell):
        run_command(words)
    assert FeatureBank.open("tiny-bank").dim == 16


def test_in_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    *_, (_, code, _) = blocks(PAGE)
    names: dict[str, object] = {"__name__": "example"}
    try:
        exec(compile(code, str(PAGE), "exec"), names)
        assert backbones.build("tiny-32")(torch.zeros(2, 3, 32, 32)).shape == (2, 32)
    finally:
        backbones.registry._FACTORIES.pop("tiny-32", None)
    assert capsys.readouterr().out.startswith("16 ")
