"""How a model is trained: its loss, its optimizer, and what of it is trained."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from moray.config.schema.base import (
    Fraction,
    PositiveInt,
    Section,
    Seed,
    UserPath,
    added,
    execution_only,
)
from moray.config.schema.strategies import FSDP2, DeepSpeed, StrategyName

OptimizerName = Literal["adamw", "adamw_8bit", "muon", "adafactor"]

# Enough for the cores of a CPU.
MICRO_BATCH_SIZE = 8


class Profile(Section):
    """A profile by PyTorch's profiler."""

    steps: PositiveInt = execution_only(3, description="Number of steps to profile.")


class Train(Section):
    """How a run is trained."""

    strategy: StrategyName = execution_only(
        "ddp",
        description="How parameters, gradients and optimizer state are distributed over the "
        "workers. `ddp`: each worker has all of them. `fsdp2`, `deepspeed`: each worker has a "
        "shard.",
    )
    fsdp2: FSDP2 = execution_only(FSDP2(), description="Settings for `strategy: fsdp2`.")
    deepspeed: DeepSpeed = execution_only(
        DeepSpeed(), description="Settings for `strategy: deepspeed`."
    )
    launcher: Literal["ray", "torchrun"] = execution_only(
        "ray",
        description="What starts the workers. `torchrun`: PyTorch's elastic agent, on this "
        "machine only, without Ray; the settings in `ray` for workers, failures and storage "
        "still apply.",
    )
    runtime: PositiveInt = execution_only(
        1440,
        description="Minutes that the training's job has where another program starts it, such as "
        "Slurm. If it needs more, the next try resumes it.",
    )
    mem_mb: Literal["auto"] | PositiveInt = execution_only(
        "auto",
        description="MB of memory that this job asks for. `auto`: by the strategy, the number of "
        "workers and the size of the model.",
    )
    num_epochs: float = Field(
        1.0,
        gt=0,
        description="Passes over the rows of the train split; a row can have several documents.",
    )
    max_steps: PositiveInt | None = Field(
        None, description="Number of optimizer steps; overrides `num_epochs` if set."
    )
    global_batch_size: PositiveInt = Field(
        16, description="Rows per optimizer step, over all workers."
    )
    micro_batch_size: Literal["auto"] | PositiveInt = execution_only(
        "auto",
        description="Maximum number of rows in a worker's forward pass. `auto`: on a GPU, as many "
        "as fit into its memory by the plan of `moray plan`; otherwise, and for images, 8.",
    )
    optimizer: OptimizerName = added(
        "adamw",
        description="`adamw`: AdamW (Loshchilov and Hutter, 2019), whose two moments take 8 bytes "
        "for each trained weight. `adamw_8bit`: in 8 bits, they take 2 (Dettmers et al., 2022); "
        "needs the optional `qlora` extra. `muon`: PyTorch's Muon (Jordan et al., 2024) for the "
        "matrices of blocks, 4 bytes for each weight, and AdamW for the rest, at the same "
        "`learning_rate` (Liu et al., 2025). `adafactor`: PyTorch's Adafactor (Shazeer and Stern, "
        "2018), next to nothing; its rate is relative to the size of the weights, so it needs a "
        "higher one, such as 1e-2. All but `adamw` need `strategy: ddp` or `fsdp2`.",
    )
    weights: Literal["fp32", "bf16"] = added(
        "fp32",
        description="Data type of the trained weights. `bf16`: they and their gradients take 4 "
        "bytes for each weight instead of 8. A step is computed in fp32 and rounded stochastically "
        "(Gupta et al., 2015). Needs `strategy: ddp` or `fsdp2`, and no `adapter`; computes in "
        "bf16.",
    )
    learning_rate: float = Field(5e-5, gt=0, description="Peak learning rate.")
    lr_scheduler_type: Literal["cosine", "linear", "constant", "wsd"] = Field(
        "cosine",
        description="Learning rate schedule after the warm-up. `wsd`: constant, then linear "
        "decay over the last `decay_ratio` of the steps.",
    )
    warmup_ratio: Fraction = Field(0.03, description="Share of the steps used for the warm-up.")
    decay_ratio: float = Field(
        0.2, gt=0, le=1, description="Share of the steps over which `wsd` decays."
    )
    min_lr_ratio: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Final learning rate of `cosine`, `linear` and `wsd`, as a share of "
        "`learning_rate`.",
    )
    weight_decay: float = Field(
        0.1,
        ge=0,
        description="Weight decay for matrices; norms and biases are not decayed.",
    )
    adam_beta1: Fraction = Field(
        0.9, description="AdamW's decay rate for the mean of the gradient."
    )
    adam_beta2: Fraction = Field(
        0.95, description="AdamW's decay rate for the mean of the squared gradient."
    )
    loraplus_lr_ratio: Annotated[float, Field(gt=0)] | None = added(
        None,
        description="LoRA+ (Hayou et al., 2024): the learning rate of the matrices `B` of an "
        "adapter is so many times `learning_rate`.",
    )
    router_aux_loss: bool | Annotated[float, Field(gt=0)] = added(
        False,
        description="Whether to add the load-balancing loss of a mixture of experts (Fedus et al., "
        "2022) in training, as transformers does with `output_router_logits`. A number: its "
        "coefficient, instead of `router_aux_loss_coef` in the model's config. It is over all "
        "tokens of a step; if a worker has several micro-batches, another forward pass counts the "
        "choices of experts before.",
    )
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this norm.")
    precision: Literal["auto", "bf16", "fp32"] = Field(
        "auto",
        description="Precision of the forward pass. `auto`: bf16 if the processor supports it, or "
        "with `weights: bf16`.",
    )
    compile: Literal["auto"] | bool = execution_only(
        "auto",
        description="Whether to compile the model. `auto`: if a compiler is installed "
        "and the run is long enough to make up for the compile time.",
    )
    attention: Literal["auto", "sdpa", "eager", "varlen", "flex"] = execution_only(
        "auto",
        description="How attention is computed; results differ by rounding. `sdpa`: PyTorch's "
        "`scaled_dot_product_attention`. `eager`: plain matrix products. `varlen`: PyTorch's "
        "`varlen_attn`. `flex`: PyTorch's compiled `flex_attention`. The last two need no mask "
        "for every pair of tokens, and run only on GPUs. `auto`: on GPUs, `varlen` if the model "
        "allows it; on a CPU, `eager` if blocks are compiled and rows have at most 512 tokens; "
        "otherwise `sdpa`.",
    )
    deterministic: bool = Field(
        False,
        description="Whether to use only deterministic algorithms on a GPU, so that the same "
        "run on the same machine produces the same bytes; slower. CPUs are always deterministic.",
    )
    gradient_checkpointing: bool | Literal["offload"] = execution_only(
        False,
        description="Whether to recompute a block's activations in the backward pass: much less "
        "memory, a third more computation. `offload`: the blocks' inputs, from which they are "
        "recomputed, are kept in main memory.",
    )
    seed: Seed = Field(0, description="Seed for the sample order and for dropout.")
    logging_steps: Literal["auto"] | PositiveInt = Field(
        "auto",
        description="Steps between lines in the history. `auto`: 10, or as many as give a shorter "
        "run 20 lines.",
    )
    eval_steps: PositiveInt = Field(
        100, description="Steps between evaluations on the validation split."
    )
    eval_rows: PositiveInt = Field(
        64,
        description="Number of validation rows to score: a random sample, the same at every "
        "evaluation and in every run on the same tokens.",
    )
    early_stopping_patience: PositiveInt | None = Field(
        None,
        description="Stop the run after this many evaluations in a row without a lower "
        "validation loss. By default, the run continues to its last step.",
    )
    load_best_model_at_end: bool = Field(
        False,
        description="Whether to export the model with the lowest validation loss instead of the "
        "last one. A warning says if an earlier step was 1 % better than the last one, or the "
        "start of the run better than every step.",
    )
    stall_timeout: float = execution_only(
        1800.0,
        gt=0,
        description="Seconds without a step after which a worker counts as hung; its stack "
        "traces are then written to the log. Start-up and compilation count as a step.",
    )
    save_steps: PositiveInt = execution_only(100, description="Steps between checkpoints.")
    save_total_limit: PositiveInt = execution_only(
        2, description="Number of newest checkpoints to keep, besides the best one."
    )
    profile: Profile | None = execution_only(
        None,
        description="Profile a few steps, from the third one of the process on, which are slower "
        "then. Each worker writes `results/state/RUN/FINGERPRINT/profile/worker-RANK.json.gz`, "
        "which Perfetto and Chrome's tracer open.",
    )
    resume_from_checkpoint: UserPath | None = added(
        None,
        description="Checkpoint with another fingerprint to continue from, "
        "`results/state/RUN/FINGERPRINT/checkpoints/step-NNNNNNNN`. The run continues at its "
        "step with its optimizer state, whatever else has changed; the names and shapes of the "
        "trained tensors must be the same. Without the key, it is another run, which starts at "
        "step 0.",
    )

    @property
    def micro_batch_rows(self) -> int:
        """`micro_batch_size`; for `auto`, before it is known what fits, that of CPUs."""
        return MICRO_BATCH_SIZE if self.micro_batch_size == "auto" else self.micro_batch_size

    @model_validator(mode="after")
    def _fits_into_the_run(self) -> Self:
        if self.lr_scheduler_type == "wsd" and self.warmup_ratio + self.decay_ratio > 1:
            raise ValueError(
                f"decay_ratio: got {self.decay_ratio:g} with warmup_ratio "
                f"{self.warmup_ratio:g}, expected a sum of at most 1; lower one of them"
            )
        return self


_STARTS = re.compile(r"gaussian|orthogonal|olora|pissa(_niter_[1-9]\d*)?")
# PEFT's others.
_NO_STARTS = {
    "loftq": "which begins from weights in 4 bits that PEFT makes of a base by itself",
    **dict.fromkeys(("eva", "corda", "lora_ga"), "which begins from a pass over data of its own"),
}


def _fault_of(expression: str) -> str | None:
    """What is wrong with a regular expression; None if nothing is."""
    try:
        re.compile(expression)
    except re.error as error:
        return str(error)
    return None


_INPUT_EMBEDDINGS = {"embed_tokens", "embed_in", "wte", "word_embeddings"}
_OUTPUT_EMBEDDINGS = {"lm_head", "embed_out"}


class Adapter(Section):
    """LoRA: trains small matrices added to the frozen base. Source: Hu et al., 2021."""

    rank: PositiveInt = Field(8, description="Rank of the added matrices.")
    alpha: float = Field(
        16.0,
        gt=0,
        description="The adapter's output is scaled by `alpha / rank`; see `use_rslora`.",
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Dropout on the adapter's input; those of experts, which PEFT adapts as "
        "parameters, have none.",
    )
    target_modules: str | Annotated[list[str], Field(min_length=1)] = Field(
        "all-linear",
        description="Names, or ends of names, of the layers to adapt; or a regular expression for "
        "whole paths, such as `.*self_attn.*`. `all-linear`: all linear "
        "layers except the output embedding, routers, and layers of which an architecture's code "
        "uses the weights alone; of mixtures of experts, also the experts where PEFT takes them "
        "for linear layers. `gate_proj`, `up_proj` and `down_proj` stand for those of the experts "
        "too, which don't take `use_dora`.",
    )
    use_rslora: bool = Field(
        False,
        description="Whether to scale by `alpha / sqrt(rank)` instead. Source: Kalajdzievski, "
        "2023.",
    )
    use_dora: bool = Field(
        False,
        description="Whether to train the magnitudes of the base's weight columns too. Source: "
        "Liu et al., 2024.",
    )
    init_lora_weights: str | None = added(
        None,
        description="How the added matrices begin, by PEFT's names; by default, one is random and "
        "the other zero. `gaussian`, `orthogonal` (an even rank): other random ones. `pissa` (Meng "
        "et al., 2024), `pissa_niter_N` (N steps of a faster decomposition), `olora` "
        "(Büyükakyüz, 2024): from the base's weights, of which they are taken away; not for "
        "experts, `use_dora` or `quantize_base`. Adapters of these are exported with twice the "
        "rank, for the original base.",
    )
    modules_to_save: Annotated[list[str], Field(min_length=1)] | None = added(
        None,
        description="Names, or ends of names, of modules that are trained whole beside the "
        "adapter, such as `embed_tokens` and `lm_head`.",
    )
    layers_to_transform: Annotated[list[NonNegativeInt], Field(min_length=1)] | None = added(
        None, description="Numbers of the blocks to adapt, from 0; by default, all of them."
    )
    rank_pattern: dict[str, PositiveInt] | None = added(
        None,
        description="Other ranks, by names, ends of names or regular expressions of layers.",
    )
    alpha_pattern: dict[str, Annotated[float, Field(gt=0)]] | None = added(
        None,
        description="Other values of `alpha`, by names, ends of names or regular expressions of "
        "layers.",
    )
    target_parameters: Annotated[list[str], Field(min_length=1)] | None = added(
        None,
        description="Ends of names of parameters to adapt that aren't those of layers, such as "
        "`mlp.experts.gate_up_proj`, besides `target_modules`.",
    )
    trainable_token_indices: Annotated[list[NonNegativeInt], Field(min_length=1)] | None = added(
        None,
        description="Ids of tokens whose embeddings are trained too, beside those of "
        "`models.NAME.new_tokens`. Needs `strategy: ddp`.",
    )
    create_new_adapter: bool = added(
        True,
        description="`false`: keep training the adapter that the run's start was exported as "
        "(`model: {run: NAME}`, with `export.merge_adapter: false` there), instead of adding a new "
        "one on top of it. The optimizer starts fresh.",
    )
    base_dtype: Literal["fp32", "bf16"] = Field(
        "fp32",
        description="Data type of the frozen base's weights during training. `bf16` halves "
        "their memory and computes in bf16; the adapter stays in fp32.",
    )
    quantize_base: Literal["4bit", "8bit"] | None = Field(
        None,
        description="`4bit`: keep the linear layers of the frozen base, and its experts, in 4-bit "
        "NormalFloat (QLoRA, Dettmers et al., 2023), which needs the optional `qlora` extra. "
        "`8bit`: linear layers in 8-bit integers with a scale for each row, which needs no other "
        "library; not for mixtures of experts. Other weights are in "
        "`base_dtype`. Both need `strategy: ddp` or `fsdp2`.",
    )

    @property
    def names_modules(self) -> bool:
        """Whether it has keys that only the model can be asked about, by names of its modules."""
        names = self.modules_to_save, self.rank_pattern, self.alpha_pattern
        numbers = self.layers_to_transform, self.target_parameters
        is_expression = isinstance(self.target_modules, str) and self.target_modules != "all-linear"
        return is_expression or any((*names, *numbers))

    @property
    def trains_embeddings(self) -> bool:
        """Whether input and output embeddings are trained whole, by the names that most have."""
        saved = {*(self.modules_to_save or ())}
        return bool(saved & _INPUT_EMBEDDINGS and saved & _OUTPUT_EMBEDDINGS)

    @property
    def changes_base(self) -> bool:
        """Whether its start is taken away from the base's weights."""
        return self.init_lora_weights is not None and self.init_lora_weights.startswith(
            ("pissa", "olora")
        )

    @model_validator(mode="after")
    def _can_begin(self) -> Self:
        start, name = f"init_lora_weights: {self.init_lora_weights}", self.init_lora_weights
        if name is not None and not _STARTS.fullmatch(name):
            reason = f" {_NO_STARTS[name]}," if name in _NO_STARTS else ""
            raise ValueError(
                f"init_lora_weights: got {name},{reason} expected gaussian, orthogonal, pissa, "
                "pissa_niter_N or olora; change it, or remove it"
            )
        if self.changes_base and (self.use_dora or self.quantize_base):
            other = "use_dora" if self.use_dora else "quantize_base"
            raise ValueError(f"{start} can't be combined with {other}; remove one of them")
        if isinstance(self.target_modules, str) and (fault := _fault_of(self.target_modules)):
            raise ValueError(
                f"target_modules: got {self.target_modules}, expected all-linear, a list of names "
                f"or a regular expression ({fault}); correct it"
            )
        if self.layers_to_transform and isinstance(self.target_modules, str):
            raise ValueError(
                f"layers_to_transform: got it with target_modules: {self.target_modules}, expected "
                "a list of names; name the layers"
            )
        ranks = [self.rank, *(self.rank_pattern or {}).values()]
        if self.init_lora_weights == "orthogonal" and any(rank % 2 for rank in ranks):
            raise ValueError(f"{start} needs even ranks, got {ranks}; change them")
        return self
