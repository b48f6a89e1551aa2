"""The losses of runs on labelled texts, on answers and with a teacher: sections of their own."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from moray.config.schema.base import PositiveInt, Section, added
from moray.config.schema.start import ModelOrRun


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


class Distillation(Section):
    """A teacher, of whose predictions a run on text learns as well as of its documents."""

    teacher: ModelOrRun = Field(
        description="A name under `models`; or a run, as `{run: NAME}`; or the best of a sweep, as "
        "`{best: NAME}`. Its tokenizer has to be that of the run's model.",
    )
    alpha: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Weight of the Kullback-Leibler divergence of the model from its teacher; the "
        "cross-entropy of the documents has 1 - `alpha`.",
    )
    temperature: float = Field(
        1.0,
        gt=0,
        description="What the logits of both are divided by in the divergence, which is multiplied "
        "by its square (Hinton et al., 2015).",
    )
    top_k: PositiveInt = Field(
        64,
        description="Number of the teacher's likeliest tokens whose probabilities are stored for "
        "each trained token; all others are one class. Each takes 4 bytes, or 6 if the "
        "vocabulary has more than 65,536 tokens.",
    )
    precision: Literal["auto", "bf16", "fp32"] = Field(
        "auto", description="Precision of the teacher; `auto`: bf16 on GPUs, otherwise fp32."
    )


class Kto(Section):
    """The loss of runs on datasets with `format: unpaired-preference`; other runs ignore it."""

    beta: float = Field(
        0.1,
        gt=0,
        description="KL-penalty coefficient β of Kahneman-Tversky optimization (Ethayarajh et al., "
        "2024): how close the model stays to the one that the run starts from, the reference.",
    )
    desirable_weight: float = Field(
        1.0,
        gt=0,
        description="What the losses of good answers are multiplied by. Its authors advise that "
        "`desirable_weight` · good answers is 1 to 4/3 times `undesirable_weight` · bad answers.",
    )
    undesirable_weight: float = Field(
        1.0, gt=0, description="What the losses of bad answers are multiplied by."
    )
