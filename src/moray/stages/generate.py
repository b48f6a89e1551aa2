"""Continue held-out prompts with a run's model and with its base."""

import json
from typing import Any

from moray.console import say
from moray.corpus.dataset import read_documents
from moray.evaluate.generation import continue_prompts
from moray.evaluate.prompts import Prompt, choose_prompts
from moray.evaluate.python_syntax import PythonSyntax, parses
from moray.model.load import load_model, longest_sequence
from moray.stages.boundary import File, Folder, Json, command_line
from moray.tokens.recipe import make_encoder


def generate(base: Folder, tuned: Folder, rows: File, output: File, cfg: Json) -> None:
    """Write `samples.jsonl`: prompt, reference, both continuations; for code, whether they parse.

    Args:
        base: Hugging Face folder that the run started from.
        tuned: the run's model.
        rows: test split of the run's dataset, as Parquet.
        output: file to write.
        cfg: the `generate` section, the dataset's format, and whether it is Python.
    """
    encoder = make_encoder(tuned, cfg)
    models = {"base": load_model(base), "tuned": load_model(tuned)}
    prompts = choose_prompts(
        (document for documents in read_documents(rows) for document in documents),
        encoder,
        model_length=longest_sequence(models["tuned"]),
        num_samples=cfg["num_samples"],
        prompt_length=cfg["prompt_tokens"],
        max_new_tokens=cfg["max_new_tokens"],
        seed=cfg["seed"],
    )
    keys = ("max_new_tokens", "temperature", "top_p", "batch_size", "seed")
    written = {
        name: continue_prompts(
            model,
            encoder.tokenizer,
            [prompt.tokens for prompt in prompts],
            stops=encoder.stops,
            **{key: cfg[key] for key in keys},
        )
        for name, model in models.items()
    }
    is_code = cfg["is_python"] and cfg["format"] == "prompt-completion"
    with output.open("w") as file:
        for number, prompt in enumerate(prompts):
            sample: dict[str, Any] = {"prompt": prompt.text, "reference": prompt.reference}
            for name, continuations in written.items():
                sample[name] = continuations[number]
                if is_code:
                    sample[f"{name}_parses"] = parses(prompt.text + continuations[number])
            file.write(json.dumps(sample) + "\n")
    said = f"{output.parent.name}: {len(prompts)} prompts continued"
    if is_code:
        before, after = (_share_that_parses(prompts, written[name]) for name in ("base", "tuned"))
        said += f", {before:.0%} parse before, {after:.0%} after"
    say(said)


def _share_that_parses(prompts: list[Prompt], continuations: list[str]) -> float:
    whole = [p.text + text for p, text in zip(prompts, continuations, strict=True)]
    result = PythonSyntax(keep_in_memory=True).compute(predictions=whole)
    share: float = result["parses"]
    return share


if __name__ == "__main__":
    command_line(generate)
