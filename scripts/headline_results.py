"""The main rows of reproductions on MiniImageNet, beside the paper's: the table, and what it says in words.

``make_results.py write`` puts the table into the README, and all of this at the head of ``docs/results.md``.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from result_records import BASELINE

from wdae.evaluation.paper import REPORTED
from wdae.evaluation.results import Estimate
from wdae.printing import markdown_table
from wdae.reproduce.benchmarks import MINI_IMAGENET
from wdae.reproduce.seeds import seeds_table, spread

Json = dict[str, Any]
Lines = dict[tuple[str, int], Json]
LABELS = {row.name: row.label for row in MINI_IMAGENET.rows}
LABELS["wdae-gnn-plus-any-shots"] = "wDAE-GNN+ (ours), for any number of shots"
PAPER_ROWS = (BASELINE, "lwof", "wdae-mlp", "wdae-gnn")
HEADLINE = "from-pictures"
"""The record whose rows stand in the README."""
RAW = (BASELINE, "lwof", "wdae-mlp-paper", "wdae-gnn-paper")
BALANCED = ("initial-estimate-balanced", "lwof-balanced", "wdae-mlp", "wdae-gnn", "wdae-gnn-plus")
STEPS = (("lwof", BASELINE), ("wdae-mlp", BASELINE), ("wdae-gnn", BASELINE))
STEPS += (("wdae-gnn", "lwof"), ("wdae-gnn", "wdae-mlp"))
SHORT = {BASELINE: "initial", "lwof": "LwoF", "wdae-mlp": "MLP", "wdae-gnn": "GNN"}
_AS_PUBLISHED = {"wdae-mlp": "wdae-mlp-paper", "wdae-gnn": "wdae-gnn-paper"}
FORMS: tuple[tuple[str, str, int, dict[str, str]], ...] = (
    ("novel", "raw", 2, _AS_PUBLISHED),
    ("all", "raw", 3, _AS_PUBLISHED),
    ("all", "balanced", 3, {BASELINE: "initial-estimate-balanced", "lwof": "lwof-balanced"}),
)
"""Accuracy, how novel scores stand to base scores, the paper's table, and the rows that are meant there."""
GLANCE_WORDS = """\
- *Novel*: 5-way on the 20 novel classes; the paper's table 2.
- *All*: 75 queries of the novel classes and 75 of the base classes an episode, each among all 69 classes; the
  paper's table 3.
- *Base*: how the accuracy of the base queries among the 64 base classes changes when novel classes are added.
- *ε of the paper*: exactly its setting, ε = 1.0 at one shot and 0.5 at five, with raw scores.
- *Balanced*: novel scores times a slope plus an offset, which is ours. Both were found on validation classes
  and one half of the held-out base pictures; the other half are the base queries. *All* depends on them, and
  *area* on the slope: compare balanced rows with balanced ones, and raw ones with raw ones.
- Rows of the paper are on its features, rows of ours on ours: compare gains over the initial estimate.
- Rows of ours are of one seed of stage 2, 0. Lines and tables below say what other seeds give.
"""
TWO_NETWORKS = """\
- *Network of table 2*, *of table 3*: two were trained. The first learned from all pictures of the base
  classes, so that it has no base queries; the second learned without the held-out ones.
"""
SEEDED: tuple[tuple[str, str, str, int, str], ...] = (
    ("wDAE-GNN, ε of the paper, over the initial estimate", RAW[3], RAW[0], 2, "novel"),
    ("wDAE-GNN over the initial estimate, both balanced", BALANCED[3], BALANCED[0], 3, "novel all"),
    ("wDAE-GNN+ over wDAE-GNN, both balanced", BALANCED[4], BALANCED[3], 3, "novel all"),
)
"""Gains whose spread over seeds is said: words, row, over which, the paper's table, accuracies."""


def at_a_glance(
    records: Sequence[Json],
    seeds: Sequence[Json],
    trainings: Sequence[Json] = (),
    repeats: Sequence[Json] = (),
) -> list[str]:
    """The main rows, what they say, whether the paper's order holds, other seeds and other trainings."""
    out = ["## At a glance", "", *headline_table(records), "", *GLANCE_WORDS.splitlines()]
    out += TWO_NETWORKS.splitlines() if any(_network(record, 2) for record in records) else []
    out.append("")
    for record in records:
        said = findings(record, seeds, trainings, repeats)
        out += [*([f"{record['title']}:", ""] if len(records) > 1 else []), *said, ""]
    out += order_section(records, seeds)
    for record in records:
        out += over_seeds(record, seeds)
        out += over_trainings(record, trainings)
    return out


def headline_table(records: Sequence[Json]) -> list[str]:
    """The paper's main rows, then ours, as they come and balanced."""
    head = ["whose", "row", "1-shot novel", "5-shot novel", "1-shot all", "5-shot all", "base, at 1 shot"]
    rows = [["paper", LABELS[name], *_paper_cells(name), ""] for name in PAPER_ROWS]
    for record in records:
        whose = "ours" if len(records) == 1 else record["title"]
        for role, number in (("whole", 2), ("held-out", 3)):
            lines = _lines(record, role)
            for name in (*RAW, *BALANCED):
                cells = [_percent(lines.get((name, k)), m) for m in ("novel", "all") for k in (1, 5)]
                gain = lines.get((name, 1), {}).get("gains", {}).get("base")
                cells.append("" if gain is None else Estimate.from_dict(gain).percent(signed=True))
                if any(cells):
                    label = _label(name) if role == "held-out" else LABELS[name]  # no balance without them
                    rows.append([whose + _network(record, number), label, *cells])
    return markdown_table(head, rows, left=head[:2])


def _network(record: Mapping[str, Any], number: int) -> str:
    """Which of a record's two networks a figure is of, where table 2 and table 3 have one each."""
    roles = {table["role"] for table in record["tables"]}
    return f", network of table {number}" if {"whole", "held-out"} <= roles else ""


def _paper_cells(name: str) -> list[str]:
    tables = REPORTED["mini-imagenet"]
    found = [tables[n].get(name, {}).get(metric, {}) for n, metric in ((2, "novel"), (3, "all"))]
    figures = [figure.get(n_shot) for figure in found for n_shot in (1, 5)]
    return ["" if figure is None else f"{figure[0]:.2f} ± {figure[1]:.2f}" for figure in figures]


def _label(name: str) -> str:
    label = LABELS[name]
    return label if name in RAW or "balanced" in label else f"{label}, balanced"


def _lines(record: Mapping[str, Any], role: str) -> Lines:
    """The lines of tables on features of a role, by row and shots; the table of most metrics wins."""
    found: Lines = {}
    for table in sorted(record["tables"], key=lambda table: len(table["metrics"])):
        if table["role"] == role:
            found |= {(line["row"], line["n_shot"]): line for line in table["rows"]}
    return found


def _percent(line: Json | None, metric: str) -> str:
    value = None if line is None else line["metrics"].get(metric)
    return "" if value is None else Estimate.from_dict(value).percent()


def findings(
    record: Json,
    seeds: Sequence[Json],
    trainings: Sequence[Json] = (),
    repeats: Sequence[Json] = (),
    folder: str = "",
) -> list[str]:
    """What the rows of a record say: gains over seeds and trainings, the denoiser's share, LwoF.

    ``folder`` is that of the documents, seen from the page.
    """
    lines = _lines(record, "held-out")
    own = list(of_record(record, seeds).values())
    again = (*_again(record, trainings), *_repeated(record, repeats))
    words = (*_gains(own), *again, *_curve(lines), *_shares(lines), *_lwof(own, folder))
    return [f"- {text}" for text in words if text]


def _gains(own: Sequence[Mapping[str, Any]]) -> list[str]:
    """The gains that a reader looks for first, over seeds, and the paper's where it has them."""
    known = REPORTED["mini-imagenet"][2]
    spread = f", mean ± standard deviation over {len(own)} seeds of stage 2" if len(own) > 1 else ""
    out = []
    for words, row, over, number, metrics in SEEDED:
        found = []
        for metric in metrics.split():
            for k in (1, 5):
                gains = [_gain(one, number, row, over, metric, k) for one in own]
                there = [gain for gain in gains if gain is not None]
                text = _over_seeds(there)
                if row == RAW[3] and text:
                    paper = known["wdae-gnn"][metric][k][0] - known[BASELINE][metric][k][0]
                    text += f" (paper: {paper:+.2f})"
                found += [(metric, k, text)] if text else []
        out += [f"{words}{_network(own[0], number)}, in points{spread}: {_listed(found)}."] if found else []
    return out


def _again(record: Json, trainings: Sequence[Json]) -> list[str]:
    """The initial estimate and the gain over it in other trainings of the network."""
    out = []
    for one in _trained_again(record, trainings)[1:]:
        lines = _lines(one, "held-out")
        start = " / ".join(f"{_mean(lines, BASELINE, 'novel', k):.2f}" for k in (1, 5))
        gains = [_gain(one, 2, RAW[3], RAW[0], "novel", k) for k in (1, 5)]
        said = " / ".join(gain.percent(signed=True) for gain in gains if gain)
        out.append(
            f"Stage 1 trained again, with seed {one['seed']}: novel accuracy of the initial estimate {start}"
            f" (1 / 5 shots), gain of wDAE-GNN, ε of the paper, {said}; in area {_area_gain(lines)}."
        )
    return out


def _repeated(record: Json, repeats: Sequence[Json]) -> list[str]:
    """Main rows that were measured again elsewhere, on features extracted anew from the same weights."""
    out = []
    for one in repeats:
        if not Path(one["name"]).name.startswith(f"{record['name']}-repeat-"):
            continue
        lines, where = _lines(one, "held-out"), one["environment"]
        said = [
            f"{LABELS[name]} " + " / ".join(f"{_mean(lines, name, 'novel', k):.2f}" for k in (1, 5))
            for name in (RAW[0], RAW[3], BALANCED[3])
            if (name, 1) in lines
        ]
        out.append(
            "Stage 2 repeated in float32 on features extracted anew from the same weights"
            f" ({where.get('gpu') or where.get('cpu')}), novel accuracy, 1 / 5 shots: {'; '.join(said)}."
        )
    return out


def _trained_again(record: Json, trainings: Sequence[Json]) -> list[Json]:
    """A record and those of other trainings of its network."""
    own = f"{record['name']}-training-"
    return [record, *(one for one in trainings if Path(one["name"]).name.startswith(own))]


def _curve(lines: Lines) -> list[str]:
    """The area, which no offset changes, of wDAE-GNN as the paper has it."""
    text = _area_gain(lines)
    return [
        "Area under the curve of base against novel accuracy, which no offset of novel scores"
        f" changes: wDAE-GNN, ε of the paper, over the initial estimate, in points, seed 0: {text}."
        if text
        else ""
    ]


def _area_gain(lines: Lines) -> str:
    found = [(k, _difference(lines, RAW[3], RAW[0], "area", k)) for k in (1, 5)]
    return ", ".join(f"{k}-shot {gain:+.2f}" for k, gain in found if gain is not None)


def _shares(lines: Lines) -> list[str]:
    """What the denoiser adds to wDAE-GNN+, and its edges to it, from the rows without them."""

    def gains(ablation: str) -> str:
        own, without = "wdae-gnn-plus", f"wdae-gnn-plus{ablation}"
        found = [(m, k, _difference(lines, own, without, m, k)) for m in ("novel", "all") for k in (1, 5)]
        return _listed([(m, k, f"{gain:+.2f}") for m, k, gain in found if gain is not None])

    whole, edges = gains("-no-denoiser"), gains("-no-neighbours")
    return [
        f"What the denoiser brings to wDAE-GNN+, in points over the same without it, seed 0: {whole}. The"
        " rest of its gain is space, base weights and balance."
        if whole
        else "",
        f"What the graph brings to that, over each class denoised alone: {edges}." if edges else "",
    ]


def _lwof(own_seeds: Sequence[Mapping[str, Any]], folder: str) -> list[str]:
    """Where LwoF, scored alike, has the higher mean, and how far it has moved from its start in any seed."""
    each = [_lines(record, "held-out") for record in own_seeds]
    lines = each[0]
    forms = (("raw scores", "lwof", "wdae-gnn-paper"), ("balanced", "lwof-balanced", "wdae-gnn"))
    out = []
    for form, rival, own in forms:
        ahead = [
            (m, k, f"{_mean(lines, rival, m, k):.2f} against {_mean(lines, own, m, k):.2f}")
            for m in ("novel", "all")
            for k in (1, 5)
            if (_difference(lines, rival, own, m, k) or 0) > 0
        ]
        out.append(f"LwoF is ahead of wDAE-GNN, {form}: {_listed(ahead)}." if ahead else "")
    places = [(m, k) for m in ("novel", "all") for k in (1, 5)]
    moved = [_difference(one, "lwof", BASELINE, m, k) for one in each for m, k in places]
    if all(one is not None for one in moved):
        most = max(abs(one) for one in moved if one is not None)
        out.append(
            "LwoF starts here at the initial estimate and learns for a short time"
            f" ([Notation]({folder}notation.md)). It has moved by {most:.2f} points at most"
            f"{' in any seed' * (len(each) > 1)}: its row says little of the system as published."
        )
    return out


def _listed(found: Sequence[tuple[str, int, str]]) -> str:
    """``novel 1-shot ..., 5-shot ...; all 1-shot ...``."""
    parts = {metric: [f"{k}-shot {text}" for m, k, text in found if m == metric] for metric, _, _ in found}
    return "; ".join(f"{metric} {', '.join(texts)}" for metric, texts in parts.items())


def _mean(lines: Lines, name: str, metric: str, n_shot: int) -> float:
    return 100 * float(lines[name, n_shot]["metrics"][metric]["mean"])


def _difference(lines: Lines, one: str, other: str, metric: str, n_shot: int) -> float | None:
    """Of two means, in points, where both were measured."""
    if all(metric in lines.get((name, n_shot), {}).get("metrics", {}) for name in (one, other)):
        return _mean(lines, one, metric, n_shot) - _mean(lines, other, metric, n_shot)
    return None


def of_record(record: Mapping[str, Any], seeds: Sequence[Json]) -> dict[int, Mapping[str, Any]]:
    """A record and its other seeds of stage 2, by seed."""
    own = f"{record['name']}-seed-"
    more = [one for one in seeds if Path(one["name"]).name.startswith(own)]
    return {one["seed"]: one for one in (record, *more)}


def over_seeds(record: Mapping[str, Any], seeds: Sequence[Json]) -> list[str]:
    """Mean and spread over seeds of stage 2, of the rows of table 3 that every seed has."""
    found = of_record(record, seeds)
    if len(found) == 1:
        return []
    rows = [
        {(t["title"], line["row"]) for t in one["tables"] for line in t["rows"] if t["number"] == 3}
        for one in found.values()
    ]
    common = set.intersection(*rows)
    kept = [row for row in spread(found) if row["table"] == 3 and (row["title"], row["row"]) in common]
    return [f"### {record['title']}, over seeds", "", seeds_table(kept, list(found)).markdown(), ""]


def over_trainings(record: Json, trainings: Sequence[Json]) -> list[str]:
    """The main rows of a record and of other trainings of its network, and gains within each."""
    found = _trained_again(record, trainings)
    if len(found) == 1:
        return []
    lines = [_lines(one, "held-out") for one in found]
    places = [(metric, k) for metric in ("novel", "all", "area") for k in (1, 5)]
    rows = [
        [_label(name), *(_beside(lines, name, metric, k) for metric, k in places)]
        for name in (*RAW, *BALANCED)
        if all((name, 1) in one for one in lines)
    ]
    out = [f"### {record['title']}, over trainings of stage 1", ""]
    head = ["row", *(f"{metric}, {k}-shot" for metric, k in places)]
    out += markdown_table(head, rows, left=head[:1])
    seeds = ", ".join(str(one["seed"]) for one in found)
    out += ["", f"Accuracy in %, one figure for each training of the network, of seeds {seeds}. Test"]
    out[-1] += " episodes and held-out base pictures are the same."
    gains = [(words, row, over, number) for words, row, over, number, _ in SEEDED]
    gains.append(("wDAE-GNN over wDAE-MLP", "wdae-gnn", "wdae-mlp", 2))
    out.append("")
    for words, row, over, number in gains:
        said = []
        for k in (1, 5):
            each = [_gain(one, number, row, over, "novel", k) for one in found]
            if all(each):
                said.append(f"{k}-shot " + ", ".join(one.percent(signed=True) for one in each if one))
        out += [f"- {words}, novel, in points: {'; '.join(said)}."] if said else []
    return [*out, ""]


def _beside(lines: Sequence[Lines], name: str, metric: str, n_shot: int) -> str:
    """The means of a row in several records, beside each other."""
    figures = [one.get((name, n_shot), {}).get("metrics", {}).get(metric) for one in lines]
    return " / ".join("" if one is None else f"{100 * one['mean']:.2f}" for one in figures)


def order_section(records: Sequence[Json], seeds: Sequence[Json]) -> list[str]:
    """Whether the paper's order holds: gains at one shot beside the paper's, over seeds if there are some."""
    head = ["accuracy", "scores", "whose", *(f"{SHORT[a]} over {SHORT[b]}" for a, b in STEPS)]
    rows, intervals = [], []
    n_seeds = max((len(of_record(record, seeds)) for record in records), default=1)
    words: dict[str, list[str]] = {record["title"]: [] for record in records}
    for metric, scores, number, names in FORMS:
        known = REPORTED["mini-imagenet"][number]
        means = {name: known[name][metric][1][0] for name in PAPER_ROWS if name in known}
        if scores != "balanced":
            cells = [f"{means[a] - means[b]:+.2f}" if {a, b} <= means.keys() else "" for a, b in STEPS]
            rows.append([metric, scores, "paper", *cells])
        for record in records:
            own = of_record(record, seeds)
            whose = "ours" if len(records) == 1 else record["title"]
            whose += _network(record, number) + (", one seed" if len(own) == 1 < n_seeds else "")
            found = [
                [_gain(one, number, names.get(a, a), names.get(b, b), metric) for one in own.values()]
                for a, b in STEPS
            ]
            whole = [[one for one in gains if one is not None] for gains in found]
            if not any(whole):
                continue
            rows.append([metric, scores, whose, *map(_over_seeds, whole)])
            intervals += [one.ci95 for gains in whole for one in gains if one.ci95 == one.ci95]
            form = f"{metric.capitalize()}, {scores}"
            said = form if len(records) == 1 else f"{whose}: {form.lower()}"
            words[record["title"]].append(_verdicts(said, whole, means))
    out = ["### Does the paper's order hold?", "", "Gains at one shot, in points, paired episode by episode."]
    if n_seeds > 1:
        out[-1] += f" Ours: mean ± standard deviation over {n_seeds} seeds of stage 2."
        out[-1] += " Rows of *one seed* have 95 % intervals over episodes instead."
        if intervals:
            out[-1] += f" The 95 % interval within a seed is {100 * max(intervals):.2f} at most."
    out += ["", *markdown_table(head, rows, left=head[:3]), ""]
    out += [
        "*Raw*: denoisers with the ε of the paper. The paper has no balance: balanced rows are held against"
        " its raw ones. *Holds*: the sign is the paper's"
        + (", in every seed," if n_seeds > 1 else "")
        + " and the interval excludes zero, however small the gain is; *reversed*: the same with the other"
        " sign; *level*: neither.",
        "",
    ]
    return [*out, *itertools.chain(*words.values()), ""]


def _over_seeds(gains: Sequence[Estimate]) -> str:
    if len(gains) < 2:
        return gains[0].percent(signed=True) if gains else ""
    means = [100 * one.mean for one in gains]
    return f"{statistics.fmean(means):+.2f} ± {statistics.stdev(means):.2f}"


def _verdicts(form: str, found: Sequence[Sequence[Estimate]], paper: Mapping[str, float]) -> str:
    """Which steps of the paper's order hold in every seed, which are the other way round, which are neither.

    Only steps of which the paper has both figures.
    """
    kinds: dict[str, list[str]] = {"holds": [], "reversed": [], "level": []}
    for (a, b), gains in zip(STEPS, found, strict=True):
        if gains and {a, b} <= paper.keys():
            sure = all(one.excludes_zero for one in gains)
            up, down = (all(sign * one.mean > 0 for one in gains) for sign in (1, -1))
            kind = "holds" if sure and up else "reversed" if sure and down else "level"
            kinds[kind].append(f"{SHORT[a]} over {SHORT[b]}")
    parts = [f"{kind} for {', '.join(those)}" for kind, those in kinds.items() if those]
    return f"- {form}: {'; '.join(parts)}."


def _gain(
    record: Mapping[str, Any], number: int, row: str, over: str, metric: str, n_shot: int = 1
) -> Estimate | None:
    """The paired gain of a row over another in a table of that number, or the difference of their means."""
    means: dict[str, float] = {}
    gain = None
    for table in record["tables"]:
        if table["number"] != number or table["role"] == "trainval":
            continue
        lines = {line["row"]: line for line in table["rows"] if line["n_shot"] == n_shot}
        has = {name: line for name, line in lines.items() if metric in line["metrics"]}
        means |= {name: line["metrics"][metric]["mean"] for name, line in has.items()}
        if table.get("reference", BASELINE) == over:
            gain = gain or lines.get(row, {}).get("gains", {}).get(metric)
        for pair in table["pairs"]:
            same = (pair["row"], pair["n_shot"]) == (row, n_shot)
            if same and pair["over"] == lines.get(over, {}).get("label"):
                gain = gain or pair["gains"].get(metric)
    if gain:
        return Estimate.from_dict(gain)
    return Estimate(means[row] - means[over], float("nan"), 0) if {row, over} <= means.keys() else None
