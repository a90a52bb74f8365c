"""What a model made of a class: whom it listens to, how far it moved, what it may be confused with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from wdae.classifier.model import Model, same_pictures
from wdae.classifier.names import shorten, unknown_classes
from wdae.classifier.self_test import MORE, Expected, SelfTest, coinciding, expected, self_test
from wdae.nn.cosine import unit
from wdae.printing import counted, printable

OUT_OF_PLACE = 0.65
"""In models without a detector, an example that agrees with the others less than this share of what is usual
among them is out of place (chosen on validation classes: scripts/choose_thresholds.py)."""

_NEIGHBOURS, _TEMPERATURE = 10, 5.0
_EXAMPLES, _CONFUSIONS = 8, 3  # drawn, and shown
_AT_ONCE = 2**23  # pairs of examples that are compared together


@dataclass(frozen=True)
class Neighbour:
    """Another class: its cosine with this one and, in the class graph, the strength of the edge to it."""

    name: str
    similarity: float
    strength: float


@dataclass(frozen=True)
class Confusable:
    """Another class, and the probability it gets at the centre of this one."""

    name: str
    similarity: float
    probability: float


@dataclass(frozen=True)
class ExampleView:
    """An example, and its cosine with the mean of the others (None where it is the only one)."""

    source: str
    agreement: float | None
    out_of_place: bool


@dataclass(frozen=True)
class Explanation:
    """Everything ``wdae explain`` shows of a class.

    Attributes:
        step: ε of its number of shots; None for a base class, and without a denoiser.
        moved: degrees between its initial estimate and its weight; None likewise.
        own_probability: what the class itself gets at its centre.
        trial: pictures of it that it has not learned from, and what they are taken for.
        expected: accuracy to expect of an added class, now and with more examples, where it is known.
        seen: whether a base class has learned from those pictures since: they then say too much good of it.
        listens: whether classes exchange messages with their neighbours: the model has a graph network.
    """

    name: str
    is_base: bool
    shots: int
    step: float | None
    moved: float | None
    own_probability: float
    neighbours: tuple[Neighbour, ...]
    confusable: tuple[Confusable, ...]
    examples: tuple[ExampleView, ...]
    warnings: tuple[str, ...]
    trial: SelfTest
    expected: Expected | None = None
    listens: bool = True
    seen: bool = False

    @property
    def neighbours_title(self) -> str:
        """What its neighbours are to it."""
        return "listens to (class graph)" if self.listens else "nearest classes"

    @property
    def tried_on(self) -> str:
        """How many of its pictures are recognised, and which were tried."""
        right, n = self.trial.right, self.trial.n
        if self.is_base:
            return (
                f"{right} of {n} {'pictures that it has learned from' if self.seen else 'held-out pictures'}"
            )
        some = f"its {self.shots} " if n < self.shots else ""
        return f"{right} of {n}{' of ' if some else ' '}{some}examples, each left out in turn,"

    def as_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    def as_text(self) -> str:
        """For people."""
        kind = "base class" if self.is_base else "added class"
        lines = [f"{shorten(self.name)}: {kind}, {counted(self.shots, 'example')} given"]
        if self.moved is not None and self.step is not None:
            lines.append(f"refinement moved its weight by {self.moved:.1f}° (step {self.step:.2f})")
        lines.append(f"\n{self.neighbours_title}:")
        for n in self.neighbours:
            strength = f"{n.strength:6.1%}  " if self.listens else ""
            lines.append(f"  {strength}{shorten(n.name)}  (cosine {n.similarity:.2f})")
        lines += ["", *self._tried()]
        near = [c for c in self.confusable if c.probability >= 0.0005]  # others would be shown as 0.0 %
        rest = "the next classes there:" if near else "no other class gets 0.1%"
        lines.append(f"\nat its centre it gets {self.own_probability:.1%}; {rest}")
        lines += [f"  {c.probability:6.1%}  {shorten(c.name)}  (cosine {c.similarity:.2f})" for c in near]
        if self.examples:
            lines.append("\nits examples, by agreement with each other:")
            for i, e in enumerate(self.examples):
                note = "" if e.agreement is None else f"  agreement {e.agreement:.2f}"
                note += "  OUT OF PLACE" if e.out_of_place else ""
                lines.append(f"  {i}: {printable(e.source) or 'vector'}{note}")
        lines += [f"\nwarning: {printable(line)}" for line in self.warnings]
        return "\n".join(lines)

    def _tried(self) -> list[str]:
        lines = [f"tried out: {self.tried_on} are recognised"]
        if not self.trial.n:
            takes = "held-out pictures of it" if self.is_base else "two examples"
            lines = [f"not tried out: that takes {takes}"]
        for one in self.trial.confusions[:_CONFUSIONS]:
            line = f"  {one.share:6.1%} of {self.trial.mistaken(one)}"
            lines.append(f"{line}: {shorten(one.name)}" if self.trial.n and not one.alone else line)
        if self.expected is not None:
            lines.append(
                f"is it enough? about {self.expected.now:.0%} of its pictures will be recognised; with {MORE}"
                f" examples more, about {self.expected.more:.0%}"
            )
        return lines


@torch.no_grad()
def explain(model: Model, name: str, top: int = 5) -> Explanation:
    """Explain one class of a model.

    >>> from wdae.classifier import BaseKnowledge
    >>> from wdae.methods import InitialEstimate
    >>> base = BaseKnowledge(("cat", "dog"), torch.eye(2, 4), torch.tensor([10, 10]), InitialEstimate())
    >>> model = Model(base)
    >>> model.add({"okapi": torch.tensor([[0.6, 0.0, 0.8, 0.0]])})
    >>> found = explain(model, "okapi")
    >>> found.shots, found.neighbours[0].name, found.confusable[0].name
    (1, 'cat', 'cat')
    """
    name = model.called(name)
    if name not in model.names:
        raise unknown_classes([name], model.names, "class")
    head = model.head
    place, is_base = model.names.index(name), name in set(model.base.names)
    initial = head.initial  # [C, D]
    similar = initial @ initial[place]
    similar[place] = -2.0
    method = model.base.denoiser
    n_near = min(_NEIGHBOURS if method is None else method.n_neighbours, len(similar) - 1)
    near = similar.topk(n_near)
    heat = _TEMPERATURE if method is None else method.inverse_temperature
    strengths = (heat * near.values).softmax(0)
    neighbours = tuple(
        Neighbour(model.names[c], s, a)
        for c, s, a in zip(near.indices.tolist(), near.values.tolist(), strengths.tolist(), strict=True)
    )
    chances = head.linear(initial[place][None]).double().softmax(1)[0]
    own = float(chances[place])
    chances[place] = -1.0
    best = chances.topk(min(top, len(chances) - 1))
    cosines = head.weights @ head.weights[place]
    confusable = tuple(
        Confusable(model.names[c], float(cosines[c]), p)
        for c, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )
    step = moved = None
    if not is_base and method is not None:
        step = float(head.steps[place - head.n_base])
        cosine = float((initial[place] * head.weights[place]).sum().clamp(-1, 1))
        moved = float(torch.rad2deg(torch.acos(torch.tensor(cosine))))
    examples = _examples(model, name)
    tried = self_test(model, name)
    warnings = tuple(_warnings(name, tried, examples))
    return Explanation(
        name,
        is_base,
        model.shots(name),
        step,
        moved,
        own,
        neighbours,
        confusable,
        examples,
        warnings,
        tried,
        expected(model, name, tried),
        listens=method is not None and method.denoiser.kind == "gnn",
        seen=is_base and model.base.has_seen_held_out(head),
    )


@torch.no_grad()
def warnings_about(model: Model, name: str, *, try_out: bool = True) -> list[str]:
    """What a person who added a class should look at.

    Args:
        try_out: look for classes that it coincides with, which takes some time a class.
    """
    tried = self_test(model, name) if try_out else SelfTest(0, 0, ())
    return _warnings(name, tried, _examples(model, name))


def used_twice(model: Model, new: Collection[int], most: int = 5) -> list[str]:
    """Pictures that are examples of two classes: a sentence each.

    Args:
        new: the numbers of the examples that are looked for among all.
        most: of more, the last sentence says how many there are.
    """
    if not new:
        return []
    wanted, names = set(new), list(model.state)
    rows = [(number, row) for number, name in enumerate(names) for row in model.state[name]]
    numbers = torch.tensor([number for number, _ in rows])
    features = torch.stack([model.examples[row].feature for _, row in rows]).double()
    own = torch.tensor([i for i, (_, row) in enumerate(rows) if row in wanted])
    found: dict[frozenset[int], str] = {}
    for some in own.split(max(1, _AT_ONCE // len(rows))):
        same = same_pictures(features[some], features) & (numbers[some, None] != numbers)
        for i in same.any(1).nonzero()[:, 0].tolist():
            (one, row), (other, twin) = rows[some[i]], rows[int(same[i].to(torch.uint8).argmax())]
            what = model.examples[row].source or "a vector"
            line = f"{what} is an example of {shorten(names[one])!r} and of {shorten(names[other])!r}"
            found.setdefault(frozenset((row, twin)), line)
    lines = list(found.values())
    more = [f"{len(lines) - most} other pictures are examples of two classes"] if len(lines) > most else []
    return lines[:most] + more


def _examples(model: Model, name: str) -> tuple[ExampleView, ...]:
    shown = model.examples_of(name)
    if len(shown) < 2:
        return tuple(ExampleView(e.source, None, False) for e in shown)
    features = torch.stack([e.feature for e in shown])
    agreement = (features * unit(features.sum(0) - features)).sum(1)
    detector = model.base.detector
    if detector is not None and detector.strays:
        odd = detector.agreement(features) < detector.stray(len(shown))
    else:
        odd = (agreement < OUT_OF_PLACE * agreement.median()) & (len(shown) >= 3)
    views = zip(shown, agreement.tolist(), odd.tolist(), strict=True)
    return tuple(ExampleView(example.source, value, out) for example, value, out in views)


def _warnings(name: str, tried: SelfTest, examples: tuple[ExampleView, ...]) -> list[str]:
    lines = []
    if (same := coinciding(tried)) is not None:
        lines.append(
            f"{shorten(name)!r} nearly coincides with {shorten(same.name)!r}: {same.share:.0%} of"
            f" {tried.mistaken(same)}; is it the same class?"
        )
    for i, example in enumerate(examples):
        if example.out_of_place:
            lines.append(
                f"example {i} of {shorten(name)!r} looks out of place ({example.source or 'a vector'}):"
                f" agreement {example.agreement:.2f} with the others"
            )
    return lines


def explanation_plot(model: Model, found: Explanation, folder: str | Path, name: str) -> list[Path]:
    """Draw an explanation to ``folder/name`` (.png and .svg)."""
    from wdae.evaluation.plots import COLOURS, figure

    shown = model.examples_of(found.name)[:_EXAMPLES]
    with figure(12, 6.5 if shown else 4) as (fig, save):
        rows = fig.subfigures(2, 1, height_ratios=[3, 2]) if shown else [fig]
        left, right = rows[0].subplots(1, 2)
        near = [n.strength if found.listens else n.similarity for n in found.neighbours]
        _bars(left, [n.name for n in found.neighbours], near, COLOURS[0])
        left.set_title("listens to (strength of the edge)" if found.listens else "nearest classes (cosine)")
        names = [found.name, *(c.name for c in found.confusable)]
        chances = [found.own_probability, *(c.probability for c in found.confusable)]
        _bars(right, names, chances, COLOURS[1])
        right.set_title("probabilities at its centre")
        moved = "" if found.moved is None else f", moved by {found.moved:.1f}°"
        rows[0].suptitle(f"{shorten(found.name, 40)}: {counted(found.shots, 'example')}{moved}")
        if shown:
            strip = rows[1].subplots(1, len(shown), squeeze=False)[0]
            for axes, example, view in zip(strip, shown, found.examples, strict=False):
                axes.set_xticks([])
                axes.set_yticks([])
                if example.picture is not None:
                    axes.imshow(example.picture.numpy())
                else:
                    axes.plot(example.feature.numpy(), linewidth=0.5, color=COLOURS[0])
                agreement = "only one" if view.agreement is None else f"agrees {view.agreement:.2f}"
                label = shorten(Path(example.source).name, 18)
                axes.set_xlabel(f"{label}\n{agreement}", fontsize=8)
                if view.out_of_place:
                    for spine in axes.spines.values():
                        spine.set(color="red", linewidth=3)
        return save(folder, name)


def _bars(axes: Any, names: list[str], values: list[float], colour: str) -> None:
    places = range(len(names))
    axes.barh(places, values, color=colour)
    axes.set_yticks(list(places), [shorten(name, 24) for name in names])
    axes.invert_yaxis()
