"""Write the graphs that ship: our backbones for onnxruntime, without weights.

    python scripts/make_graphs.py

To be run after a backbone was changed; a test compares what they give with the networks.
"""

from __future__ import annotations

from wdae.backbones import build
from wdae.backbones.as_onnx import weightless_graph
from wdae.backbones.graphs import GRAPHS, SHIPPED


def main() -> None:
    GRAPHS.mkdir(exist_ok=True)
    for name in sorted(set(SHIPPED.values())):
        data = weightless_graph(build(name)).SerializeToString(deterministic=True)
        (GRAPHS / f"{name}.onnx").write_bytes(data)
        print(f"{name}: {len(data)} bytes")


if __name__ == "__main__":
    main()
