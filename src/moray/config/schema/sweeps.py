"""Sweeps, which are one run of the config that stands for several, and searches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Discriminator, Field, Tag, model_validator

from moray.config.schema.base import PositiveInt, Section

DottedKey = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$")]
Seeds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class Grid(Section):
    """What makes a run a sweep."""

    grid: dict[DottedKey, Annotated[list[Any], Field(min_length=1)]] | None = Field(
        None,
        description="Makes one run for each combination of values; dotted keys of the run with "
        "lists of values, as in `{train.learning_rate: [1e-4, 3e-4]}`. The runs are named after "
        "their values.",
    )
    seeds: PositiveInt | Seeds | None = Field(
        None,
        description="Makes one run for each `train.seed`: a list, or a number for so many, from 0.",
    )


@dataclass(frozen=True)
class Member:
    """One run of a sweep.

    Attributes:
        setting: its name without the seed; equal for runs that differ only in their seed.
        values: what it takes from the grid, by dotted key.
        seed: what it takes from `seeds`; None without them.
    """

    setting: str
    values: dict[str, Any]
    seed: int | None


Sweep = dict[str, Member]
"""The runs of a sweep, by name."""


class Range(Section):
    """Numbers between two bounds; whole ones if the key takes whole numbers."""

    low: float = Field(description="Smallest value.")
    high: float = Field(description="Largest value.")
    log: bool = Field(
        False, description="Whether values are drawn evenly by their logarithm; for learning rates."
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.low >= self.high:
            raise ValueError(
                f"high: got {self.high:g}, expected more than low ({self.low:g}); raise it"
            )
        if self.log and self.low <= 0:
            raise ValueError(
                f"low: got {self.low:g}, expected more than 0 with log: true; raise it"
            )
        return self


def _kind(written: Any) -> str:
    return "Range" if isinstance(written, Mapping | Range) else "list"


Values = Annotated[
    Annotated[Range, Tag("Range")] | Annotated[list[Any], Field(min_length=1), Tag("list")],
    Discriminator(_kind),
]


class Search(Section):
    """A search for the settings of a run with the lowest validation loss."""

    trials: PositiveInt = Field(
        description="Number of trainings. With a greater one, a search continues."
    )
    seed: int = Field(0, ge=0, description="Seed for the choice of values.")
    space: Annotated[dict[DottedKey, Values], Field(min_length=1)] = Field(
        description="What to choose from, by dotted key of the run's `train`, `adapter` or "
        "`data.augmentation`: a range, as in `{train.learning_rate: {low: 1e-4, high: 1e-2}}`, or "
        "a list of values."
    )
