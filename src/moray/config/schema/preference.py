"""Settings of runs on preference datasets."""

from typing import Literal, Self

from pydantic import Field, model_validator

from moray.config.schema.base import Section


class Preference(Section):
    """The loss of runs on datasets with `format: preference`; other runs ignore it."""

    loss: Literal["dpo", "ipo"] = Field(
        "dpo",
        description="`dpo`: Rafailov et al., 2023. `ipo`: Azar et al., 2023, with "
        "log-probabilities averaged over an answer's tokens, as in TRL.",
    )
    beta: float = Field(
        0.1,
        gt=0,
        description="KL-penalty coefficient β: how close the model stays to the reference. "
        "Margins are multiplied by it; `ipo` aims at a margin of 1/(2·`beta`) nats per token.",
    )
    label_smoothing: float = Field(
        0.0,
        ge=0,
        lt=0.5,
        description="Assumed share of pairs whose answers are swapped (conservative DPO: Mitchell, "
        "2023); only with `loss: dpo`.",
    )

    @model_validator(mode="after")
    def _smoothing_has_an_effect(self) -> Self:
        if self.label_smoothing and self.loss != "dpo":
            raise ValueError(
                f"label_smoothing: got {self.label_smoothing:g} with loss: {self.loss}, which has "
                "no smoothing; remove it, or set loss: dpo"
            )
        return self
