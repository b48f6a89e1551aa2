"""Sweeps: one run of the config that stands for several, which differ in a few keys."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

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
