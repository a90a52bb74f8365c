"""A comparison as a table: accuracies, paired differences, and what each method cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wdae.evaluation.paper import PaperFigure
from wdae.evaluation.results import Estimate, Result
from wdae.evaluation.table import ResultTable
from wdae.evaluation.text_table import RecordTable, TextTable
from wdae.storage.files import write_text

BEGIN, END = "<!-- wdae compare: begin -->", "<!-- wdae compare: end -->"
_METRICS = ("novel", "base", "all", "area")
_COLUMNS = (
    *("shots", "method", "novel", "difference", "base", "all", "difference", "area", "difference"),
    *("parameters", "training, s", "episodes/s"),
)


@dataclass(frozen=True)
class ComparisonTable(RecordTable):
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

    @property
    def _metrics(self) -> list[str]:
        """Those that comparisons have; what was measured before there was an area goes without."""
        return [m for m in _METRICS if m != "area" or "area" in self.table.metrics]

    def records(self) -> list[dict[str, Any]]:
        """One flat record for each method and number of shots, in fractions."""
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
            for metric in self._metrics:
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

    def text(self) -> TextTable:
        """The table for people, in percent and points."""
        gains = self._gains()
        head = [*_COLUMNS, *(["paper, novel (backbone)"] if self.paper is not None else [])]
        rows = [self._row(result, gains) for result in self.table]
        return TextTable(head, rows, caption=self.caption, sections="shots")

    def _row(self, result: Result, gains: Mapping[tuple[str, int, str], Estimate]) -> list[str]:
        def accuracy(metric: str) -> str:
            missing = "novel only" if metric == "all" else "–"
            return str(result.metrics.get(metric, missing))

        def difference(metric: str) -> str:
            gain = gains.get((result.method, result.n_shot, metric))
            return "–" if gain is None else gain.starred()

        info = result.info
        row = [str(result.n_shot), result.label, accuracy("novel"), difference("novel"), accuracy("base")]
        row += [accuracy("all"), difference("all"), accuracy("area"), difference("area")]
        row += [
            f"{info.get('parameters', 0):,}",
            f"{info['training_seconds']:.1f}" if "training_seconds" in info else "–",
            f"{info.get('episodes_per_second', 0):,.0f}",
        ]
        if self.paper is not None:
            figure = self.paper.get(result.method)
            known = figure.accuracy.get(result.n_shot) if figure is not None else None
            row.append("–" if figure is None or known is None else f"{known:.2f} ({figure.backbone})")
        return row

    def _gains(self) -> dict[tuple[str, int, str], Estimate]:
        return {
            (result.method, result.n_shot, metric): gain
            for metric in self._metrics
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

    def save(self, folder: Path) -> None:
        """``comparison.csv``, ``.json`` and ``.md`` in a folder."""
        self.write(folder, "comparison")

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
