"""The plan of one row: its recipe with the command line's changes, its episodes, its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wdae.config import load, scalar
from wdae.data.splits import load_split
from wdae.errors import RecipeError
from wdae.reproduce.benchmarks import Benchmark, Role, Row
from wdae.reproduce.config import ReproduceRecipe
from wdae.runtime.randomness import derive_seed
from wdae.stage2.config import MetaRecipe

COMPILE_FROM = 5000  # steps: compiling a shorter training takes longer than it saves


@dataclass(frozen=True)
class RowPlan:
    """Everything that a row depends on."""

    benchmark: Benchmark
    row: Row
    role: Role
    recipe: MetaRecipe | None
    options: ReproduceRecipe
    bank_digest: str
    lender: str | None = None

    @property
    def step_origin(self) -> str:
        """Where ε comes from: validation classes, the recipe, or another row."""
        given = self.recipe is not None and self.recipe.evaluation.steps is not None
        return self.lender or ("the recipe" if given else "validation classes")

    @property
    def episodes(self) -> int:
        """Test episodes for each number of shots of the tables."""
        return self.options.episodes or self.benchmark.episodes

    @property
    def shots(self) -> tuple[int, ...]:
        """Numbers of shots of the tables."""
        return self.options.shots or self.benchmark.shots

    @property
    def curve_episodes(self) -> int:
        """Episodes of the plots."""
        return min(self.episodes, self.options.curve_episodes)

    @property
    def measured(self) -> dict[int, int]:
        """Number of shots → episodes: those of the tables, and for rows of the plots those of the plots."""
        asked = dict.fromkeys(self.shots, self.episodes)
        if self.row.curves:
            asked = {
                k: asked.get(k, self.curve_episodes) for k in sorted({*asked, *self.options.curve_shots})
            }
        return asked

    @property
    def seed(self) -> int:
        """Of the test episodes: the same for every row."""
        own = self.options.episode_seed
        return derive_seed(self.options.seed if own is None else own, "test episodes")

    @property
    def split_held_out(self) -> bool:
        """Whether base pictures that ε and balance are fitted on are no test queries."""
        return split_held_out(self.benchmark, self.options)

    @property
    def base_queries(self) -> frozenset[str] | None:
        """The base classes whose pictures are queries; None: all of them."""
        if not self.benchmark.half_of_base:
            return None
        return frozenset(load_split(self.benchmark.name, self.options.reading).base_test)

    def settings(self) -> dict[str, Any]:
        """What must be equal for a finished row to be taken as it is."""
        own = {} if self.recipe is None else self.recipe.model_dump(mode="json", exclude_defaults=True)
        for key in ("device", "compile", "memory_mb"):  # how, not what
            own.pop(key, None)
        return {
            "recipe": own,
            "bank": self.bank_digest,
            "protocol": self.benchmark.protocol,
            "episodes": {str(k): n for k, n in self.measured.items()},
            "ways": self.options.ways,
            "queries": self.options.queries,
            "seed": self.options.seed,
            **({} if self.options.episode_seed is None else {"episode_seed": self.options.episode_seed}),
            **({"split_held_out": True} if self.split_held_out else {}),
            **({"reading": self.options.reading} if self.benchmark.half_of_base else {}),
            **({"curve_episodes": self.curve_episodes} if self.row.curves else {}),
        }


def split_held_out(benchmark: Benchmark, options: ReproduceRecipe) -> bool:
    """What the command line says of the held-out base pictures, or the benchmark."""
    return benchmark.split_held_out if options.split_held_out is None else options.split_held_out


def row_recipe(file: Path, plan: RowPlan, steps: Mapping[int, float] | None) -> MetaRecipe:
    """The recipe of a row with the command line's changes; ``steps`` are another row's ε."""
    options = plan.options
    changes: dict[str, Any] = {
        "seed": options.seed,
        "device": options.device,
        "precision": options.precision,
        "evaluation.shots": list(plan.measured),
        "evaluation.split_held_out": plan.split_held_out,
    }
    if plan.benchmark.protocol == "few-way":
        changes |= {"evaluation.ways": options.ways, "evaluation.queries": options.queries}
    changes |= parse_changes(options.stage2, "--stage2")
    if steps is not None:
        changes["evaluation.steps"] = {str(k): v for k, v in steps.items()}
    recipe = load(MetaRecipe, file, changes)
    if recipe.compile is None and recipe.training.steps < COMPILE_FROM:
        recipe = recipe.model_copy(update={"compile": False})
    return recipe


def parse_changes(words: tuple[str, ...], option: str) -> dict[str, Any]:
    """``key=value`` words as overrides, values written as in YAML."""
    changes: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key:
            raise RecipeError(
                f"{option} takes KEY=VALUE, got {word!r}; for example {option} training.steps=100"
            )
        changes[key.strip()] = scalar(value.strip())
    return changes
