"""Evaluation speed on a CPU: ours beside a plain loop over episodes, in one run.

python benchmarks/evaluation.py [--episodes 4000]

N = 64 + 5 classes, D = 640, H = 320, 15 queries a class. The loop is what a textbook would write: for each
episode, all classes through the network, then all queries against all classes.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from common import best_of, keep
from wdae import WDAE, Denoiser, EpisodeSampler, EpisodeSpec, FeatureBank, Part, few_way
from wdae.allocator import keep_freed_memory
from wdae.embedded import embedded_bank
from wdae.episodes import Episodes


class PlainDenoiser:
    """The paper's equations on one episode, read off an evaluated denoiser's parameters."""

    def __init__(self, denoiser: Denoiser) -> None:
        self.p = {name: value.detach() for name, value in denoiser.state_dict().items()}

    def norm(self, x: Tensor, name: str) -> Tensor:
        p = self.p
        return F.batch_norm(
            x, p[f"{name}.running_mean"], p[f"{name}.running_var"], p[f"{name}.weight"], p[f"{name}.bias"]
        )

    def messages(self, h: Tensor, neighbours: Tensor, strengths: Tensor, layer: int) -> Tensor:
        name = f"layers.{layer}.message"
        projected = F.linear(h, self.p[f"{name}.linear.weight"], self.p[f"{name}.linear.bias"])
        edges = projected.unsqueeze(1) + projected[neighbours]  # [N, J, H]
        q = F.leaky_relu(self.norm(edges.flatten(0, 1), f"{name}.norm"), 0.01).view_as(edges)
        return (strengths.unsqueeze(-1) * q).sum(1)

    def __call__(self, w: Tensor) -> Tensor:
        similarity = w @ w.T
        similarity.fill_diagonal_(-torch.inf)
        near = similarity.topk(10, dim=-1)
        strengths = torch.softmax(5 * near.values, dim=-1)
        m = self.messages(w, near.indices, strengths, 0)
        u = F.linear(torch.cat([w, m], -1), self.p["layers.0.update.linear.weight"])
        u = F.normalize(F.leaky_relu(self.norm(u, "layers.0.update.norm"), 0.01), dim=-1)
        h = torch.cat([w, u], -1) / 2**0.5
        m = self.messages(h, near.indices, strengths, 1)
        name = "layers.1.update.linear"
        out = F.linear(torch.cat([h, m], -1), self.p[f"{name}.weight"], self.p[f"{name}.bias"])
        delta, gate = out.chunk(2, dim=-1)
        return w + torch.sigmoid(gate) * F.normalize(delta, dim=-1)


def plain_loop(denoiser: Denoiser, bank: FeatureBank, episodes: Episodes, joint: bool) -> dict[str, float]:
    plain = PlainDenoiser(denoiser)
    novel, held_out = bank.select(Part.NOVEL).features, bank.select(Part.BASE_HELD_OUT).features
    assert bank.base_weights is not None
    base = F.normalize(bank.base_weights, dim=-1)
    n_base = len(base)
    totals = {"novel": 0.0, "all": 0.0}
    for i in range(len(episodes)):
        support = F.normalize(novel[episodes.support[i]].mean(1), dim=-1)
        weights = F.normalize(plain(torch.cat([base, support])), dim=-1)
        queries = novel[episodes.query[i].flatten()]
        labels = torch.arange(5).repeat_interleave(15)
        scores = F.normalize(queries, dim=-1) @ weights.T
        totals["novel"] += float((scores[:, n_base:].argmax(-1) == labels).float().mean())
        if joint:
            more = F.normalize(held_out[episodes.base_query[i]], dim=-1) @ weights.T
            right = torch.cat(
                [scores.argmax(-1) == n_base + labels, more.argmax(-1) == episodes.base_query_label[i]]
            )
            totals["all"] += float(right.float().mean())
    return {name: total / len(episodes) for name, total in totals.items()}


def plain_speed(denoiser: Denoiser, bank: FeatureBank, n: int, joint: bool) -> tuple[float, dict[str, float]]:
    """Episodes a second of the loop (the best of three), and its accuracies."""
    spec = EpisodeSpec(5, (1,), 15, 75 if joint else 0)
    held_out = bank.select(Part.BASE_HELD_OUT) if joint else None
    episodes = EpisodeSampler(bank.select(Part.NOVEL), spec, 0, base_query=held_out).draw(0, n)
    reference = plain_loop(denoiser, bank, episodes, joint)
    return n / best_of(3, functools.partial(plain_loop, denoiser, bank, episodes, joint)), reference


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
    rows = []
    with torch.no_grad():
        # The loop first, in a process as it comes; the allocator's setting is part of what ours does.
        plain = {joint: plain_speed(denoiser, bank, args.plain_episodes, joint) for joint in (False, True)}
        keep_freed_memory()
        for joint in (False, True):
            slow, reference = plain[joint]
            for dtype in (torch.float32, torch.bfloat16):
                method = WDAE(denoiser, dtype=dtype)

                def ours(n: int, m: WDAE = method, j: bool = joint) -> dict[str, float]:
                    found = few_way(m, bank, 1, n_episodes=n, joint=j)
                    return {name: estimate.mean for name, estimate in found.metrics.items()}

                found = ours(args.plain_episodes)  # warms up, and must agree with the loop
                gap = max(abs(found[k] - v) for k, v in reference.items() if k in found)
                fast = args.episodes / best_of(3, functools.partial(ours, args.episodes))
                row = {
                    "asked": "novel and base" if joint else "novel",
                    "precision": str(dtype).removeprefix("torch."),
                    "episodes_per_second": fast,
                    "plain_loop": slow,
                    "ratio": fast / slow,
                    "largest_difference_in_accuracy": gap,
                }
                rows.append(row)
                print(
                    f"{row['asked']:15s} {row['precision']:9s} {fast:7.0f} episodes/s, "
                    f"plain loop {slow:5.0f}: {fast / slow:5.1f} x; accuracies differ by {gap:.5f}"
                )
    sizes = {"base": 64, "novel": 5, "dim": 640, "hidden": 320, "queries_a_class": 15}
    print(
        keep("evaluation-cpu", {"sizes": sizes, "threads": torch.get_num_threads(), "rows": rows}, args.out)
    )


if __name__ == "__main__":
    main()
