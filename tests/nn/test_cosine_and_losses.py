from __future__ import annotations

import math

import pytest
import torch
from seeded import generator

from wdae.nn import CosineClassifier, cosine_scores, stage2_losses, unit


def test_scores_are_scaled_cosines() -> None:
    features = torch.randn(2, 3, 5, generator=generator())
    weights = torch.randn(2, 4, 5, generator=generator(1))
    scores = cosine_scores(features, weights, 7.0)
    for e in range(2):
        for q in range(3):
            for c in range(4):
                z, w = features[e, q].tolist(), weights[e, c].tolist()
                dot = sum(a * b for a, b in zip(z, w, strict=True))
                cosine = dot / math.hypot(*z) / math.hypot(*w)
                assert float(scores[e, q, c]) == pytest.approx(7 * cosine, abs=1e-5)


def test_one_weight_matrix_serves_all_episodes() -> None:
    features, weights = torch.randn(3, 2, 6, generator=generator()), torch.randn(4, 6, generator=generator(1))
    torch.testing.assert_close(
        cosine_scores(features, weights, 2.0), cosine_scores(features, weights.expand(3, -1, -1), 2.0)
    )


def test_classifier_starts_as_the_paper_says() -> None:
    classifier = CosineClassifier(400, 64, generator=generator())
    assert classifier.scale.item() == 10.0
    assert classifier.weight.mean().item() == pytest.approx(0, abs=5e-3)
    assert classifier.weight.var().item() == pytest.approx(2 / 64, rel=0.03)
    assert [name for name, _ in classifier.named_parameters()] == ["weight", "scale"]  # no bias
    features = torch.randn(5, 64, generator=generator(1))
    torch.testing.assert_close(classifier(features), cosine_scores(features, classifier.weight, 10.0))
    assert torch.equal(classifier.weight, CosineClassifier(400, 64, generator=generator()).weight)


def test_a_zero_vector_stays_finite() -> None:
    assert torch.equal(unit(torch.zeros(2, 3)), torch.zeros(2, 3))


def test_losses_against_loops() -> None:
    E, N, Q, D = 2, 5, 7, 6
    weights, targets = (torch.randn(E, N, D, generator=generator(s)).double() for s in (0, 1))
    queries = torch.randn(E, Q, D, generator=generator(2)).double()
    labels = torch.randint(0, N, (E, Q), generator=generator(3))
    losses = stage2_losses(weights, targets, queries, labels, 10.0)

    reconstruction = classification = 0.0
    for e in range(E):
        for c in range(N):
            w, t = weights[e, c] / weights[e, c].norm(), targets[e, c] / targets[e, c].norm()
            reconstruction += sum((a - b) ** 2 for a, b in zip(w.tolist(), t.tolist(), strict=True))
        for q in range(Q):
            z = queries[e, q] / queries[e, q].norm()
            scores = [10 * float(z @ (weights[e, c] / weights[e, c].norm())) for c in range(N)]
            classification += math.log(sum(map(math.exp, scores))) - scores[int(labels[e, q])]
            assert losses.scores[e, q].tolist() == pytest.approx(scores)
    assert float(losses.reconstruction) == pytest.approx(reconstruction / (E * N))
    # Cross-entropy is computed in float32 whatever the scores' dtype.
    assert float(losses.classification) == pytest.approx(classification / (E * Q), rel=1e-5)
