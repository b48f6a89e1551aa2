"""Tiny random models of many architectures, by whether documents may share their rows."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
import transformers as hf
from transformers import AutoModelForCausalLM, PreTrainedModel

VOCABULARY = 320
# Those of them that a config has are set in it. Windows are shorter than documents.
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "sliding_window": 16,
    "rotary_dim": 4,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_chunk_size": 16,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
    **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
    **dict.fromkeys(("dropout", "attention_dropout", "residual_dropout"), 0.0),
}
_SLIDING = ["sliding_attention", "full_attention"]
_LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "patch_size": 14,
}
# The last two layers take the keys and values of the two before them.
_SHARING = {
    "num_hidden_layers": 4,
    "layer_types": _SLIDING * 2,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
}

Config = Callable[[], hf.PretrainedConfig]


def _of(kind: type[hf.PretrainedConfig], **keys: Any) -> Config:
    """Common sizes, and those that only this architecture has."""
    known = {field.name for field in fields(kind)} | kind.attribute_map.keys()
    return lambda: kind(**{key: _COMMON[key] for key in _COMMON if key in known} | keys)


PACKED: dict[str, Config] = {
    "Llama": _of(hf.LlamaConfig),
    "Llama 4": _of(
        hf.Llama4TextConfig,
        attention_chunk_size=16,
        intermediate_size_mlp=48,
        layer_types=["chunked_attention", "full_attention"],
        no_rope_layers=[1, 0],
    ),
    "Qwen2": _of(hf.Qwen2Config),
    "Qwen2-MoE": _of(hf.Qwen2MoeConfig, shared_expert_intermediate_size=16),
    "Qwen3": _of(hf.Qwen3Config),
    "Qwen3-MoE": _of(hf.Qwen3MoeConfig),
    "Mistral": _of(hf.MistralConfig),
    "Ministral": _of(hf.MinistralConfig, layer_types=_SLIDING),
    "Ministral 3": _of(hf.Ministral3Config),
    "Mixtral": _of(hf.MixtralConfig),
    "Gemma": _of(hf.GemmaConfig),
    "Gemma 2": _of(hf.Gemma2Config),
    "Gemma 3": _of(hf.Gemma3TextConfig, layer_types=_SLIDING),
    "Gemma 3 with images": lambda: hf.Gemma3Config(
        text_config=_of(hf.Gemma3TextConfig, layer_types=_SLIDING)().to_dict(),
        vision_config={**_VISION, "image_size": 28},
        mm_tokens_per_image=4,
        image_token_id=VOCABULARY - 1,
        boi_token_id=VOCABULARY - 3,
        eoi_token_id=VOCABULARY - 2,
    ),
    "Gemma 3n": _of(
        hf.Gemma3nTextConfig, **_SHARING, laurel_rank=4, activation_sparsity_pattern=[0.0] * 4
    ),
    "Gemma 4": _of(hf.Gemma4TextConfig, **_SHARING, global_head_dim=8),
    "Gemma 4 with images": lambda: hf.Gemma4Config(
        text_config=_of(hf.Gemma4TextConfig, **_SHARING, global_head_dim=8)().to_dict()
        | {"pad_token_id": 0},
        vision_config={
            **_VISION,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "global_head_dim": 8,
            "position_embedding_size": 16,
        },
        image_token_id=VOCABULARY - 1,
        boi_token_id=VOCABULARY - 3,
        eoi_token_id=VOCABULARY - 2,
        video_token_id=VOCABULARY - 4,
        audio_token_id=VOCABULARY - 5,
    ),
    "Phi": _of(hf.PhiConfig),
    "Phi-3": _of(hf.Phi3Config),
    "Phi-3.5-MoE": _of(hf.PhimoeConfig, router_jitter_noise=0.0),
    "SmolLM3": _of(hf.SmolLM3Config, no_rope_layers=[1, 0]),
    "OLMo": _of(hf.OlmoConfig),
    "OLMo 2": _of(hf.Olmo2Config),
    "OLMo 3": _of(hf.Olmo3Config, layer_types=_SLIDING),
    "OLMoE": _of(hf.OlmoeConfig),
    "Granite": _of(hf.GraniteConfig),
    "Granite MoE": _of(hf.GraniteMoeConfig),
    "GLM-4": _of(hf.Glm4Config),
    "GLM-4-MoE": _of(hf.Glm4MoeConfig, first_k_dense_replace=1),
    "GLM-4.7-Flash": _of(hf.Glm4MoeLiteConfig, **_LATENT),
    "DeepSeek-V2": _of(hf.DeepseekV2Config, first_k_dense_replace=1, **_LATENT),
    "DeepSeek-V3": _of(hf.DeepseekV3Config, first_k_dense_replace=1, **_LATENT),
    "Cohere": _of(hf.CohereConfig),
    "Cohere 2": _of(hf.Cohere2Config, layer_types=_SLIDING),
    "Nemotron": _of(hf.NemotronConfig),
    "StarCoder2": _of(hf.Starcoder2Config),
    "StableLM": _of(hf.StableLmConfig),
    "ERNIE 4.5": _of(hf.Ernie4_5Config),
    "ERNIE 4.5 MoE": _of(hf.Ernie4_5_MoeConfig, moe_num_experts=4, moe_k=2),
    "MiniMax-M2": _of(hf.MiniMaxM2Config),
    "Seed-OSS": _of(hf.SeedOssConfig),
    "EXAONE 4": _of(hf.Exaone4Config, layer_types=_SLIDING),
    "Apertus": _of(hf.ApertusConfig),
    "HunYuan": _of(hf.HunYuanDenseV1Config),
    "GPT-2": _of(hf.GPT2Config),
    "GPT-J": _of(hf.GPTJConfig),
    "GPT-Neo": _of(hf.GPTNeoConfig, attention_types=[[["global", "local"], 1]], window_size=16),
    "GPT-NeoX": _of(hf.GPTNeoXConfig),
    "GPTBigCode": _of(hf.GPTBigCodeConfig),
    "CodeGen": _of(hf.CodeGenConfig),
}
UNPACKED: dict[str, Config] = {
    "OPT": _of(hf.OPTConfig, ffn_dim=48, word_embed_proj_dim=32),
    "BLOOM": _of(hf.BloomConfig),
    "MPT": _of(hf.MptConfig),
    "Falcon": _of(hf.FalconConfig),
    "gpt-oss": _of(hf.GptOssConfig, layer_types=_SLIDING),
    "Mamba": _of(hf.MambaConfig, state_size=4),
    "Mamba 2": _of(
        hf.Mamba2Config, state_size=8, num_heads=8, head_dim=8, n_groups=1, chunk_size=16
    ),
}
# Their convolutions and states go on from document to document, which attention doesn't.
HYBRID: dict[str, Config] = {
    "RecurrentGemma": _of(
        hf.RecurrentGemmaConfig,
        lru_width=32,
        attention_window_size=16,
        block_types=["recurrent", "attention"],
    ),
    "Jamba": _of(
        hf.JambaConfig,
        attn_layer_period=2,
        attn_layer_offset=1,
        mamba_dt_rank=4,
        use_mamba_kernels=False,
    ),
    "Bamba": _of(hf.BambaConfig, attn_layer_indices=[1]),
    "Granite 4": _of(
        hf.GraniteMoeHybridConfig,
        layer_types=["mamba", "attention"],
        shared_intermediate_size=16,
    ),
    "Nemotron-H": _of(
        hf.NemotronHConfig,
        layers_block_type=["mamba", "attention"],
        mamba_num_heads=8,
        mamba_head_dim=8,
        n_groups=1,
        ssm_state_size=8,
        chunk_size=16,
    ),
    "LFM2": _of(hf.Lfm2Config, layer_types=["conv", "full_attention"]),
    "LFM2-MoE": _of(hf.Lfm2MoeConfig, layer_types=["conv", "full_attention"], num_dense_layers=1),
    "Falcon-H1": _of(hf.FalconH1Config, mamba_d_ssm=64),
    "Qwen3-Next": _of(hf.Qwen3NextConfig, **_LINEAR),
    "Qwen3.5": _of(hf.Qwen3_5TextConfig, **_LINEAR),
    "Qwen3.5-MoE": _of(hf.Qwen3_5MoeTextConfig, **_LINEAR, shared_expert_intermediate_size=16),
}
# Only for what adapters do with them: their routers have linear layers, of several names.
ROUTED: dict[str, Config] = {
    "Gemma 4 MoE": _of(
        hf.Gemma4TextConfig,
        enable_moe_block=True,
        layer_types=_SLIDING,
        num_kv_shared_layers=0,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=8,
        global_head_dim=8,
        top_k_experts=2,
    ),
    "HunYuan MoE": _of(hf.HunYuanMoEV1Config, moe_topk=2),
    "JetMoE": _of(hf.JetMoeConfig, kv_channels=8),
    "LongCat": _of(
        hf.LongcatFlashConfig,
        **_LATENT,
        expert_ffn_hidden_size=16,
        ffn_hidden_size=32,
        zero_expert_num=1,
        num_layers=2,
        moe_topk=2,
    ),
}


def build(config: hf.PretrainedConfig) -> PreTrainedModel:
    """The model of a config, in fp32, with weights large enough that attention is sharp."""
    config.initializer_range = config.get_text_config().initializer_range = 0.3
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval()
