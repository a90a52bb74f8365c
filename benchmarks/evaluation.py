"""Evaluation speed on a CPU: ours beside plain loops over episodes, in one run.

python benchmarks/evaluation.py [--episodes 4000]

N = 64 + 5 classes, D = 640, H = 320, 15 queries a class. A loop is what a textbook would write. For each
episode: draw classes and images, take the means of the shots, build the graph, take all classes through the
network, score all queries against all classes, count. There are two, which differ in eq. 9 alone:

* as written: ``q(h_i, h_j)`` is a function of two states, called with every class and each of its
  neighbours: "q forwards each of them through the same fully connected linear layer, adds their outputs";
* mapped once: who sees that the layer is linear maps every class once and adds the outputs along the edges.

Nothing is made slow on purpose; each loop runs with one thread and with all, and its better figure counts.
Ours draws its episodes within the time too. That all compute the same is checked on the same episodes first.
"""

from __future__ import annotations

import argparse
import functools
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from common import best_of, keep
from wdae import WDAE, Denoiser, EpisodeSampler, EpisodeSpec, FeatureBank, Part, few_way
from wdae.bank import ClassSet
from wdae.bank.embedded import embedded_bank
from wdae.runtime.process import keep_freed_memory

WAYS, QUERIES = 5, 15


class PlainDenoiser:
    """The paper's equations on one episode, read off an evaluated denoiser's parameters."""

    def __init__(self, denoiser: Denoiser, mapped_once: bool) -> None:
        self.p = {name: value.detach() for name, value in denoiser.state_dict().items()}
        self.mapped_once = mapped_once

    def norm(self, x: Tensor, name: str) -> Tensor:
        p = self.p
        flat = F.batch_norm(
            x.flatten(0, -2),
            p[f"{name}.running_mean"],
            p[f"{name}.running_var"],
            p[f"{name}.weight"],
            p[f"{name}.bias"],
        )
        return flat.view_as(x)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.p[f"{name}.linear.weight"], self.p.get(f"{name}.linear.bias"))

    def q(self, h_i: Tensor, h_j: Tensor, name: str) -> Tensor:
        both = self.linear(h_i, name) + self.linear(h_j, name)
        return F.leaky_relu(self.norm(both, f"{name}.norm"), 0.01)

    def messages(self, h: Tensor, neighbours: Tensor, strengths: Tensor, layer: int) -> Tensor:
        name = f"layers.{layer}.message"
        if self.mapped_once:
            mapped = self.linear(h, name)
            both = mapped.unsqueeze(1) + mapped[neighbours]  # [N, J, H]
            q = F.leaky_relu(self.norm(both, f"{name}.norm"), 0.01)
        else:
            q = self.q(h.unsqueeze(1), h[neighbours], name)  # [N, J, H]
        return (strengths.unsqueeze(-1) * q).sum(1)

    def __call__(self, w: Tensor) -> Tensor:
        similarity = w @ w.T
        similarity.fill_diagonal_(-torch.inf)
        near = similarity.topk(10, dim=-1)
        strengths = torch.softmax(5 * near.values, dim=-1)
        m = self.messages(w, near.indices, strengths, 0)
        u = self.norm(self.linear(torch.cat([w, m], -1), "layers.0.update"), "layers.0.update.norm")
        u = F.normalize(F.leaky_relu(u, 0.01), dim=-1)
        h = torch.cat([w, u], -1) / 2**0.5
        m = self.messages(h, near.indices, strengths, 1)
        delta, gate = self.linear(torch.cat([h, m], -1), "layers.1.update").chunk(2, dim=-1)
        return w + torch.sigmoid(gate) * F.normalize(delta, dim=-1)


@dataclass(frozen=True)
class PlainEpisode:
    """One episode: rows of the novel classes' images, and of held-out base images with their classes."""

    support: Tensor
    queries: Tensor
    base_queries: Tensor
    base_labels: Tensor


def draw(novel: ClassSet, held_out: ClassSet | None, source: random.Random) -> PlainEpisode:
    """Choose classes, then images of each; then a class and an image of it for each base query."""
    support, queries, base_queries, base_labels = [], [], [], []
    starts, counts = novel.starts.tolist(), novel.counts.tolist()
    for c in source.sample(range(len(counts)), WAYS):
        images = source.sample(range(starts[c], starts[c] + counts[c]), 1 + QUERIES)
        support.append(images[0])
        queries.extend(images[1:])
    if held_out is not None:
        starts, counts = held_out.starts.tolist(), held_out.counts.tolist()
        for _ in range(WAYS * QUERIES):
            c = source.randrange(len(counts))
            base_labels.append(c)
            base_queries.append(source.randrange(starts[c], starts[c] + counts[c]))
    return PlainEpisode(*map(torch.tensor, (support, queries, base_queries, base_labels)))


class PlainLoop:
    """Episode after episode: 1 shot, accuracy of the novel queries and, where joint, of all."""

    def __init__(self, denoiser: Denoiser, bank: FeatureBank, joint: bool, mapped_once: bool) -> None:
        self.denoiser = PlainDenoiser(denoiser, mapped_once)
        self.novel = bank.select(Part.NOVEL)
        self.held_out = bank.select(Part.BASE_HELD_OUT) if joint else None
        assert bank.base_weights is not None
        self.base = F.normalize(bank.base_weights, dim=-1)

    def accuracies(self, episode: PlainEpisode) -> tuple[float, float]:
        n_base = len(self.base)
        shots = F.normalize(self.novel.features[episode.support], dim=-1)
        weights = F.normalize(self.denoiser(torch.cat([self.base, shots])), dim=-1)
        scores = F.normalize(self.novel.features[episode.queries], dim=-1) @ weights.T
        labels = torch.arange(WAYS).repeat_interleave(QUERIES)
        right = scores[:, n_base:].argmax(-1) == labels
        if self.held_out is None:
            return float(right.float().mean()), 0.0
        more = F.normalize(self.held_out.features[episode.base_queries], dim=-1) @ weights.T
        both = torch.cat([scores.argmax(-1) == n_base + labels, more.argmax(-1) == episode.base_labels])
        return float(right.float().mean()), float(both.float().mean())

    def run(self, n: int) -> tuple[float, float]:
        """Mean accuracies over n episodes of its own."""
        source = random.Random(0)
        found = [self.accuracies(draw(self.novel, self.held_out, source)) for _ in range(n)]
        return sum(a for a, _ in found) / n, sum(b for _, b in found) / n

    def speed(self, n: int) -> dict[str, float]:
        """Episodes a second with one thread and with all, the best of three each."""
        threads = torch.get_num_threads()
        speeds = {}
        for some in sorted({1, threads}):
            torch.set_num_threads(some)
            speeds[f"threads_{some}"] = n / best_of(3, functools.partial(self.run, n))
        torch.set_num_threads(threads)
        return speeds

    def on_ours(self, n: int) -> dict[str, float]:
        """Its accuracies on the episodes that ours draws."""
        spec = EpisodeSpec(WAYS, (1,), QUERIES, WAYS * QUERIES if self.held_out is not None else 0)
        episodes = EpisodeSampler(self.novel, spec, 0, base_query=self.held_out).draw(0, n)
        found = []
        for i in range(n):
            rows = (episodes.support[i, :, 0], episodes.query[i].flatten())
            found.append(
                self.accuracies(PlainEpisode(*rows, episodes.base_query[i], episodes.base_query_label[i]))
            )
        names = ("novel", "all") if self.held_out is not None else ("novel",)
        return {name: sum(values[k] for values in found) / n for k, name in enumerate(names)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=4000)
    parser.add_argument("--plain-episodes", type=int, default=200)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    bank = embedded_bank()
    denoiser = Denoiser(bank.dim, 320, generator=torch.Generator().manual_seed(0)).eval()
    n = args.plain_episodes
    rows = []
    with torch.no_grad():
        # The loops first, in a process as it comes; the allocator's setting is part of what ours does.
        loops = {(j, m): PlainLoop(denoiser, bank, j, m) for j in (False, True) for m in (False, True)}
        references = {key: loop.on_ours(n) for key, loop in loops.items()}
        plain = {key: loop.speed(n) for key, loop in loops.items()}
        keep_freed_memory()
        for joint in (False, True):
            as_written, mapped_once = plain[joint, False], plain[joint, True]
            for dtype in (torch.float32, torch.bfloat16):
                method = WDAE(denoiser, dtype=dtype)

                def ours(n: int, m: WDAE = method, j: bool = joint) -> dict[str, float]:
                    found = few_way(m, bank, 1, n_episodes=n, joint=j)
                    return {name: estimate.mean for name, estimate in found.metrics.items()}

                found = ours(n)  # warms up, and must agree with the loops
                gap = max(abs(found[k] - v) for m in (False, True) for k, v in references[joint, m].items())
                fast = args.episodes / best_of(3, functools.partial(ours, args.episodes))
                row = {
                    "asked": "novel and base" if joint else "novel",
                    "precision": str(dtype).removeprefix("torch."),
                    "episodes_per_second": fast,
                    "plain_loop": max(as_written.values()),
                    "ratio": fast / max(as_written.values()),
                    "plain_loop_mapped_once": max(mapped_once.values()),
                    "ratio_mapped_once": fast / max(mapped_once.values()),
                    "largest_difference_in_accuracy": gap,
                }
                rows.append(row)
                print(
                    f"{row['asked']:15s} {row['precision']:9s} {fast:7.0f} episodes/s; plain loop as written "
                    f"{row['plain_loop']:5.0f}: {row['ratio']:5.1f} x; mapped once "
                    f"{row['plain_loop_mapped_once']:5.0f}: {row['ratio_mapped_once']:5.1f} x; "
                    f"accuracies differ by {gap:.5f}",
                    flush=True,
                )
    by_threads = [
        {"loop": "mapped once" if m else "as written", "asked": "novel and base" if j else "novel", **speeds}
        for (j, m), speeds in plain.items()
    ]
    sizes = {"base": 64, "novel": WAYS, "dim": 640, "hidden": 320, "queries_a_class": QUERIES}
    record = {"sizes": sizes, "threads": torch.get_num_threads(), "rows": rows, "plain_loops": by_threads}
    print(keep("evaluation-cpu", record, args.out))


if __name__ == "__main__":
    main()
