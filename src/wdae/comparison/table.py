"""A comparison for people and machines: accuracies, paired differences, and what each method cost."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdae.evaluation.paper import PaperFigure
from wdae.evaluation.results import Estimate, Result
from wdae.evaluation.table import ResultTable
from wdae.printing import cell, csv_cell, markdown_cell, markdown_table
from wdae.storage.files import write_text

if TYPE_CHECKING:
    from rich.table import Table

BEGIN, END = "<!-- wdae compare: begin -->", "<!-- wdae compare: end -->"
_METRICS = ("novel", "base", "all")


@dataclass(frozen=True)
class ComparisonTable:
    """Results of several methods beside their differences to one of them, the reference.

    Args:
        table: the results, all on the same episodes for each number of shots.
        reference: the method that differences are taken to.
        paper: the paper's figures, where the data are the paper's.
        backbone: what the bank's features come from, to set against the paper's.
    """

    table: ResultTable
    reference: str
    paper: Mapping[str, PaperFigure] | None = None
    backbone: str | None = None

    def records(self) -> list[dict[str, Any]]:
        """One flat record a method and number of shots; accuracies and differences in fractions."""
        gains = self._gains()
        records = []
        for result in self.table:
            record: dict[str, Any] = {
                "method": result.method,
                "transductive": bool(result.info.get("transductive")),
                "classes": "novel and base" if "all" in result.metrics else "novel only",
                "n_way": result.n_way,
                "n_shot": result.n_shot,
                "n_episodes": result.n_episodes,
            }
            for metric in _METRICS:
                gain = gains.get((result.method, result.n_shot, metric))
                for name, estimate in ((metric, result.metrics.get(metric)), (f"{metric}_difference", gain)):
                    record[name] = None if estimate is None else estimate.mean
                    record[f"{name}_ci95"] = None if estimate is None else estimate.ci95
            for key in ("parameters", "training_seconds", "start_kept", "episodes_per_second"):
                record[key] = result.info.get(key)
            if self.paper is not None:
                figure = self.paper.get(result.method)
                record["paper_novel"] = figure and figure.accuracy.get(result.n_shot)
                record["paper_backbone"] = figure and figure.backbone
            records.append(record)
        return records

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Heading and rows for people, in percent and points."""
        gains = self._gains()
        head = ["shots", "method", "novel", "difference", "base", "all", "difference", "parameters"]
        head += ["training, s", "episodes/s"]
        head += ["paper, novel (backbone)"] if self.paper is not None else []
        return head, [self._row(result, gains) for result in self.table]

    def _row(self, result: Result, gains: Mapping[tuple[str, int, str], Estimate]) -> list[str]:
        def accuracy(metric: str) -> str:
            missing = "novel only" if metric == "all" else "–"
            return str(result.metrics[metric]) if metric in result.metrics else missing

        def difference(metric: str) -> str:
            gain = gains.get((result.method, result.n_shot, metric))
            return "–" if gain is None else gain.percent(signed=True) + ("*" if gain.excludes_zero else "")

        info = result.info
        row = [str(result.n_shot), result.label, accuracy("novel"), difference("novel"), accuracy("base")]
        row += [accuracy("all"), difference("all"), f"{info.get('parameters', 0):,}"]
        kept = " †" if info.get("start_kept") else ""
        row += [f"{info.get('training_seconds', 0):.1f}{kept}", f"{info.get('episodes_per_second', 0):,.0f}"]
        if self.paper is not None:
            figure = self.paper.get(result.method)
            known = figure.accuracy.get(result.n_shot) if figure is not None else None
            row.append("–" if figure is None or known is None else f"{known:.2f} ({figure.backbone})")
        return row

    def _gains(self) -> dict[tuple[str, int, str], Estimate]:
        return {
            (result.method, result.n_shot, metric): gain
            for metric in _METRICS
            for result, gain in self.table.gains(self.reference, metric)
        }

    @property
    def caption(self) -> str:
        """What the figures mean."""
        first = next(iter(self.table))
        text = (
            f"Accuracy in %, mean ± 95 % interval over {first.n_episodes:,} {first.n_way}-way episodes, the "
            f"same for all methods; differences to {self.reference} are paired, * where the interval leaves "
            "zero out."
        )
        if any(result.info.get("start_kept") for result in self.table):
            text += " † measured as it started: on validation classes training gained nothing beyond chance."
        if self.paper is not None:
            text += f" Features here: {self.backbone or 'backbone not named'}; the paper's backbones differ."
        return text

    def rich(self) -> Table:
        """The table for a terminal."""
        from rich.table import Table

        head, body = self.cells()
        view = Table(caption=cell(self.caption))
        for name in head:
            view.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
        for before, row in zip([None, *body], body, strict=False):
            if before is not None and before[0] != row[0]:
                view.add_section()
            view.add_row(*map(cell, row))
        return view

    def markdown(self) -> str:
        """The table for a document."""
        head, body = self.cells()
        lines = markdown_table(head, body, left=["method"])
        return "\n".join([*lines, "", markdown_cell(self.caption), ""])

    def csv(self) -> str:
        """One line a record."""
        records = self.records()
        out = io.StringIO()
        writer = csv.DictWriter(out, fieldnames=list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: csv_cell(value) for key, value in record.items()} for record in records)
        return out.getvalue()

    def json(self) -> str:
        """A list of the records."""
        return json.dumps(self.records(), indent=2)

    def save(self, folder: Path) -> None:
        """``comparison.csv``, ``.json`` and ``.md`` in a folder."""
        for suffix, text in (("csv", self.csv()), ("json", self.json() + "\n"), ("md", self.markdown())):
            write_text(folder / f"comparison.{suffix}", text)

    def into(self, document: Path) -> None:
        """Put the table into a Markdown document, in place of the one that an earlier call put there."""
        text = document.read_text(encoding="utf-8") if document.exists() else ""
        block = f"{BEGIN}\n{self.markdown()}{END}"
        if BEGIN in text and END in text:
            before, rest = text.split(BEGIN, 1)
            text = before + block + rest.split(END, 1)[1]
        else:
            text = (text.rstrip() + "\n\n" if text.strip() else "") + f"## All methods\n\n{block}\n"
        write_text(document, text)
