"""Continuing prompts."""

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast


@torch.no_grad()
def continue_prompts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[list[int]],
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    batch_size: int,
    seed: int,
    stops: list[int],
) -> list[str]:
    """What the model writes after each prompt, up to a stop token.

    Args:
        model: in evaluation mode.
        tokenizer: of the model.
        prompts: tokens of each.
        max_new_tokens: tokens of a continuation, at most.
        temperature: 0 takes the likeliest token.
        top_p: nucleus sampling (Holtzman et al., 2020).
        batch_size: prompts continued at once.
        seed: of the sampling; the same for each call with the same arguments.
        stops: stop tokens.
    """
    sampling = (
        {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
        if temperature > 0
        else {"do_sample": False}
    )
    continuations = []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for start in range(0, len(prompts), batch_size):
            rows = prompts[start : start + batch_size]
            width = max(map(len, rows))
            stop = tokenizer.eos_token_id
            # Padding goes to the left, so that each row's last token is its prompt's.
            input_ids = torch.tensor([[stop] * (width - len(row)) + row for row in rows])
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
            written = model.generate(
                input_ids=input_ids.to(model.device),
                attention_mask=mask.to(model.device),
                max_new_tokens=max_new_tokens,
                eos_token_id=stops,
                pad_token_id=stop,
                **sampling,
            )
            continuations += tokenizer.batch_decode(
                written[:, width:], skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
    return continuations
