"""The losses of runs on labelled texts and on pairs; the sections that only their tasks read."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from moray.config.schema.base import Section, added


class Classification(Section):
    """The loss of runs on datasets with `format: classification`; other runs ignore it."""

    class_weights: Literal["balanced"] | dict[str, Annotated[float, Field(gt=0)]] | None = Field(
        None,
        description="What the loss of a text is multiplied by, by its label, as in `{rare: 5}`; "
        "labels that aren't named have 1. `balanced`: texts / (labels · texts with the label). If "
        "a text can have several labels, the weight is that of having one, and `balanced` is the "
        "texts without it / those with it. Scores don't count them.",
    )


class Reward(Section):
    """The loss of runs on datasets with `format: reward`; other runs ignore it."""

    center_rewards_coefficient: Annotated[float, Field(ge=0)] | None = Field(
        None,
        description="Weight of (chosen + rejected reward)² in the loss of a pair, which keeps "
        "rewards near 0 (Eisenstein et al., 2023); 0.01, for example. Scores count it as well.",
    )


# Losses of pairs without a reference; those whose log-probabilities are means over an answer's
# tokens; and those that can be smoothed.
_WITHOUT_REFERENCE = ("cpo", "simpo", "orpo")
_PER_TOKEN = ("ipo", "sigmoid_norm", "simpo", "orpo")
_GAMMA = 0.5
_SMOOTHED = ("dpo", "robust", "cpo", "simpo")


class Preference(Section):
    """The loss of runs on datasets with `format: preference`; other runs ignore it."""

    loss: Literal["dpo", "ipo", "hinge", "robust", "sigmoid_norm", "cpo", "simpo", "orpo"] = Field(
        "dpo",
        description="Against the log-probabilities of the model that the run starts from, the "
        "reference: `dpo`: Rafailov et al., 2023. `ipo`: Azar et al., 2023, with log-probabilities "
        "averaged over an answer's tokens, as in TRL. `hinge`: SLiC, Zhao et al., 2023. `robust`: "
        "Chowdhury et al., 2024, which needs `label_smoothing`. `sigmoid_norm`: `dpo` with "
        "log-probabilities that are averaged likewise. Without a reference: `cpo`: Xu et al., "
        "2024. `simpo`: Meng et al., 2024. `orpo`: Hong et al., 2024.",
    )
    beta: float = Field(
        0.1,
        gt=0,
        description="KL-penalty coefficient β: how close the model stays to the reference. "
        "Margins are multiplied by it; `ipo` aims at a margin of 1/(2·`beta`) nats per token. "
        "`simpo`'s authors choose 2 to 10; `orpo` multiplies its odds ratio by it, λ in the paper.",
    )
    label_smoothing: float = Field(
        0.0,
        ge=0,
        lt=0.5,
        description="Assumed share of pairs whose answers are swapped (conservative DPO: Mitchell, "
        "2023); with `loss: dpo`, `robust`, `cpo` or `simpo`.",
    )
    simpo_gamma: float = added(
        _GAMMA,
        ge=0,
        description="Margin gamma that `simpo` aims at, after log-probabilities are multiplied.",
    )
    rpo_alpha: float | None = added(
        None,
        ge=0,
        description="Weight of the negative log-likelihood of the chosen answer, a mean over its "
        "tokens, that is added to the loss (Pang et al., 2024). Without a value, 1 for `cpo` and "
        "`orpo`, otherwise 0.",
    )

    @property
    def has_reference(self) -> bool:
        """Whether the loss depends on a reference."""
        return self.loss not in _WITHOUT_REFERENCE

    @property
    def is_per_token(self) -> bool:
        """Whether log-probabilities are means over the tokens of an answer."""
        return self.loss in _PER_TOKEN

    @model_validator(mode="after")
    def _keys_have_an_effect(self) -> Self:
        if self.label_smoothing and self.loss not in _SMOOTHED:
            raise ValueError(
                f"label_smoothing: got {self.label_smoothing:g} with loss: {self.loss}, which has "
                "no smoothing; remove it, or set loss: dpo"
            )
        if self.loss == "robust" and not self.label_smoothing:
            raise ValueError(
                "label_smoothing: got 0 with loss: robust, which is dpo then; set it to 0.1, for "
                "example"
            )
        if self.simpo_gamma != _GAMMA and self.loss != "simpo":
            raise ValueError(
                f"simpo_gamma: got {self.simpo_gamma:g} with loss: {self.loss}, which has no such "
                "margin; remove it, or set loss: simpo"
            )
        return self
