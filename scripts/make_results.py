"""Figures for the documents: collect them from run folders, then write ``docs/results.md`` from them.

    python scripts/make_results.py adopt runs/mini-imagenet [NAME TITLE]
    python scripts/make_results.py adopt runs/on-a-gpu elsewhere/mini-imagenet-h200 MiniImageNet
    python scripts/make_results.py extend NAME runs/some-more-rows
    python scripts/make_results.py collect compare-embedded runs/wdae-gnn runs/wdae-mlp
    python scripts/make_results.py renew compare-embedded runs/wdae-gnn
    python scripts/make_results.py demo runs/demo
    python scripts/make_results.py write

``adopt`` keeps the record of a ``wdae reproduce`` run as ``results/BENCHMARK.json``, or under another name
and title where it is a second one of a benchmark: in ``elsewhere`` the same command on another machine, of
which the page tells the time, in ``seeds`` with another seed; ``extend`` adds rows that were run later, on
the same features and episodes; ``collect`` reads result files of single runs with per-episode values, takes
paired gains over the initial estimate, and keeps means, intervals and provenance in ``results/NAME.json``;
``renew`` does so for some methods of such a file and leaves the others alone; ``demo`` puts what
``wdae demo`` has printed into the README. ``write`` turns those, the records of stage 1
(``stage1_results.py``) and those of the benchmarks into the page, with plots drawn from the records, and puts
the main rows into the README; and ``docs/tries.md``, from ``results/tries``. A file ``results/NAME.md``
beside a record is put before its tables (after them, in ``tries``): words, no figures. No figure on the page
is typed by hand.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stage1_results
from result_records import BASELINE, adopt, collect, extend

from wdae.errors import MissingExtraError
from wdae.evaluation.paper import MINI_IMAGENET, REPORTED
from wdae.evaluation.results import Estimate
from wdae.evaluation.table import ResultTable
from wdae.evaluation.text_table import shown
from wdae.printing import markdown_table
from wdae.reproduce.benchmarks import MINI_IMAGENET as MINI_IMAGENET_ROWS
from wdae.reproduce.plots import draw
from wdae.reproduce.record import FORMAT as REPRODUCTION
from wdae.reproduce.render import markdown
from wdae.runs.run import Run
from wdae.storage.files import write_text
from wdae.storage.records import read_json

ROOT = Path(__file__).parent.parent
RESULTS, BENCHMARKS, PAGE = ROOT / "results", ROOT / "benchmarks" / "results", ROOT / "docs" / "results.md"
IMAGES, README = ROOT / "docs" / "images", ROOT / "README.md"
HEADLINES = (
    (
        "resnet12-taught",
        (
            *(BASELINE, "lwof", "wdae-mlp-paper", "wdae-gnn-paper"),
            *("initial-estimate-balanced", "lwof-balanced", "wdae-mlp", "wdae-gnn", "wdae-gnn-plus"),
        ),
    ),
)
LABELS = {row.name: row.label for row in MINI_IMAGENET_ROWS.rows}
PAPER_ROWS = (BASELINE, "lwof", "wdae-mlp", "wdae-gnn")
AS_THEY_COME = (
    BASELINE,
    "lwof",
    "wdae-mlp-paper",
    "wdae-gnn-paper",
    "wdae-gnn-unbalanced",
    "wdae-gnn-plus-no-balance",
)
BALANCED = ("initial-estimate-balanced", "lwof-balanced", "wdae-mlp", "wdae-gnn", "wdae-gnn-plus")
GLANCE_WORDS = """\
*Novel*: 5-way on the 20 novel classes, table 2. *All*: 75 queries of the novel classes and 75 of the base
classes an episode, each among all 69 classes, table 3. *Base*: change of the base queries' accuracy among
the 64 base classes when novel ones are added and weights refined. Where a record has two networks, that of
table 3 learned from 500 pictures of each base class, so that 100 are left to ask for, that of table 2 from
all 600; novel accuracies on the features of table 3 are with its rows below.

Accuracy among all classes depends on a constant between base and novel scores, so there are two tables, and
figures of one are not to be compared with those of the other. In the first, novel and base scores stand as
they come, as in the paper. *ε of the paper* is exactly its setting: ε = 1.0 at one shot, 0.5 at five. The row
*ε by validation* is not: its ε was chosen for novel accuracy on validation classes, where at five shots a
smaller one is best, and that one costs accuracy among all classes. In the second, a balance of base and novel
scores, found on validation classes, is ours, and every row has it. Gains over the initial estimate of the
same table are the generator's own share. Records that were made before LwoF had a balance lack that row, and
their base queries are the held-out pictures that ε and balance were fitted on; *split* marks records in which
one half of them was fitted on and the other asked.
"""
MARKS, DEMO = ("<!-- results -->", "<!-- /results -->"), ("<!-- demo -->", "<!-- /demo -->")
CAPTIONS = {
    "accuracy-against-shots": "Accuracy against the number of shots",
    "base-novel-trade-off": "Base against novel accuracy as a constant is added to novel scores",
    "gnn-gain-by-distance": "Gain of the GNN over the MLP by distance to the base classes",
}


def reproduction_section(record: dict[str, Any], notes: str) -> list[str]:
    """The tables of a reproduction as they stand in its run folder, and its plots."""
    page = markdown(record, heading=2).splitlines()
    out = [*page[:2], *([notes, ""] if notes else []), *page[2:], ""]
    for path in sorted((RESULTS / "elsewhere").glob(f"{record['name']}-*.json")):
        other = read_json(path)  # the same command on another machine: its time, and all its rows in the file
        where, rows = other["environment"]["gpu"] or other["environment"]["cpu"], set()
        for table in other["tables"]:
            rows |= {(table["role"], line["row"]) for line in table["rows"]}
        out += [
            f"{where}: {len(rows)} rows in {other['seconds'] / 60:.1f} minutes (`results/elsewhere`).",
            "",
        ]
    for name in plots(record):
        caption = CAPTIONS.get(name.removeprefix(f"{record['name']}-"), name)
        caption += f"; {record['curves']['role']} features"
        out += [f"![{caption}](images/{name}.png)", "", f"*{caption}.*", ""]
    return out


def plots(record: dict[str, Any]) -> list[str]:
    """Draw a record's plots into the documents; without matplotlib, those drawn before stay."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            for path in draw(record, Path(folder)):
                if path.suffix == ".png":
                    shutil.copy(path, IMAGES / f"{record['name']}-{path.name}")
    except MissingExtraError as error:
        print(f"plots stay as they are: {error}", file=sys.stderr)
    return sorted(path.stem for path in IMAGES.glob(f"{record['name']}-*.png"))


def accuracy_table(record: dict[str, Any]) -> list[str]:
    """Ours, the paper's figure where there is one, and the paired gain."""
    head = ["method", "shots", "novel", "paper", "gain", "all", "paper", "gain", "base", "gain"]
    rows = []
    for row in record["rows"]:
        mark = " †" if row["info"].get("start_kept") else ""
        mark += " (transductive)" if row["info"].get("transductive") else ""
        cells = [row["method"] + mark, str(row["n_shot"])]
        known = MINI_IMAGENET.get(row["method"])
        paper = {} if known is None else {"novel": known.accuracy, "all": known.all_classes}
        for metric in ("novel", "all", "base"):
            cells.append(Estimate(**row["metrics"][metric]).percent() if metric in row["metrics"] else "")
            if metric != "base":
                figure = paper.get(metric, {}).get(row["n_shot"])
                cells.append("" if figure is None else f"{figure:.2f}")
            gain = row["gains"].get(metric)
            cells.append("" if gain is None else Estimate(**gain).percent(signed=True))
        rows.append(cells)
    return markdown_table(head, rows, left=["method"])


def ahead_in(record: dict[str, Any]) -> list[str]:
    """What † means, where a row has it, and which methods are ahead of wdae-gnn at which number of shots."""
    out = []
    if any(row["info"].get("start_kept") for row in record["rows"]):
        out += ["† stands as it started: on validation classes training gained nothing beyond chance.", ""]
    for n_shot in sorted({row["n_shot"] for row in record["rows"]}):
        means = {r["method"]: r["metrics"]["novel"]["mean"] for r in record["rows"] if r["n_shot"] == n_shot}
        ahead = [name for name, mean in means.items() if mean > means.get("wdae-gnn", 1)]
        seeing = {r["method"] for r in record["rows"] if r["info"].get("transductive")}
        words = {name: f"{100 * means[name]:.2f}" + (", transductive" * (name in seeing)) for name in ahead}
        named = ", ".join(f"{m} ({words[m]})" for m in sorted(ahead, key=means.__getitem__)[::-1])
        if ahead:
            own = f"{100 * means['wdae-gnn']:.2f}"
            out += [f"Novel accuracy, {n_shot}-shot: ahead of wdae-gnn ({own}) are {named}.", ""]
    return out


def benchmark_section(path: Path) -> list[str]:
    """One benchmark's rows, with where it was run."""
    record = json.loads(path.read_text())
    environment = record.get("environment", {})
    where = environment.get("gpu") or f"{environment.get('cpu')}, {environment.get('cores')} cores"
    out = [f"### {path.stem}", "", f"{where}; torch {environment.get('torch')}.", ""]
    picture = path.with_name(path.stem.removesuffix("-cpu") + ".png")
    if picture.exists():
        shutil.copyfile(picture, IMAGES / f"benchmark-{picture.name}")  # the site holds what is in docs/
        out += [f"![{picture.stem}](images/benchmark-{picture.name})", ""]
    for heading, rows in _tables(record):
        if len(rows) == 1 and len(rows[0]) > _WIDEST:
            rows = [{"": name, "figure": value} for name, value in rows[0].items()]
        head = list(rows[0])
        out += [f"{heading}:", ""] if heading not in ("rows", "") else []
        cells = [[_short(row.get(name)) for name in head] for row in rows]
        out += [*markdown_table([name.replace("_", " ") for name in head], cells, left=[]), ""]
    return out


_WIDEST = 12
"""Columns of a single row; more are written as lines."""


def _tables(record: dict[str, Any], heading: str = "") -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Figures, lists of rows, and groups of equal rows by name, wherever they stand in a record."""
    alone = {name: value for name, value in record.items() if isinstance(value, float)}
    if alone and not heading:
        yield heading, [alone]
    for name, value in record.items():
        title = f"{heading}, {name}" if heading else name.replace("_", " ")
        if isinstance(value, list) and value and isinstance(value[0], dict):
            yield title, value
        elif isinstance(value, dict) and name not in ("environment", "bank", "sizes"):
            parts = list(value.values())
            if parts and all(isinstance(part, dict) and list(part) == list(parts[0]) for part in parts):
                if any(isinstance(v, dict) for v in parts[0].values()):
                    for inner, part in value.items():
                        yield from _tables({inner: part}, title)
                else:
                    yield title, [{"": key, **part} for key, part in value.items()]
            elif not any(isinstance(part, dict) for part in parts):
                yield title, [value]
            else:
                yield from _tables(value, title)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def at_a_glance(records: list[dict[str, Any]]) -> list[str]:
    """The main rows of every reproduction on MiniImageNet, beside the paper's."""
    out = ["## At a glance", "", *GLANCE_WORDS.splitlines()]
    for heading, rows in (("Scores as they come", AS_THEY_COME), ("Scores balanced", BALANCED)):
        table = main_rows([(record, row) for record in records for row in rows], rows is BALANCED)
        out += ["", f"### {heading}", "", *table]
    out += ["", *rivals_ahead(records)]
    seeds = [read_json(path) for path in sorted((RESULTS / "seeds").glob("*.json"))]
    return [*out, "", *order_section([*records, *seeds])]


def rivals_ahead(records: list[dict[str, Any]]) -> list[str]:
    """Where LwoF, scored alike, has the higher mean: said in words, from the records."""
    found = []
    pairs = (("lwof", "wdae-gnn-paper"), ("lwof", "wdae-gnn-unbalanced"), ("lwof-balanced", "wdae-gnn"))
    for record in records:
        lines = {
            (line["row"], line["n_shot"]): line["metrics"]
            for table in record["tables"]
            for line in table["rows"]
            if table["role"] == "held-out"
        }
        for rival, own in pairs:
            for n_shot in (1, 5):
                a, b = lines.get((rival, n_shot), {}), lines.get((own, n_shot), {})
                for metric in ("novel", "all"):
                    if metric in a and metric in b and a[metric]["mean"] > b[metric]["mean"]:
                        figures = f"{100 * a[metric]['mean']:.2f} against {100 * b[metric]['mean']:.2f}"
                        found.append(
                            f"- {record['title']}, {metric}, {n_shot}-shot: {figures} ({LABELS[own]})"
                        )
    if not found:
        return []
    return ["LwoF is ahead of wDAE-GNN, both scored alike and on the same features, here:", "", *found]


def order_section(records: list[dict[str, Any]]) -> list[str]:
    """Whether the paper's order holds: gains at one shot, wherever they were measured."""
    steps = [("lwof", BASELINE), ("wdae-mlp", BASELINE), ("wdae-gnn", BASELINE)]
    steps += [("wdae-gnn", "lwof"), ("wdae-gnn", "wdae-mlp")]
    short = {BASELINE: "initial", "lwof": "LwoF", "wdae-mlp": "MLP", "wdae-gnn": "GNN"}
    head = ["features", "table", "accuracy", "scores", *(f"{short[a]} over {short[b]}" for a, b in steps)]
    rows = []
    for number, metric in ((2, "novel"), (3, "novel"), (3, "all")):
        known = REPORTED["mini-imagenet"][number]
        figures = {name: known[name][metric][1][0] for name in PAPER_ROWS if name in known}
        cells = [f"{figures[a] - figures[b]:+.2f}" if {a, b} <= figures.keys() else "" for a, b in steps]
        rows.append(["the paper's", str(number), metric, "as they come", *cells])
    papers = {"wdae-mlp": "wdae-mlp-paper", "wdae-gnn": "wdae-gnn-paper"}
    balanced = {BASELINE: "initial-estimate-balanced", "lwof": "lwof-balanced"}
    for record in records:
        for number in (2, 3):
            tables = [t for t in record["tables"] if t["number"] == number and t["role"] != "trainval"]
            forms = [("as they come", papers), ("balanced", balanced)] if number == 3 else [("", {})]
            for scores, names in forms:
                wanted = [(names.get(a, a), names.get(b, b)) for a, b in steps]
                for metric in ("novel", "all") if number == 3 else ("novel",):
                    found = [_gain(tables, a, b, metric) for a, b in wanted]
                    if any(found):
                        rows.append([record["title"], str(number), metric, scores, *found])
    out = ["### Does the paper's order hold?", ""]
    out += [
        "Gains at one shot, in points: paired where they have an interval, else differences of means over",
        "the same episodes. *Balanced*: both rows are. Novel accuracy of table 3 does not depend on a",
        "balance, but the ε of its rows may. Another seed trains denoisers anew on the same features and",
        "draws other episodes (`results/seeds`).",
        "",
    ]
    return [*out, *markdown_table(head, rows, left=head[:4]), ""]


def _gain(tables: list[dict[str, Any]], row: str, over: str, metric: str) -> str:
    """The paired gain of a row over another in some table that has it, or the difference of their means."""
    means = {}
    for table in tables:
        lines = {line["row"]: line for line in table["rows"] if line["n_shot"] == 1}
        has = {name: line for name, line in lines.items() if metric in line["metrics"]}
        means |= {name: line["metrics"][metric]["mean"] for name, line in has.items()}
        gain = None
        if table.get("reference", BASELINE) == over:
            gain = lines.get(row, {}).get("gains", {}).get(metric)
        for pair in table["pairs"]:
            if (pair["row"], pair["n_shot"]) == (row, 1) and pair["over"] == lines.get(over, {}).get("label"):
                gain = gain or pair["gains"].get(metric)
        if gain:
            return Estimate(**gain).percent(signed=True)
    return f"{100 * (means[row] - means[over]):+.2f}" if {row, over} <= means.keys() else ""


def main_rows(wanted: list[tuple[dict[str, Any], str]], balanced: bool = False) -> list[str]:
    """A table of some rows of some reproductions; the paper's first, where it scores as they do."""
    head = [
        "features",
        "row",
        "1-shot novel",
        "5-shot novel",
        "1-shot all",
        "5-shot all",
        "base, change at 1 shot",
    ]
    rows = []
    for name in () if balanced else PAPER_ROWS:
        paper = MINI_IMAGENET["lwof-attention" if name == "lwof" else name]
        figures = [kind.get(n_shot) for kind in (paper.accuracy, paper.all_classes) for n_shot in (1, 5)]
        rows.append(["the paper's", LABELS[name], *("" if f is None else f"{f:.2f}" for f in figures), ""])
    for record, row in wanted:
        found = {
            (table["role"], line["n_shot"]): line
            for table in record["tables"]
            for line in table["rows"]
            if line["row"] == row
        }
        cells = []
        first = "whole" if "whole" in record["banks"] else "held-out"
        for role, metric in ((first, "novel"), ("held-out", "all")):
            for n_shot in (1, 5):
                values = found.get((role, n_shot), {}).get("metrics", {})
                cells.append(Estimate(**values[metric]).percent() if metric in values else "")
        gain = found.get(("held-out", 1), {}).get("gains", {}).get("base")
        cells.append("" if gain is None else Estimate(**gain).percent(signed=True))
        if any(cells):
            title = record["title"] + (", split" if record.get("split_held_out") else "")
            label = LABELS[row]
            if found.get(("held-out", 1), {}).get("balanced") and "balanced" not in label:
                label += ", balanced"
            rows.append([title, label, *cells])
    return markdown_table(head, rows, left=head[:2])


def put_headlines(records: list[dict[str, Any]]) -> None:
    """Renew the main rows in the README, where all of them are among the records."""
    named = {record["name"]: record for record in records}
    if not all(name in named for name, _ in HEADLINES):
        return
    table = "\n".join(main_rows([(named[name], row) for name, rows in HEADLINES for row in rows]))
    _put(table, MARKS)


def put_demo(run: Path) -> Path:
    """Put what a run of the demo has printed into the README."""
    table = ResultTable.load(Run.open(run).path / "results")
    _put(f"```\n{shown(table.accuracies(), table.differences(BASELINE))}\n```", DEMO)
    return README


def _put(text: str, marks: tuple[str, str]) -> None:
    """Replace what stands between two marks of the README."""
    before, _, rest = README.read_text().partition(marks[0])
    _, found, after = rest.partition(marks[1])
    if not found:
        sys.exit(f"{README} lacks the marks {' and '.join(marks)}")
    write_text(README, f"{before}{marks[0]}\n{text}\n{marks[1]}{after}")


def write() -> Path:
    """Write the page."""
    out = [
        "# Results",
        "",
        "Generated by `scripts/make_results.py` from `results/` and `benchmarks/results/`; do not edit.",
        "Accuracies are means over episodes in percent, with 95 % intervals; gains are paired, episode by",
        "episode, over the initial estimate. Networks of stage 1 were trained once, and so were denoisers,",
        "save where a seed is named: intervals do not cover what another seed would change.",
        "",
    ]
    records = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    reproductions = [record for record in records if record.get("format") == REPRODUCTION]
    out += at_a_glance(
        [r for r in reproductions if next(iter(r["banks"].values()))["source"] == "mini-imagenet"]
    )
    put_headlines(reproductions)
    out += stage1_results.section(RESULTS / "stage1", IMAGES)
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text())
        beside = path.with_suffix(".md")
        notes = beside.read_text().strip() if beside.exists() else ""
        if record.get("format") == REPRODUCTION:
            out += reproduction_section(record, notes)
            continue
        first = record["rows"][0]
        out += [f"## {record['name']}", ""]
        out += [f"{first['n_way']}-way, {first['n_episodes']:,} episodes, seed {first['seed']}.", ""]
        out += [notes, ""] if notes else []
        out += [*accuracy_table(record), "", *ahead_in(record)]
    out += [
        "## Speed and size",
        "",
        "Each record is one run of its benchmark, on cores with nothing else to do. `evaluation-cpu` is the",
        "best of three timings within that run; the others are single timings. Runs of the two CPU records",
        "have differed by up to a quarter.",
        "",
    ]
    for path in sorted(BENCHMARKS.glob("*.json")):
        out += benchmark_section(path)
    write_text(PAGE, "\n".join(out).rstrip() + "\n")
    write_text(PAGE.with_name("tries.md"), "\n".join(tries()).rstrip() + "\n")
    return PAGE


def tries() -> list[str]:
    """The page of what was tried, from ``results/tries/NAME.json``, and ``NAME.md`` after its tables."""
    out = [
        "# What was tried",
        "",
        "Generated by `scripts/make_results.py` from `results/tries/`; do not edit. Accuracies are 5-way",
        "with 15 queries a class, 1 / 5 shots, in percent, unless said otherwise. All choices were made on",
        "validation classes. What was not kept is here so that nobody need try it again unawares. Figures",
        "were copied from what trainings printed: no record stands behind them, and no table of results",
        "takes one from here.",
        "",
    ]
    for path in sorted((RESULTS / "tries").glob("*.json")):
        for table in read_json(path):
            cells = [
                [row["what"], _pair(row["validation"]), _pair(row["novel"]), row["verdict"]]
                for row in table["rows"]
            ]
            head = [table["head"], "validation", "novel", "kept?"]
            out += [f"## {table['title']}", "", table["words"], ""]
            out += [*markdown_table(head, cells, left=[head[0], head[3]]), ""]
        beside = path.with_suffix(".md")
        out += [beside.read_text().strip(), ""] if beside.exists() else []
    return out


def _pair(figures: list[float] | None) -> str:
    return "" if figures is None else " / ".join(f"{figure:.2f}" for figure in figures)


def main(words: list[str]) -> None:
    if words[:1] in (["collect"], ["renew"]) and len(words) > 2:
        print(collect(RESULTS, words[1], [Path(word) for word in words[2:]], renew=words[0] == "renew"))
    elif words[:1] == ["adopt"] and len(words) in (2, 4):
        print(adopt(RESULTS, Path(words[1]), *words[2:]))
    elif words[:1] == ["extend"] and len(words) == 3:
        print(extend(RESULTS, words[1], Path(words[2])))
    elif words[:1] == ["demo"] and len(words) == 2:
        print(put_demo(Path(words[1])))
    elif words == ["write"]:
        print(write())
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
