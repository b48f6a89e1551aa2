"""Tiny random models of many architectures, by whether documents may share their rows."""

from collections.abc import Callable

import torch
import transformers as hf
from transformers import AutoModelForCausalLM, PreTrainedModel

VOCABULARY = 320
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_ROTARY = {**_SIZES, "intermediate_size": 48, "num_key_value_heads": 2}
_TOKENS = {"bos_token_id": 0, "eos_token_id": 0}
_NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    **_TOKENS,
    **_NO_DROPOUT,
}

Config = Callable[[], hf.PretrainedConfig]
PACKED: dict[str, Config] = {
    "Llama": lambda: hf.LlamaConfig(**_ROTARY),
    "Qwen2": lambda: hf.Qwen2Config(**_ROTARY),
    "Qwen3": lambda: hf.Qwen3Config(**_ROTARY, head_dim=8),
    "Mistral": lambda: hf.MistralConfig(**_ROTARY, sliding_window=16),
    "Mixtral": lambda: hf.MixtralConfig(**_ROTARY, num_local_experts=4),
    "Gemma 2": lambda: hf.Gemma2Config(**_ROTARY, head_dim=8),
    "Gemma 3 with images": lambda: hf.Gemma3Config(
        text_config={**_ROTARY, "head_dim": 8, "model_type": "gemma3_text"},
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        mm_tokens_per_image=4,
        image_token_id=VOCABULARY - 1,
        boi_token_id=VOCABULARY - 3,
        eoi_token_id=VOCABULARY - 2,
    ),
    "Phi": lambda: hf.PhiConfig(**_ROTARY),
    "GPT-2": lambda: hf.GPT2Config(**_GPT2),
    "GPT-NeoX": lambda: hf.GPTNeoXConfig(**_SIZES, intermediate_size=48),
    "GPTBigCode": lambda: hf.GPTBigCodeConfig(**_GPT2),
    "CodeGen": lambda: hf.CodeGenConfig(**_GPT2, rotary_dim=4),
}
UNPACKED: dict[str, Config] = {
    "OPT": lambda: hf.OPTConfig(**_SIZES, ffn_dim=48, word_embed_proj_dim=32, dropout=0.0),
    "BLOOM": lambda: hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4),
    "MPT": lambda: hf.MptConfig(
        vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4, max_seq_len=64
    ),
    "Mamba": lambda: hf.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4
    ),
}
# Their convolutions and states go on from document to document, which attention doesn't.
HYBRID: dict[str, Config] = {
    "LFM2": lambda: hf.Lfm2Config(**_ROTARY, layer_types=["conv", "full_attention"]),
    "Falcon-H1": lambda: hf.FalconH1Config(
        **_ROTARY,
        mamba_d_ssm=32,
        mamba_n_heads=4,
        mamba_d_head=8,
        mamba_n_groups=1,
        mamba_d_state=8,
    ),
    "Qwen3-Next": lambda: hf.Qwen3NextConfig(
        **_ROTARY,
        head_dim=8,
        layer_types=["linear_attention", "full_attention"],
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
}


def build(config: hf.PretrainedConfig) -> PreTrainedModel:
    """The model of a config, in fp32, with weights large enough that attention is sharp."""
    config.initializer_range = config.get_text_config().initializer_range = 0.3
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval()
