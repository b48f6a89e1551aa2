"""What a run starts from, or has as its teacher: a base model, or the model of another run."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from moray.config.schema.base import Name, RunName, Section


class RunRef(Section):
    """The exported model of another run."""

    run: RunName = Field(description="The run whose model it is.")


class BestRef(Section):
    """The model of the run of a sweep with the lowest loss on the validation split."""

    best: Name = Field(
        description="Name of the sweep: of a run with `grid` or `seeds`. Of equal runs, the first "
        "by name is taken."
    )


def _kind_of_start(written: Any) -> str:
    names_best = isinstance(written, BestRef) or (
        isinstance(written, Mapping) and "best" in written
    )
    return "BestRef" if names_best else "RunRef"


Start = Annotated[
    Annotated[RunRef, Tag("RunRef")] | Annotated[BestRef, Tag("BestRef")],
    Discriminator(_kind_of_start),
]

ModelOrRun = Name | Start
