"""Fine-tuning of novel weights by gradient descent."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wdae.errors import ModelError
from wdae.methods.base import BaseClasses, Method, Support, WeightScorer
from wdae.methods.examples import support_examples
from wdae.nn.cosine import cosine_scores, unit
from wdae.nn.generate import novel_estimate
from wdae.nn.inner_loop import gradient_steps, support_loss
from wdae.runtime.device import full_precision


class FineTune(Method):
    """Gradient descent on the novel weights of a cosine classifier ("Baseline++").

    Wei-Yu Chen, Yen-Cheng Liu, Zsolt Kira, Yu-Chiang Frank Wang, Jia-Bin Huang, "A Closer Look at Few-shot
    Classification", ICLR 2019, https://arxiv.org/abs/1904.04232. The loss is the cross-entropy of the shots.
    Base weights stay as learned and, where joint, are among the classes. S2M2 (Mangla et al., "Charting the
    Right Manifold", WACV 2020, https://arxiv.org/abs/1907.12087) tests with this classifier too, on features
    of its own.

    Departures: novel weights start at the means of their shots, not at random; steps are full-batch.

    Args:
        n_steps, rate: gradient steps and their size.
    """

    name = "fine-tune"
    about = "novel weights fine-tuned from class means by gradient descent"
    paper = "Chen 2019"

    def __init__(self, n_steps: int = 25, rate: float = 0.05) -> None:
        if n_steps < 0 or rate <= 0:
            raise ModelError(f"fine-tuning takes n_steps ≥ 0 and rate > 0, got {n_steps} and {rate}")
        self.n_steps, self.rate = n_steps, rate

    def describe(self) -> dict[str, Any]:
        """Number and size of the gradient steps."""
        return {"n_steps": self.n_steps, "rate": self.rate}

    def adapt(self, support: Support, base: BaseClasses, joint: bool = False) -> WeightScorer:
        """Fine-tune the novel weights of all episodes at once."""
        known = base.weights if joint else None
        examples = support_examples(support)
        with full_precision(support.features):
            shots, targets = unit(examples.features.float()), examples.targets
            start = novel_estimate(support.features.float(), support.mask)
            fixed = None if known is None else cosine_scores(shots, known, base.scale)  # [E, M, N]
            if fixed is not None:
                targets = torch.nn.functional.pad(targets, (fixed.shape[-1], 0))

            def loss(novel: Tensor) -> Tensor:
                scores = base.scale * shots @ unit(novel).transpose(-1, -2)
                scores = scores if fixed is None else torch.cat([fixed, scores], dim=-1)
                return support_loss(scores, targets, examples.weight)

            (novel,) = gradient_steps(loss, [start], [self.rate] * self.n_steps)
        return WeightScorer(novel, known, base.scale)
