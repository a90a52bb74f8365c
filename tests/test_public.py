"""The public names are what they say, and the README's example runs as it stands."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import wdae
import wdae.stage2.train  # a subpackage must not hide a public name


@pytest.mark.parametrize("name", [n for n in wdae.__all__ if n != "__version__"])
def test_a_public_name_is_a_documented_class_or_function(name: str) -> None:
    thing = getattr(wdae, name)
    assert inspect.isclass(thing) or inspect.isfunction(thing), f"{name} is {thing!r}"
    assert inspect.getdoc(thing)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = wdae.nothing


def test_the_readme_example_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parent.parent / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    from wdae.stage2.config import MetaRecipe, TrainingConfig

    short = TrainingConfig(steps=4, validate_every=4, validation_episodes=20)
    monkeypatch.setattr(
        MetaRecipe.model_fields["training"], "default", short
    )  # the same, with fewer steps: what is tested here are the names and shapes
    MetaRecipe.model_rebuild(force=True)
    try:
        exec(compile(code[1], "README.md", "exec"), {})
    finally:
        monkeypatch.undo()
        MetaRecipe.model_rebuild(force=True)
    assert re.match(r"\d\d\.\d\d ± \d\.\d\d", capsys.readouterr().out)
