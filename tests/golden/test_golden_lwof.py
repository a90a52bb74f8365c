"""LwoF's attention generator against the authors' implementation."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from wdae.methods import BaseClasses, Setting, Support
from wdae.methods.baselines.lwof import LwofAttention

FILE = Path(__file__).parent / "lwof_attention.safetensors"


def test_novel_weights() -> None:
    golden = load_file(FILE)
    n_base, dim = golden["param.keys"].shape
    method = LwofAttention(Setting(dim, n_base)).eval()
    mapped = {
        "average_gain": golden["param.average_gain"],
        "attention_gain": golden["param.attention_gain"],
        "attention_scale": golden["param.attention_scale"].squeeze(),
        "keys": golden["param.keys"],
        "query.weight": golden["param.query.weight"],
        "query.bias": golden["param.query.bias"],
        "scale": torch.tensor(10.0),
    }
    method.load_state_dict(mapped)
    base = BaseClasses(golden["param.base_weights"])
    with torch.no_grad():
        novel = method.novel_weights(Support(golden["input.support"]), base)
    torch.testing.assert_close(novel, golden["eval.novel_weights"], rtol=0, atol=1e-5)
