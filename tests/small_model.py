"""A model's section of the config, for runs that take seconds."""

MODEL = {
    "source": "scratch",
    "architecture": "llama",
    "tokenizer": {"train_on": "functions", "vocab_size": 300},
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": None,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "seed": 0,
}
