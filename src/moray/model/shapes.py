"""What is known about a model without loading it: shapes, layers, maximum length, quantization."""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from moray.config.schema.models import ScratchModel
from moray.errors import UserError

Shapes = dict[str, tuple[int, ...]]

# The key of `config.json` with the tokens whose embeddings an adapter trains too.
NEW_TOKENS = "new_token_ids"


def weight_files(folder: Path) -> list[Path]:
    """The files of the weights in a Hugging Face folder that transformers loads.

    Others beside them, such as a copy in fp16 or the shards of an earlier version, are left out.

    Raises:
        UserError: if the index of the shards is damaged.
    """
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if not index.is_file():
        return sorted(folder.glob("model*.safetensors"))
    try:
        names = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        raise UserError(
            str(index), f"can't read the index of the weights ({error})", "copy the file again"
        ) from error
    return sorted(file for file in folder.glob("model*.safetensors") if file.name in names)


def shapes_in(folder: Path) -> Shapes:
    """The shapes of the weights in a Hugging Face folder, by name.

    Raises:
        UserError: if a file of weights is damaged.
    """
    shapes: Shapes = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="numpy") as weights:
                for name in weights.keys():  # noqa: SIM118 - it is no mapping
                    shapes[name] = tuple(weights.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise UserError(
                str(file), f"can't read the weights ({error})", "download or copy the file again"
            ) from error
    return shapes


# Methods whose weights `moray.tasks.language.dequantize` replaces by plain ones.
DEQUANTIZABLE = ("fp8", "mxfp4", "bitsandbytes")


def positions_in(config: Path) -> int | None:
    """The maximum number of positions in a model's `config.json`; None if it isn't given.

    Raises:
        UserError: if the file can't be read.
    """
    try:
        return positions_of(_read(config))
    except (ValueError, TypeError, AttributeError) as error:
        raise _unreadable(config, error) from error


def positions_of(config: Mapping[str, Any]) -> int | None:
    """The maximum number of positions in the content of a `config.json`; None if it isn't given.

    With LongRoPE, positions beyond the original maximum change the rotation of all others in a
    micro-batch, so a document's loss would depend on its neighbours. There, that is the maximum.
    """
    text = config.get("text_config") or config
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    keys = ["max_position_embeddings", "n_positions"]
    sections = [text]
    if rope.get("rope_type", rope.get("type")) == "longrope":
        keys = ["original_max_position_embeddings", *keys]
        sections = [rope, text]
    values = (section.get(key) for key in keys for section in sections)
    return next((int(value) for value in values if value), None)


def has_experts(config: Path) -> bool:
    """Whether the model of a `config.json` is a mixture of experts.

    Raises:
        UserError: if the file can't be read.
    """
    content = _read(config)
    keys = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    sections = (content, content.get("text_config") or {})
    counts = [section.get(key) for section in sections for key in keys]
    return any(isinstance(count, int) and count > 1 for count in counts)


def has_new_tokens(config: Path) -> bool:
    """Whether a `config.json` is that of a model which moray added tokens to.

    Raises:
        UserError: if the file can't be read.
    """
    return bool(_read(config).get(NEW_TOKENS))


def quantization_in(config: Path, path: str) -> str | None:
    """The method by which the weights of a `config.json` are quantized; None if they aren't.

    Raises:
        UserError: if `moray.tasks.language.dequantize` can't undo it, or the file can't be read.
    """
    section = _read(config).get("quantization_config")
    if not section:
        return None
    method = section.get("quant_method") if isinstance(section, Mapping) else None
    if method in DEQUANTIZABLE:
        return str(method)
    raise UserError(
        path,
        f"the weights are quantized by {method}, expected plain ones, or one of "
        f"{', '.join(DEQUANTIZABLE)}, which are dequantized",
        "use the model before quantization; adapter.quantize_base: 4bit quantizes it when it is "
        "loaded",
    )


def _read(config: Path) -> dict[str, Any]:
    try:
        content = json.loads(config.read_text())
    except (OSError, ValueError) as error:
        raise _unreadable(config, error) from error
    if not isinstance(content, dict):
        raise _unreadable(config, "it is no mapping")
    return content


def _unreadable(config: Path, error: object) -> UserError:
    return UserError(str(config), f"can't be read as a model config ({error})", "check the folder")


def layers_of(shapes: Shapes) -> set[str]:
    """The last parts of the names of all layers with weights."""
    modules = (name.removesuffix(".weight").removesuffix(".bias") for name in shapes)
    return {module.rpartition(".")[2] for module in modules}


def llama_shapes(section: ScratchModel) -> Shapes:
    """The shapes of the weights of a Llama from scratch, by name."""
    width, inner, vocabulary = (
        section.hidden_size,
        section.intermediate_size,
        section.tokenizer.vocab_size,
    )
    heads = section.num_attention_heads
    keys = width // heads * (section.num_key_value_heads or heads)
    block = {
        "q_proj": (width, width),
        "k_proj": (keys, width),
        "v_proj": (keys, width),
        "o_proj": (width, width),
        "gate_proj": (inner, width),
        "up_proj": (inner, width),
        "down_proj": (width, inner),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    shapes: Shapes = {"embed_tokens": (vocabulary, width), "norm": (width,)}
    for number in range(section.num_hidden_layers):
        shapes |= {f"layers.{number}.{name}": shape for name, shape in block.items()}
    return shapes if section.tie_word_embeddings else shapes | {"lm_head": (vocabulary, width)}


def num_parameters(shapes: Shapes) -> int:
    """Total number of weights."""
    return sum(map(math.prod, shapes.values()))


def num_adapter_parameters(shapes: Shapes, rank: int) -> int:
    """Maximum number of adapter weights of a rank: one adapter per matrix except embeddings."""
    return sum(rank * sum(shape) for shape in _matrices(shapes))


def num_in_linear_layers(shapes: Shapes) -> int:
    """Number of weights in all matrices except embeddings, and in those of experts."""
    return sum(map(math.prod, _matrices(shapes)))


def _matrices(shapes: Shapes) -> Iterator[tuple[int, ...]]:
    outside = ("embed", "lm_head", "wte", "wpe")
    for name, shape in shapes.items():
        if len(shape) == 2 and not any(part in name for part in outside):
            yield shape
        elif len(shape) == 3 and ".experts." in name:
            yield from [shape[1:]] * shape[0]
