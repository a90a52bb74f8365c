"""The example of docs/add-a-method.md runs as it stands, and passes the shared checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import method_checks as shared
import pytest
import torch

from wdae.methods.registry import METHODS

PAGE = Path(__file__).parents[2] / "docs" / "add-a-method.md"
NAME = "gained-mean"


@pytest.fixture
def example() -> Iterator[str]:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    yield code
    METHODS.pop(NAME, None)


def test_the_example_runs_and_passes_the_checks(
    example: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert len(example.strip().splitlines()) < 40
    exec(compile(example, str(PAGE), "exec"), {"__name__": "example"})
    assert "±" in capsys.readouterr().out
    for check in (
        shared.test_it_says_what_it_is,
        shared.test_shapes,
        shared.test_joint_shapes_base_first,
        shared.test_the_order_of_shots_does_not_matter,
        shared.test_the_order_of_classes_carries_over,
        shared.test_episodes_do_not_see_each_other,
        shared.test_padding_of_unequal_shots_is_not_seen,
        shared.test_above_chance,
        shared.test_bfloat16_within_tolerance,
    ):
        check(NAME)
    shared.test_gradients_reach_every_parameter(NAME, torch.float32)
    shared.test_saved_and_loaded_it_scores_the_same(NAME, tmp_path)
