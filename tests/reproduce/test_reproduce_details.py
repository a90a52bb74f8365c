"""What the plots rest on, against slow loops and against the protocol itself."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from wdae.bank import FeatureBank
from wdae.evaluation.protocol import few_way
from wdae.methods import make
from wdae.methods.base import base_classes
from wdae.parts import Part
from wdae.reproduce.benchmarks import MINI_IMAGENET
from wdae.reproduce.config import ReproduceRecipe
from wdae.reproduce.details import base_distances, measure_details, trade_off
from wdae.reproduce.render import table_notes
from wdae.reproduce.roles import RoleBank, expected_cost
from wdae.reproduce.run import command

SHAPE = {"n_way": 4, "n_query": 5, "n_episodes": 30, "seed": 7}


def test_a_trade_off_curve_is_what_adding_the_constant_gives() -> None:
    generator = torch.Generator().manual_seed(0)
    n_base, n = 6, 3
    scores = torch.randn(80, n_base + n, generator=generator)
    labels = torch.randint(0, n_base + n, (80,), generator=generator)
    novel = labels >= n_base
    margin = scores[:, n_base:].amax(1) - scores[:, :n_base].amax(1)
    own = torch.where(novel, scores[:, n_base:].argmax(1) + n_base, scores[:, :n_base].argmax(1)) == labels
    offsets, novel_right, base_right = trade_off(margin[novel], own[novel], margin[~novel], own[~novel])
    assert offsets[0] == 0
    for place in (0, 7, 20, 33, 55):
        # Beside the sweep's own points, where two scores tie exactly.
        constant = float(offsets[place]) + (1e-6 if place else 0)
        moved = scores.double().clone()
        moved[:, n_base:] += constant
        right = [int(row.argmax()) == int(label) for row, label in zip(moved, labels, strict=True)]
        a = [ok for ok, is_novel in zip(right, novel.tolist(), strict=True) if is_novel]
        b = [ok for ok, is_novel in zip(right, novel.tolist(), strict=True) if not is_novel]
        assert float(novel_right[place]) == pytest.approx(sum(a) / len(a), abs=1.01 / len(a))
        assert float(base_right[place]) == pytest.approx(sum(b) / len(b), abs=1.01 / len(b))
    assert float(novel_right[-1]) <= float(novel_right[1]) or float(base_right[-1]) >= float(base_right[1])


def test_details_look_at_the_episodes_of_the_protocol(small_bank: FeatureBank) -> None:
    method = make("initial-estimate")
    result = few_way(method, small_bank, 1, **SHAPE)  # type: ignore[arg-type]
    details = measure_details(method, small_bank, 1, **SHAPE, device=torch.device("cpu"))  # type: ignore[arg-type]
    assert details.right.mean(1).tolist() == pytest.approx(result.per_episode["novel"].tolist())
    assert float(details.novel[0]) == pytest.approx(result.metrics["novel_in_all"].mean)
    assert float(details.base[0]) == pytest.approx(result.metrics["base_in_all"].mean)
    assert details.classes.shape == details.right.shape == (30, 4)
    # Raised without end, novel scores win every query; lowered, none.
    assert float(details.novel.max()) == pytest.approx(result.metrics["novel"].mean, abs=0.01)
    assert float(details.base.min()) <= 0.01


def test_distances_are_of_class_means_to_the_nearest_base_classes(small_bank: FeatureBank) -> None:
    weights = base_classes(small_bank).weights
    pool = small_bank.select(Part.NOVEL)
    for index, (name, distance) in enumerate(base_distances(small_bank, 3).items()):
        mean = pool.of_class(index).mean(0)
        cosines = sorted(float(torch.cosine_similarity(mean, row, dim=0)) for row in weights)
        assert name == pool.names[index]
        assert distance == pytest.approx(1 - sum(cosines[-3:]) / 3, abs=1e-5)


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"backbone": "wrn-28-10", "sizes": [80]}, ": wrn-28-10, 24 dimensions."),
        ({}, ": backbone not named, 24 dimensions."),
        ({"flip_average": True}, "not named, means over a picture and its mirror image, 24 dimensions."),
        ({"sizes": [80, 92, 104]}, "named, means over a picture at 80, 92 and 104 px, 24"),
        ({"flip_average": True, "sizes": [80, 104]}, "a picture and its mirror image at 80 and 104 px, 24"),
        ({"crops": 8}, "named, means over a picture and over 8 random crops of it, 24"),
        ({"flip_average": True, "crops": 8}, "and its mirror image and over 8 random crops of it, 24"),
        (
            {"joined": [{"backbone": "a", "flip_average": True}, {"joined": [{"backbone": "b"}, {}]}]},
            ": side by side: a, means over a picture and its mirror image; b; backbone not named; together",
        ),
    ],
)
def test_a_table_says_what_its_features_are(
    small_bank: FeatureBank, info: dict[str, Any], words: str
) -> None:
    bank = RoleBank(replace(small_bank, info=info), "", "a bank, as given").describe()
    table = {"role": "held-out", "metrics": ["novel", "all"], "rows": []}
    (note,) = table_notes(table, {"banks": {"held-out": bank}, "protocol": "few-way"})
    assert words in note


def test_the_cost_that_is_said_first_follows_from_the_record_of_the_same_network() -> None:
    """It was measured in a longer training, ``stage1-resnet12-bdc``, whose record's note says it."""
    network = MINI_IMAGENET.network
    assert network is not None
    assert network.recipe == "stage1-resnet12-bdc-short"
    record = json.loads((Path(__file__).parents[2] / "results" / "stage1" / "resnet12-bdc.json").read_text())
    (rate,) = re.findall(r"([\d,]+) images/s", record["note"])
    assert network.images_per_second == pytest.approx(float(rate.replace(",", "")), rel=0.01)
    said = expected_cost(MINI_IMAGENET, ReproduceRecipe(data=Path("DIR")))
    assert said is not None
    assert 5 < int(said.split("about ")[1].split(" minutes")[0]) < 75
    assert expected_cost(MINI_IMAGENET, ReproduceRecipe(data=Path("DIR"), quick=True)) is None


def test_the_command_of_a_record_leaves_places_open_but_names_what_ships() -> None:
    recipe = ReproduceRecipe(
        data=Path("/my/pictures"), held_out_backbone=Path("embedded"), bank=Path("/my/bank")
    )
    said = command(MINI_IMAGENET, recipe)
    words = "--bank BANK --data DIR --held-out-backbone embedded -o RUN"
    assert said == f"wdae reproduce mini-imagenet {words}"


def test_a_record_names_the_weights_that_features_are_of(small_bank: FeatureBank) -> None:
    bank = replace(small_bank, info={"backbone": "resnet12", "model_sha256": "ab" * 32})
    assert RoleBank(bank, "", "a bank, as given").describe()["weights"] == ["ab" * 32]
