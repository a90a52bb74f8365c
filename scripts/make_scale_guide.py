"""Write the figures of docs/guides/scale.md from benchmarks/results/scale, and draw its plot.

python scripts/make_scale_guide.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guides" / "scale.md"
RECORDS = ROOT / "benchmarks" / "results" / "scale"
PLOT = ROOT / "docs" / "images" / "scale-classes.png"


def records() -> dict[str, dict[str, Any]]:
    """All records, by the names of their files."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(RECORDS.glob("*.json"))}


def where(record: dict[str, Any]) -> str:
    made = record["environment"]
    machine = made.get("gpu") or f"{made['cpu']}, {record.get('cores') or made['cores']} cores"
    changed = "; from a commit with changes of its own" if (made.get("commit") or "+").endswith("+") else ""
    return f"{machine}; torch {made['torch']}{changed}"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---:"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def figures(found: dict[str, dict[str, Any]]) -> list[str]:
    """The tables of graphs and models."""
    out: list[str] = []
    if gpu := found.get("scale-gpu"):
        rows = [
            [
                f"{row['classes']:,}",
                *(f"{row[key]:.3g}" for key in ("graph_s", "refine_all_s", "add_5_p50_s", "peak_gib")),
            ]
            for row in gpu["rows"]
        ]
        head = ["classes", "exact graph, s", "refine all, s", "add 5, s", "peak, GiB"]
        out += [f"Exact, all with all ({where(gpu)}):", "", *table(head, rows), ""]
    for name, record in found.items():
        if not name.startswith("scale-classes"):
            continue
        load = max((row.get("load", 0.0) for part in ("rows", "against") for row in record[part]), default=0)
        busy = f"; other work on the machine, load {load:.0f}" if load > 3 else ""
        if record["rows"]:
            cpu = "_cpu" if busy else ""  # the clock tells nothing on a busy machine
            keys = (f"graph{cpu}_s", f"refine_all{cpu}_s", f"open{cpu}_s", "peak_gib")
            rows = [
                [
                    f"{row['classes']:,}",
                    *(f"{row[key]:.3g}" for key in keys),
                    f"{1e3 * row[f'add_5{cpu}_p50_s']:.0f}",
                    f"{row[f'pictures_per{cpu}_s']:.0f}",
                    f"{row['index']['recall']:.3f}",
                ]
                for row in sorted(record["rows"], key=lambda row: row["classes"])
            ]
            head = ["classes", "graph, s", "refine all, s", "open, s", "peak, GiB", "add 5, ms"]
            head += ["pictures/s", "recall"]
            seconds = "; seconds are of CPU" if busy else ""
            out += [f"By an index ({where(record)}{busy}{seconds}):", "", *table(head, rows), ""]
        for row in record["against"]:
            out += [
                f"Graph of {row['classes']:,} classes ({where(record)}{busy}): by the index"
                f" {row['index_s']:.0f} s ({row['index_cpu_s']:.0f} s of CPU), exactly {row['exact_s']:.0f} s"
                f" ({row['exact_cpu_s']:.0f} s of CPU; from {row['exact_rows']:,} rows):"
                f" {row['times_faster']:.1f} times faster, {row['times_less_cpu']:.1f} times less CPU, recall"
                f" {row['recall']:.4f}.",
                "",
            ]
        for row in record["accuracy"]:
            out += [
                f"Accuracy on {row['queries']:,} real pictures of 84 classes among {row['distractors']:,}"
                f" distractors: {100 * row['accuracy_index']:.2f} % by the index,"
                f" {100 * row['accuracy_exact']:.2f} % exactly; difference {100 * row['difference']:+.3f} ±"
                f" {100 * row['difference_ci95']:.3f} points.",
                "",
            ]
    return out


def plan(found: dict[str, dict[str, Any]]) -> list[str]:
    """What the measured rates come to at another size."""
    rates = json.loads((ROOT / "benchmarks" / "results" / "stage1-gpu.json").read_text())
    rate = rates["extraction"][0]["images_per_s"]
    hours = 1e9 / rate / 3600
    rows = [
        [
            "embed 10⁹ pictures of 84 px, WRN-28-10",
            f"{rate:,.0f} pictures/s on one H200",
            f"{hours:.1f} GPU hours",
        ],
        ["keep their features, D = 640", "float16, 1,280 bytes each", f"{1e9 * 1280 / 2**40:.2f} TiB"],
    ]
    if gpu := found.get("scale-gpu"):
        last = gpu["rows"][-1]
        times = (1e7 / last["classes"]) ** 2
        rows.append(
            [
                "exact graph of 10⁷ classes",
                f"{last['graph_s']:.0f} s for {last['classes']:,} on one H200; grows with the square",
                f"{last['graph_s'] * times / 3600:.1f} GPU hours",
            ]
        )
    rows.append(["weights of 10⁷ classes, D = 640", "float32", f"{1e7 * 640 * 4 / 2**30:.0f} GiB"])
    rows.append(["their index", "half precision and links", f"{1e7 * (640 * 2 + 170) / 2**30:.0f} GiB"])
    return [*table(["what", "from", "comes to"], rows), ""]


def draw(found: dict[str, dict[str, Any]]) -> None:
    """Seconds and GiB against the number of classes."""
    from wdae.evaluation.plots import figure

    with figure(10, 4) as (fig, _):
        left, right = fig.subplots(1, 2)
        for name, record in found.items():
            rows = sorted(record["rows"], key=lambda row: row["classes"])
            if not rows:
                continue
            sizes = [row["classes"] for row in rows]
            kind = "GPU, exact" if name == "scale-gpu" else "CPU, index"
            style = "-" if name == "scale-gpu" else "--"
            lines = {"graph_s": "graph", "refine_all_s": "refine all", "add_5_p50_s": "add 5"}
            busy = name != "scale-gpu" and max(row.get("load", 0.0) for row in rows) > 3
            for key, label in lines.items():
                own = key.replace("_p50_s", "_cpu_p50_s") if "p50" in key else key.replace("_s", "_cpu_s")
                left.loglog(
                    sizes,
                    [row[own if busy else key] for row in rows],
                    style,
                    marker="o",
                    label=f"{label}, {kind}",
                )
            right.loglog(sizes, [row["peak_gib"] for row in rows], style, marker="o", label=kind)
        left.set(xlabel="classes", ylabel="seconds")
        right.set(xlabel="classes", ylabel="peak memory, GiB")
        left.legend(fontsize="small")
        right.legend()
        fig.savefig(PLOT, dpi=110, bbox_inches="tight", metadata={"Software": None})


def page(text: str, found: dict[str, dict[str, Any]]) -> str:
    """The guide with its figures."""
    picture = ["![Seconds and memory against the number of classes](../images/scale-classes.png)", ""]
    parts = {"scale": [*figures(found), *picture], "plan": plan(found)}
    for name, lines in parts.items():
        body = "\n".join(["", *lines])
        text = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
            lambda m, body=body: m[1] + body.lstrip("\n") + m[2],
            text,
            flags=re.S,
        )
    return text


def main() -> None:
    found = records()
    PAGE.write_text(page(PAGE.read_text(), found))
    draw(found)


if __name__ == "__main__":
    main()
