"""A classifier that learns classes from a few examples each, and can take every change back."""

from __future__ import annotations

import copy
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from wdae.calibration.unknown import Added
from wdae.classifier.base_knowledge import BaseKnowledge
from wdae.classifier.head import Head, check_share
from wdae.classifier.history import History, State
from wdae.classifier.names import (
    called,
    check_name,
    chosen,
    has_separator,
    removable,
    shorten,
    unknown_classes,
)
from wdae.classifier.picture_backbone import PictureBackbone
from wdae.errors import ModelError, listed
from wdae.methods.base import Support, WeightScorer
from wdae.methods.calibration import BalancedScorer, steps_for
from wdae.nn.cosine import unit
from wdae.printing import counted

_SMALLEST_NORM = 1e-12
_SAME = 1e-4  # distance of unit features below which they are of the same picture


@dataclass(frozen=True, eq=False)
class Example:
    """An example of an added class: its unit feature ``[D]``, where it came from, perhaps a small picture.

    >>> Example(torch.tensor([0.6, 0.8]), source="okapi.jpg").source
    'okapi.jpg'
    """

    feature: Tensor
    source: str = ""
    picture: Tensor | None = None


def _new_rows(features: Tensor, known: Sequence[Tensor]) -> list[int]:
    """The rows of unit features ``[k, D]`` that are not among the known ones, nor repeat a row before."""
    if len(features) == 1 and not known:
        return [0]
    same = same_pictures(features, torch.cat([features, *(feature[None] for feature in known)]))
    same[:, : len(features)] = same[:, : len(features)].tril(-1)
    return (~same.any(1)).nonzero()[:, 0].tolist()


def same_pictures(features: Tensor, others: Tensor) -> Tensor:
    """Which unit features ``[k, D]`` and ``[m, D]`` are of the same picture, bool ``[k, m]``."""
    features, others = features.double(), others.double()
    apart = features.square().sum(1)[:, None] + others.square().sum(1) - 2 * features @ others.T
    return apart < _SAME**2


class Model:
    """Base classes, the examples of classes added since, and the history of changes.

    Adding, removing and undoing change this object alone; :mod:`wdae.classifier.store` keeps it on disk.

    >>> from wdae.methods import InitialEstimate
    >>> base = BaseKnowledge(("cat", "dog"), torch.eye(2, 4), torch.tensor([10, 10]), InitialEstimate())
    >>> model = Model(base)
    >>> model.add({"okapi": torch.eye(4)[2:3]})
    >>> model.names, model.scores(torch.eye(4)[2:3]).argmax(1).tolist()
    (('cat', 'dog', 'okapi'), [2])
    >>> model
    Model(2 base classes, 1 added, features of size 4)
    """

    def __init__(
        self, base: BaseKnowledge, examples: Sequence[Example] = (), history: History | None = None
    ) -> None:
        self.base = base
        self.examples = list(examples)
        self.backbone: PictureBackbone | None = None
        self.history = history or History()
        self._state: State = self.history.state()
        self.stored: str | None = None  # the digest of the manifest that it was read from
        self.known: tuple[tuple[tuple[int, ...], ...], Added] | None = None  # to tell the unknown from
        self._head: Head | None = None
        self._unlearned: tuple[Head, Head] | None = None  # of that head, the one for held-out pictures
        self._estimates: dict[tuple[int, ...], Tensor] = {}  # by rows of examples

    def __repr__(self) -> str:
        sees = f"pictures by {self.backbone.name!r}, " if self.backbone is not None else ""
        n_base, n_added = len(self.base.names), len(self.added)
        base = counted(n_base, "base class", "base classes")
        return f"Model({base}, {n_added} added, {sees}features of size {self.base.dim})"

    def on(self, device: str) -> Model:
        """This model, its backbone computing on a device (``auto``: a GPU if there is one)."""
        if self.backbone is not None:
            self.backbone = self.backbone.on(device)
        return self

    @property
    def state(self) -> State:
        """Classes that were added to, and the rows of their examples."""
        return dict(self._state)

    @property
    def added(self) -> tuple[str, ...]:
        """The classes that are not base classes, in the order in which they came."""
        base = self._base_index
        return tuple(name for name in self._state if name not in base)

    @property
    def names(self) -> tuple[str, ...]:
        """All classes: base first; adding never renumbers."""
        return (*self.base.names, *self.added)

    @cached_property
    def _base_index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.base.names)}

    @cached_property
    def _separators(self) -> bool:
        return any(has_separator(name) for name in self.base.names)

    @cached_property
    def _base_forms(self) -> dict[str, str]:
        """Base classes whose names are not in Unicode's composed form, by that."""
        odd = (name for name in self.base.names if not unicodedata.is_normalized("NFC", name))
        return {unicodedata.normalize("NFC", name): name for name in odd}

    def called(self, name: str) -> str:
        """The class that is meant, as :func:`wdae.classifier.names.called`; quick for many base classes."""
        if not isinstance(name, str) or name in self._base_index or name in self._state or name.isascii():
            return name
        form = unicodedata.normalize("NFC", name)
        if form in self._base_index:
            return form
        return self._base_forms.get(form) or called(name, self._state)

    def shots(self, name: str) -> int:
        """Number of examples that a class was given since the model was learned."""
        return len(self._state.get(name, ()))

    def examples_of(self, name: str) -> list[Example]:
        """The examples that a class was given since the model was learned."""
        return [self.examples[row] for row in self._state.get(name, ())]

    def add(
        self,
        classes: Mapping[str, Tensor],
        *,
        update: bool = False,
        sources: Mapping[str, Sequence[str]] | None = None,
        pictures: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Learn new classes, or more examples of known ones.

        An example that a class has already, given twice or given again, counts once: three copies of a
        picture say no more than one.

        Args:
            classes: features ``[k, D]`` of each class, k at least 1.
            update: classes may be known already; their examples are then added to those there are.
            sources: where each example came from, for people.
            pictures: small pictures uint8 ``[k, S, S, 3]``, for people.
        """
        checked = self.checked(classes, update=update)
        added: dict[str, list[int]] = {}
        for given, (name, features) in zip(classes, checked.items(), strict=True):
            known = [example.feature for example in self.examples_of(name)]
            rows = _new_rows(features, known)
            start = len(self.examples)
            origin, shown = (sources or {}).get(given), (pictures or {}).get(given)
            self.examples += [
                Example(features[i], origin[i] if origin else "", None if shown is None else shown[i])
                for i in rows
            ]
            added[name] = list(range(start, start + len(rows)))
        if any(added.values()):
            self._go(self.history.extended("add", {name: rows for name, rows in added.items() if rows}))

    def checked(self, classes: Mapping[str, Tensor], *, update: bool = False) -> dict[str, Tensor]:
        """The unit features of classes to add, under checked names; an error says what is wrong."""
        if not classes:
            raise ModelError("no classes to add; give at least one, with at least 1 example")
        checked: dict[str, Tensor] = {}
        for given, features in classes.items():
            name = self.called(given)
            if name not in self._base_index and name not in self._state:
                name = check_name(name, self._separators)
            if name in checked:
                raise ModelError(f"class {shorten(name)!r} is given twice")
            checked[name] = self._checked_features(name, features)
        if not update:
            self.refuse_known(checked)
        return checked

    def refuse_known(self, names: Iterable[str], more: str = "update=True") -> None:
        """Raise where one of the names is a class already; ``more`` is what gives it more examples."""
        names = [self.called(name) for name in names]
        taken = [shorten(name) for name in names if name in self._base_index or name in self._state]
        if taken:
            what, exist, them = ("class", "exists", "it") if len(taken) == 1 else ("classes", "exist", "them")
            raise ModelError(
                f"{what} {listed(map(repr, taken))} {exist} already; to give {them} more examples use {more},"
                " or choose another name"
            )

    def _checked_features(self, name: str, features: Tensor) -> Tensor:
        shown, dim = repr(shorten(name)), self.base.dim
        try:
            features = torch.as_tensor(features)
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"class {shown}: examples are features, an array [k, {dim}]; of pictures,"
                " model.backbone.features(files) makes them"
            ) from error
        if features.ndim != 2 or (len(features) and features.shape[1] != dim):
            advice = "use the backbone that the model was learned with"
            if features.shape == (dim,):
                advice = "give a row for each example"
            raise ModelError(
                f"class {shown}: features have shape {list(features.shape)}, the model works on [k, {dim}];"
                f" {advice}"
            )
        if not len(features):
            raise ModelError(f"class {shown} has 0 examples; give at least 1")
        features = features.detach().cpu().float()
        norms = torch.linalg.vector_norm(features, dim=1)
        bad = (~(norms.isfinite() & (norms > _SMALLEST_NORM))).nonzero()[:, 0].tolist()
        if bad:
            raise ModelError(
                f"class {shown}: {len(bad)} of {len(features)} examples are NaN, infinite or all zeros, the"
                f" first is number {bad[0]}; leave them out or compute them again"
            )
        return unit(features)

    def remove(self, names: Sequence[str]) -> None:
        """Forget added classes; a base class cannot be removed."""
        self._go(self.history.extended("remove", {}, removable(names, self._base_index, self.added)))

    def merge(self, names: Sequence[str], into: str) -> None:
        """Give the examples of added classes to another class, which may be a base class; they go."""
        names, into = [self.called(name) for name in names], self.called(into)
        missing = [name for name in names if name not in self._state or name in self._base_index]
        if missing:
            raise unknown_classes(missing, self.added, "added class")
        if into not in self.names:
            raise unknown_classes([into], self.names, "class")
        rest = [name for name in dict.fromkeys(names) if name != into]
        if not rest:
            raise ModelError(f"nothing to merge into {shorten(into)!r}; name another class")
        rows = [row for name in rest for row in self._state[name]]
        known = [example.feature for example in self.examples_of(into)]
        rows = [rows[i] for i in _new_rows(torch.stack([self.examples[row].feature for row in rows]), known)]
        self._go(self.history.extended("merge", {into: rows}, rest))

    def rename(self, name: str, to: str) -> None:
        """Call an added class otherwise; its examples stay."""
        [name] = removable([name], self._base_index, self.added, "renamed")
        to = check_name(to, self._separators)
        if self.called(to) in self.names:
            raise ModelError(
                f"class {shorten(to)!r} exists already; choose another name, or merge the two (wdae merge)"
            )
        self._go(self.history.extended("rename", {to: self._state[name]}, [name]))

    def set_novel_share(self, share: float | None) -> None:
        """Expect this share of the pictures to be of added classes from now on.

        A change like any other: undo takes it back. ``scores(..., expect=share)`` asks so once.

        Args:
            share: of all added classes together, once there are five of them; None: as learned, by default no
                more than what base classes can bear.
        """
        if share is not None:
            check_share(share)
        self._go(self.history.extended("set", {}, novel_share=share))

    @property
    def novel_share(self) -> float | None:
        """The share that was set, here or when the model was learned; None: what base classes can bear."""
        own = self.base.calibration
        return self.history.novel_share() or (own.novel_share if own.offsets else None)

    def undo(self) -> None:
        """Take the last change back; again, the one before it."""
        self._go(self.history.undone())

    def redo(self) -> None:
        """Make the change again that was undone last."""
        self._go(self.history.redone())

    def restore(self, number: int) -> None:
        """Return to the state after change ``number``; 0 is the model as learned."""
        self._go(self.history.at(number))

    def _go(self, history: History) -> None:
        line = history.changes[-1] if history.changes else None
        forward = line is not None and line.parent == self.history.head and history.head == line.number
        self._state = line.apply(self._state) if forward and line is not None else history.state()
        self.history, self._head = history, None

    @property
    def head(self) -> Head:
        """The classifier of the present state; computed when first asked for after a change."""
        if self._head is None:
            head, share = self._build_head(), self.history.novel_share()
            self._head = head if share is None else head.expecting(share)
        return self._head

    @property
    def unlearned_head(self) -> Head:
        """The classifier that held-out base pictures are asked of (:meth:`BaseKnowledge.unlearned`)."""
        if self._unlearned is None or self._unlearned[0] is not self.head:
            self._unlearned = self.head, self.base.unlearned(self.head)
        return self._unlearned[1]

    def adopt(self, head: Head) -> None:
        """Take a classifier that was computed for this very state before."""
        if head.names != self.names:
            raise ModelError("the classifier is of other classes than the model")
        self._head = head

    def head_for(self, *, expect: float | None = None, only: str | Iterable[str] | None = None) -> Head:
        """The classifier for a question of its own.

        Args:
            expect: share of the pictures that is expected to be of added classes.
            only: the classes that come into question: their names, or ``"added"`` or ``"base"``. Each is then
                as likely as another, unless ``expect`` is given too.
        """
        head = self.head if only is None else self.head.among(chosen(only, self.base.names, self.added))
        return head if expect is None else head.expecting(expect)

    def without(self, name: str, row: int) -> Model:
        """The model as it would be without one of the examples of a class; only to be asked."""
        other = copy.copy(self)
        other._state = {**self._state, name: tuple(r for r in self._state[name] if r != row)}
        other._head = None
        return other

    def _build_head(self) -> Head:
        base, names, n_base = self.base, self.names, len(self.base.names)
        order = sorted(self.added)  # so that the order of adding cannot show, not even in the last digit
        weights, novel, estimates = base.weights, base.weights[:0], base.weights[:0]
        gains, offsets = torch.full((n_base,), base.calibration.gain), torch.zeros(n_base)
        steps = torch.zeros(0)
        n_shots = torch.tensor([self.shots(name) for name in self.added], dtype=torch.int64)
        if order:
            self._estimates = {rows: self._estimate(rows) for rows in (self._state[name] for name in order)}
            estimates = torch.stack([self._estimates[self._state[name]] for name in order])
            shots = torch.tensor([self.shots(name) for name in order])
            with torch.no_grad():
                scorer = base.adapter.weigh(estimates[None], shots[None], joint=True)
                scorer = self._with_posterior(scorer, order, shots)
            place = {name: i for i, name in enumerate(order)}
            back = torch.tensor([place[name] for name in self.added])
            slope, offset = torch.ones(len(order)), torch.zeros(len(order))
            if isinstance(scorer, BalancedScorer):
                slope, offset = (value.expand(1, 1, -1)[0, 0] for value in (scorer.slope, scorer.offset))
            if base.denoiser is not None and base.denoiser.refine_base:
                weights = scorer.weights()[0, :n_base]
            if isinstance(scorer, BalancedScorer) and scorer.base_slope is not None:
                assert scorer.base_offset is not None
                weights = scorer.weights()[0, :n_base]
                gains, offsets = gains * scorer.base_slope, offsets + scorer.base_offset
            novel = unit(scorer.novel[0, back])
            estimates = estimates[back]
            gain = base.calibration.gain
            gains, offsets = torch.cat([gains, gain * slope[back]]), torch.cat([offsets, offset[back]])
            if base.denoiser is not None:
                steps = steps_for(shots[back], base.denoiser.steps)
        extra = {
            self._base_index[name]: torch.stack([self.examples[row].feature for row in rows])
            for name, rows in self._state.items()
            if name in self._base_index
        }
        moved = base.with_examples(weights, extra)
        index = base.index if weights is base.weights else None
        if moved is not None and index is None:
            weights = weights.index_copy(0, *moved)
        return Head(
            names,
            n_base,
            weights,
            novel,
            gains,
            offsets,
            base.weights,
            estimates,
            n_shots,
            steps,
            base.calibration.prior(n_base, n_shots),
            base.space,
            index,
            moved if index is not None else None,
        )

    def _with_posterior(self, scorer: WeightScorer, order: Sequence[str], shots: Tensor) -> WeightScorer:
        """The scorer of added classes, those with enough examples fitted further where the method does so."""
        posterior = self.base.method.posterior
        rows = shots[:0] if posterior is None else (shots >= posterior.fewest).nonzero()[:, 0]
        if not len(rows):
            return scorer
        found = [
            torch.stack([self.examples[row].feature for row in self._state[order[i]]]) for i in rows.tolist()
        ]
        found = [some[some[:, 0].argsort()] for some in found]  # so that their order cannot show either
        mask = pad_sequence([torch.ones(len(f), dtype=torch.bool) for f in found], batch_first=True)
        support = Support(pad_sequence(found, batch_first=True)[None], mask[None])
        return self.base.adapter.fit(scorer, shots[None], support, rows)

    def _estimate(self, rows: tuple[int, ...]) -> Tensor:
        """The initial estimate of a class that has these examples; kept from one change to the next."""
        known = self._estimates.get(rows)
        if known is not None:
            return known
        return self.base.estimate(torch.stack([self.examples[row].feature for row in rows]))

    def scores(
        self,
        features: Tensor,
        *,
        expect: float | None = None,
        only: str | Iterable[str] | None = None,
    ) -> Tensor:
        """Calibrated scores ``[M, C]`` of features ``[M, D]``; their softmax are probabilities.

        ``expect`` and ``only`` are those of :meth:`head_for`, which also names the C classes in their order.
        """
        return self.head_for(expect=expect, only=only).scores(self.check_features(features))

    def sets(self, features: Tensor, coverage: float, *, only: str | Iterable[str] | None = None) -> Tensor:
        """Which classes ``[M, C]`` are in the set of each of the features ``[M, D]``; never none.

        The sets hold the true class of a share ``coverage`` of pictures, of base classes and of added ones
        alike. They are those of the model as it was learned: ``expect`` has no part in them.

        Args:
            coverage: from 0.5 to 0.99.
            only: that of :meth:`head_for`, which names the C classes in their order.
        """
        own, head = self.base.calibration, self.head_for(only=only)
        if only is None:
            head = head.with_prior(own.prior(head.n_base, head.shots))
        base, added = own.least(coverage, head.shots)
        chances = head.scores(self.check_features(features)).double().softmax(1)
        inside = chances >= torch.cat([added.new_full((head.n_base,), base), added])
        return inside.scatter_(1, chances.argmax(1, keepdim=True), True)

    def check_features(self, features: Tensor) -> Tensor:
        """Vectors ``[M, D]`` as float32; another size and values that are not finite are refused."""
        features = torch.as_tensor(features).detach().cpu().float()
        if features.ndim != 2 or features.shape[1] != self.base.dim:
            raise ModelError(
                f"features have shape {list(features.shape)}, the model works on [pictures,"
                f" {self.base.dim}]; use the backbone that the model was learned with"
            )
        if not bool(features.isfinite().all()):
            row = int((~features.isfinite().all(1)).nonzero()[0])
            raise ModelError(f"features have NaN or infinite values, first in row {row}; compute them again")
        return features
