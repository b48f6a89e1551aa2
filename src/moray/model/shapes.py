"""Facts about a model that are known without loading it: shapes, layers, maximum length."""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from moray.config.schema.models import ScratchModel
from moray.errors import UserError

Shapes = dict[str, tuple[int, ...]]


def shapes_in(folder: Path) -> Shapes:
    """The shapes of the weights in a Hugging Face folder, by name.

    Raises:
        UserError: if a file of weights is damaged.
    """
    shapes: Shapes = {}
    # Other files, which transformers doesn't load, may contain the same weights by other names.
    for file in sorted(folder.glob("model*.safetensors")):
        try:
            with safe_open(file, framework="numpy") as weights:
                for name in weights.keys():  # noqa: SIM118 - it is no mapping
                    shapes[name] = tuple(weights.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise UserError(
                str(file), f"can't read the weights ({error})", "download or copy the file again"
            ) from error
    return shapes


def positions_in(config: Path) -> int | None:
    """The maximum number of positions in a model's `config.json`; None if it isn't given.

    Raises:
        UserError: if the file can't be read.
    """
    try:
        whole = json.loads(config.read_text())
        text = whole.get("text_config") or whole
        found = (text.get(key) for key in ("max_position_embeddings", "n_positions"))
        return next((int(value) for value in found if value), None)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            str(config), f"can't be read as a model config ({error})", "check the folder"
        ) from error


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
    """Number of weights in all matrices except embeddings."""
    return sum(map(math.prod, _matrices(shapes)))


def _matrices(shapes: Shapes) -> Iterator[tuple[int, ...]]:
    outside = ("embed", "lm_head", "wte", "wpe")
    for name, shape in shapes.items():
        if len(shape) == 2 and not any(part in name for part in outside):
            yield shape
