"""The optimisation, and how it is spread over workers."""

from typing import Literal, Self

from pydantic import Field, model_validator

from moray.config.schema.base import Fraction, PositiveInt, Section, execution_only


class FSDP2(Section):
    """PyTorch's fully sharded data parallel: each worker holds a share of every tensor."""

    reshard_after_forward: bool = execution_only(
        True,
        description="Whether a block's parameters are given back after its forward pass and "
        "gathered again for the backward pass: less memory, more traffic.",
    )
    cpu_offload: bool = execution_only(
        False, description="Whether parameters, gradients and optimizer state stay in main memory."
    )


class DeepSpeed(Section):
    """DeepSpeed's ZeRO. Needs the optional `deepspeed` extra."""

    zero_stage: Literal[1, 2, 3] = execution_only(
        2,
        description="What is spread over the workers: optimizer state (1), gradients too (2), "
        "parameters too (3).",
    )
    offload_optimizer: bool = execution_only(
        False, description="Whether the optimizer's state stays in main memory."
    )
    offload_parameters: bool = execution_only(
        False, description="Whether parameters stay in main memory; for `zero_stage: 3`."
    )

    @model_validator(mode="after")
    def _parameters_are_spread(self) -> Self:
        if self.offload_parameters and self.zero_stage != 3:
            raise ValueError(
                f"offload_parameters: got true with zero_stage: {self.zero_stage}, expected "
                "zero_stage: 3, which alone spreads parameters; change either"
            )
        return self


class Train(Section):
    """The optimisation: what a step is and how many there are."""

    strategy: Literal["ddp", "fsdp2", "deepspeed"] = execution_only(
        "ddp",
        description="How parameters, gradients and optimizer state are spread over the workers. "
        "`ddp`: each holds all of them. `fsdp2`, `deepspeed`: each holds a share.",
    )
    fsdp2: FSDP2 = execution_only(FSDP2(), description="For `strategy: fsdp2`.")
    deepspeed: DeepSpeed = execution_only(DeepSpeed(), description="For `strategy: deepspeed`.")
    launcher: Literal["ray", "torchrun"] = execution_only(
        "ray",
        description="Who starts the workers. `torchrun`: PyTorch's elastic agent, on this machine "
        "alone, without Ray; what `ray` says of workers, failures and storage holds for it too.",
    )
    num_epochs: float = Field(1.0, gt=0, description="Passes over the train split.")
    max_steps: PositiveInt | None = Field(
        None, description="Optimizer steps; overrides `num_epochs` where given."
    )
    global_batch_size: PositiveInt = Field(
        16, description="Rows in an optimizer step, over all workers."
    )
    micro_batch_size: PositiveInt = execution_only(
        8, description="Rows that a worker holds in one forward pass, at most."
    )
    learning_rate: float = Field(5e-5, gt=0, description="Peak learning rate.")
    lr_scheduler_type: Literal["cosine", "linear", "constant", "wsd"] = Field(
        "cosine",
        description="Course of the learning rate after the warm-up. `wsd`: constant, then down "
        "linearly in the last `decay_ratio` of the steps.",
    )
    warmup_ratio: Fraction = Field(
        0.03, description="Share of the steps with a rising learning rate."
    )
    decay_ratio: float = Field(
        0.2, gt=0, le=1, description="Share of the steps in which `wsd` goes down."
    )
    min_lr_ratio: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Where `cosine`, `linear` and `wsd` end, as a share of `learning_rate`.",
    )
    weight_decay: float = Field(
        0.1, ge=0, description="AdamW's decay of weight matrices; vectors are not decayed."
    )
    adam_beta1: Fraction = Field(0.9, description="AdamW's decay of the gradient's mean.")
    adam_beta2: Fraction = Field(0.95, description="AdamW's decay of the squared gradient's mean.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are scaled to this norm.")
    precision: Literal["auto", "bf16", "fp32"] = Field(
        "auto",
        description="Arithmetic of the forward pass; weights are always fp32. `auto`: bf16 where "
        "the processor computes in it.",
    )
    compile: Literal["auto"] | bool = execution_only(
        "auto",
        description="Whether transformer blocks are compiled. `auto`: where a compiler is there "
        "and the run is long enough to earn the seconds that it takes.",
    )
    attention: Literal["auto", "sdpa", "eager", "varlen", "flex"] = execution_only(
        "auto",
        description="How attention is computed; the result differs by rounding. `sdpa`: PyTorch's "
        "`scaled_dot_product_attention`. `eager`: plain matrix products. `varlen`: PyTorch's "
        "`varlen_attn`, and `flex`: its compiled `flex_attention`, both without a mask of every "
        "pair of tokens, on GPUs alone (not tried yet). `auto`: `sdpa`; on a CPU `eager` where "
        "blocks are compiled and rows have at most 512 tokens.",
    )
    deterministic: bool = Field(
        False,
        description="Whether a GPU computes with deterministic algorithms alone, so that the same "
        "run on the same machine gives the same bytes; slower (not tried yet). CPUs always do.",
    )
    gradient_checkpointing: bool = execution_only(
        False,
        description="Whether the backward pass makes a block's inner states anew: much less "
        "memory, a third more work.",
    )
    seed: int = Field(0, ge=0, description="Seed of the sample order and of dropout.")
    logging_steps: PositiveInt = Field(10, description="Steps between lines of the history.")
    eval_steps: PositiveInt = Field(
        100, description="Steps between evaluations on the validation split."
    )
    eval_rows: PositiveInt = Field(
        64,
        description="Rows of the validation split that are scored: a random sample, the same at "
        "every evaluation and in every run on the same tokens.",
    )
    early_stopping_patience: PositiveInt | None = Field(
        None,
        description="Evaluations in a row without a lower validation loss that end the run; it "
        "goes to its last step unless given.",
    )
    load_best_model_at_end: bool = Field(
        False,
        description="Whether the model of the lowest validation loss is exported, not the last.",
    )
    stall_timeout: float = execution_only(
        1800.0,
        gt=0,
        description="Seconds without a step after which a worker counts as hung; its stacks are "
        "in the log then. Starting and compiling count as a step.",
    )
    save_steps: PositiveInt = execution_only(100, description="Steps between checkpoints.")
    save_total_limit: PositiveInt = execution_only(
        2, description="Newest checkpoints that are kept, besides the best."
    )

    resume_from_checkpoint: str | None = execution_only(
        None,
        description="Checkpoint of another fingerprint to continue from, "
        "`results/state/RUN/FINGERPRINT/checkpoints/step-NNNNNNNN`: the run goes on at its step "
        "and with its optimizer state, whatever has changed since; the names and shapes of the "
        "trained tensors must be the same. Not used once the run has a later checkpoint of its "
        "own.",
    )

    @model_validator(mode="after")
    def _fits_into_the_run(self) -> Self:
        if self.lr_scheduler_type == "wsd" and self.warmup_ratio + self.decay_ratio > 1:
            raise ValueError(
                f"decay_ratio: got {self.decay_ratio:g} beside warmup_ratio "
                f"{self.warmup_ratio:g}, expected at most 1 in all; lower either"
            )
        return self
