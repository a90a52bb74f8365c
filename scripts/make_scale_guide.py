"""Write the figures of docs/guides/scale.md from benchmarks/results/scale, and draw its plot.

python scripts/make_scale_guide.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from result_records import of_commit

from wdae.printing import markdown_table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guides" / "scale.md"
RECORDS = ROOT / "benchmarks" / "results" / "scale"
GPU_HOUR, CORE_HOUR = 3.0, 0.04  # dollars; assumed
PLOT = ROOT / "docs" / "images" / "scale-classes.png"


def records() -> dict[str, dict[str, Any]]:
    """All records, by the names of their files."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(RECORDS.glob("*.json"))}


def where(record: dict[str, Any]) -> str:
    made = record["environment"]
    machine = made.get("gpu") or f"{made['cpu']}, {record.get('cores') or made['cores']} cores"
    return f"{machine}; torch {made['torch']}; {of_commit(made)}"


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
        out += [f"Exact, all with all ({where(gpu)}):", "", *markdown_table(head, rows), ""]
    for record in indexed(found):
        out += classes(record)
    for row in found.get("scale-accuracy", {}).get("accuracy", []):
        kinds = {"among them by the index": "index", "among them exactly": "exact"}
        lines = [
            [name, *(f"{100 * row[f'{part}_{kind}']:.2f}" for part in ("base", "added", "accuracy"))]
            for name, kind in {"without the distractors": "alone", **kinds}.items()
        ]
        out += [
            f"Accuracy on {row['queries']:,} real pictures of {row['real_classes']} classes, 64 of them base,"
            f" the others added with five examples each, beside {row['distractors']:,} distractors halfway"
            f" between base pictures ({where(found['scale-accuracy'])}). Index and exact differ by"
            f" {100 * row['difference']:+.3f} ± {100 * row['difference_ci95']:.3f} points:",
            "",
            *markdown_table(["", "base, %", "added, %", "all, %"], lines),
            "",
        ]
    return out


def indexed(found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of models by an index, that of most classes first."""
    made = [record for record in found.values() if record["benchmark"] == "scale-classes"]
    return sorted(made, key=lambda record: -max((row["classes"] for row in record["rows"]), default=0))


NETWORKS = {"conv4": "a network of four layers at 84 px", "shipped": "the ResNet-12 that ships"}
LYING = {
    "nested": "in groups of ten, ten of which are a group, and so on",
    "clusters": "in clusters of a hundred with nothing between them",
    "real": "halfway between two real features, with noise",
}


def classes(record: dict[str, Any]) -> list[str]:
    """The tables of models by an index."""
    out: list[str] = []
    kinds = [LYING[kind] for kind in dict.fromkeys(row["kind"] for row in record["rows"])]
    rows = [
        [
            f"{row['classes']:,}",
            *(f"{row[key]:.3g}" for key in ("graph_cpu_s", "refine_all_cpu_s", "peak_gib", "open_s")),
            f"{1e3 * row['add_5_p50_s']:.0f}",
            f"{row['pictures_per_s']:,.0f}",
            f"{row['index']['recall']:.3f}",
        ]
        for row in sorted(record["rows"], key=lambda row: row["classes"])
        if "open_s" in row and "graph_s" in row
    ]
    head = ["classes", "graph, CPU s", "refine all, CPU s", "peak, GiB", "open, s", "add 5, ms (p50)"]
    head += ["pictures/s", "recall"]
    if rows:
        out += [
            f"By an index, classes {' or '.join(kinds)} ({where(record)}; building is given in CPU time,"
            " of all cores together):",
            "",
        ]
        out += [*markdown_table(head, rows), ""]
    for row in record["against"]:
        out += [
            f"Graph of {row['classes']:,} classes: by the index {row['index_s']:.0f} s, exactly"
            f" {row['exact_s']:.0f} s (from {row['exact_rows']:,} rows in the same run):"
            f" {row['times_faster']:.1f} times faster, recall {row['recall']:.4f} of 10 neighbours.",
            "",
        ]
    return out


def pictures(found: dict[str, dict[str, Any]]) -> list[str]:
    """What Ray costs, survives and holds."""
    record = found.get("scale-pictures")
    if record is None:
        return []
    out = [f"Measured on a cluster of {record['nodes']} nodes of one core each ({where(record)}):", ""]
    for row in record.get("overhead", []):
        network = NETWORKS.get(row["backbone"], row["backbone"])
        out += [
            f"- {row['pictures']:,} pictures, {network}: two shards and their merging"
            f" {row['shards_s']:.0f} s, Ray {row['ray_s']:.0f} s, {100 * row['overhead']:+.1f} %"
            f" (in CPU time {100 * row['cpu_overhead']:+.1f} %);"
            f" {'the same bank' if row['same_digest'] else 'ANOTHER BANK'}. One run of each: the clock varies"
            " by a few points, CPU time by less."
        ]
    for row in record.get("kills", []):
        out += [
            f"- {row['worker'] + row['driver']} kills at random ({row['worker']} of a worker,"
            f" {row['driver']} of the driver) on extractions of {row['pictures']:,} pictures:"
            f" each came to {'the same bank' if row['same_digest'] else 'ANOTHER BANK'}."
        ]
    rows = [
        [
            f"{row['pictures']:,}",
            *(f"{row[key]:.0f}" for key in ("seconds", "driver_peak_mib", "worker_peak_mib")),
        ]
        for row in sorted(record.get("memory", []), key=lambda row: row["pictures"])
    ]
    if rows:
        out += [
            "- Memory of its own that a process held at most, with a network of four layers at 16 px:",
            "",
        ]
        out += markdown_table(["pictures", "seconds", "driver, MiB", "a worker, MiB"], rows)
    return [*out, ""]


def requests(found: dict[str, dict[str, Any]]) -> list[str]:
    """Servers behind a proxy."""
    record = found.get("scale-requests")
    if record is None:
        return []
    rows = [
        [
            str(row["workers"]),
            *(f"{row[key]:.0f}" for key in ("requests_per_s", "p50_ms", "p99_ms")),
            f"{row['seen_by_all_most_s']:.2f}",
        ]
        for row in record["requests"]
    ]
    head = ["servers", "predictions/s", "p50, ms", "p99, ms", "a change is seen by all after at most, s"]
    clients = record["requests"][0]["clients"]
    load = max(row["load"] for row in record["requests"])
    busy = "; other work ran beside it for some seconds" if load > 5 else ""
    said = f"{clients} clients that ask without pause, on the servers' own cores ({where(record)}{busy}):"
    return [said, "", *markdown_table(head, rows), ""]


def plan(found: dict[str, dict[str, Any]]) -> list[str]:
    """What the measured rates come to at another size."""
    rates = json.loads((ROOT / "benchmarks" / "results" / "stage1-gpu.json").read_text())
    rate = rates["extraction"][0]["images_per_s"]
    gpu_hours, core_hours = 1e9 / rate / 3600, 0.0
    rows = [
        [
            "embed 10⁹ pictures of 84 px, WRN-28-10",
            f"{rate:,.0f} pictures/s on one H200",
            f"{gpu_hours:.1f} GPU hours",
        ]
    ]
    if memory := found.get("scale-pictures", {}).get("memory"):
        last = max(memory, key=lambda row: row["pictures"])
        each = last["pictures"] / last["seconds"] / found["scale-pictures"]["cores"]
        core_hours = 1e9 / each / 3600
        rows.append(
            [
                "read and decode them",
                f"{each:,.0f} pictures/s on one core, a small network included",
                f"{core_hours:,.0f} core hours; {rate / each:,.0f} cores keep one H200 busy",
            ]
        )
    rows.append(
        ["keep their features, D = 640", "float16, 1,280 bytes each", f"{1e9 * 1280 / 2**40:.2f} TiB"]
    )
    if gpu := found.get("scale-gpu"):
        last = gpu["rows"][-1]
        hours = last["graph_s"] * (1e7 / last["classes"]) ** 2 / 3600
        gpu_hours += hours
        rows.append(
            [
                "exact graph of 10⁷ classes",
                f"{last['graph_s']:.0f} s for {last['classes']:,} on one H200; grows with the square",
                f"{hours:.1f} GPU hours",
            ]
        )
    rows.append(["weights of 10⁷ classes, D = 640", "float32", f"{1e7 * 640 * 4 / 2**30:.0f} GiB"])
    rows.append(["their index", "half precision and links", f"{1e7 * (640 * 2 + 170) / 2**30:.0f} GiB"])
    if core_hours:
        money = GPU_HOUR * gpu_hours + CORE_HOUR * core_hours
        cores = 8 * 24
        rows.append(
            [
                f"cost, at an assumed ${GPU_HOUR:g} a GPU hour and ${CORE_HOUR:g} a core hour",
                f"{gpu_hours:.1f} GPU hours, {core_hours:,.0f} core hours",
                f"${money:,.0f}",
            ]
        )
        rows.append(
            [
                f"on a machine of 8 H200 and {cores} cores",
                "GPUs or cores, whichever take longer",
                f"{max(gpu_hours / 8, core_hours / cores):.1f} hours",
            ]
        )
    return [*markdown_table(["what", "from", "comes to"], rows), ""]


def draw(found: dict[str, dict[str, Any]]) -> None:
    """Seconds and GiB against the number of classes."""
    from wdae.evaluation.plots import figure

    with figure(10, 4) as (fig, _):
        left, right = fig.subplots(1, 2)
        first = {"scale-gpu": found.get("scale-gpu", {}), "index": next(iter(indexed(found)), {})}
        for name, kind, style in (("scale-gpu", "GPU, exact", "-"), ("index", "CPU, index", "--")):
            rows = sorted(first[name].get("rows", []), key=lambda row: row["classes"])
            rows = [row for row in rows if "graph_s" in row and "add_5_p50_s" in row]
            if not rows:
                continue
            sizes = [row["classes"] for row in rows]
            cpu = "" if name == "scale-gpu" else "_cpu"
            unit = "" if name == "scale-gpu" else ", CPU s"
            lines = {
                f"graph{cpu}_s": f"graph, {kind}{unit}",
                f"refine_all{cpu}_s": f"refine all, {kind}{unit}",
            }
            lines["add_5_p50_s"] = f"add 5, {kind}"
            for key, label in lines.items():
                left.loglog(sizes, [row[key] for row in rows], style, marker="o", label=label)
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
    parts |= {"pictures": pictures(found), "requests": requests(found)}
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
