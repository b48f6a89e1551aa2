"""Continue held-out prompts with a run's model and with its base."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from moray.console import say
from moray.corpus.dataset import read_documents
from moray.corpus.document import Document, halves
from moray.evaluate.continuation import GenerateJob, continue_on_worker
from moray.evaluate.execution import num_batches
from moray.evaluate.generation import Sampling
from moray.evaluate.prompts import Prompt, choose_prompts
from moray.evaluate.python_syntax import PythonSyntax
from moray.model.load import load_config, longest_sequence
from moray.provenance.manifest import write_json
from moray.stages.boundary import File, Folder, Json, command_line
from moray.stages.evaluation import on_evaluation_workers
from moray.tasks.language.recipe import make_encoder


def generate(
    run: str,
    base: Folder,
    tuned: Folder,
    rows: File,
    output: File,
    settings: File,
    cfg: Json,
    execution: Json,
) -> None:
    """Write `samples.jsonl`: prompt, reference, both continuations; for code, whether they parse.

    Args:
        run: the run's name.
        base: model folder that the run started from.
        tuned: the run's model.
        rows: test split of the run's dataset, as Parquet.
        output: file to write the samples to.
        settings: file to write the sampling settings to.
        cfg: the keys of the `generate` section that the result depends on, the dataset's format,
            and whether it is Python.
        execution: the other keys of that section, and the settings for starting workers.
    """
    encoder = make_encoder(tuned, cfg)
    prompts = choose_prompts(
        _documents(rows, cfg["format"]),
        encoder,
        model_length=longest_sequence(load_config(tuned)),
        num_samples=cfg["num_samples"],
        prompt_length=cfg["prompt_tokens"],
        max_new_tokens=cfg["max_new_tokens"],
        seed=cfg["seed"],
    )
    sampling = Sampling(
        **{key: cfg[key] for key in ("max_new_tokens", "temperature", "top_p", "seed")},
        stops=tuple(encoder.stops),
        padding=encoder.tokenizer.eos_token_id,
    )
    # Absolute, because the current directory of a Ray worker is another one.
    models = {"base": base.absolute(), "tuned": tuned.absolute()}
    with on_evaluation_workers("generate", run, output, cfg, execution) as workers:
        job = GenerateJob(models, [p.tokens for p in prompts], sampling, workers.execution)
        batches = num_batches(models, len(prompts), workers.execution.batch_size)
        results = workers.run(continue_on_worker, job, batches)
    written = {
        name: _texts([result[name] for result in results], encoder.tokenizer) for name in models
    }
    parsed = {}
    if cfg["is_python"] and cfg["format"] != "text":
        parsed = {name: _parsed(prompts, texts) for name, texts in written.items()}
    with output.open("w") as file:
        for number, prompt in enumerate(prompts):
            sample: dict[str, Any] = {"prompt": prompt.text, "reference": prompt.reference}
            for name, texts in written.items():
                sample[name] = texts[number]
                if parsed:
                    sample[f"{name}_parses"] = parsed[name]["parses"][number]
            file.write(json.dumps(sample) + "\n")
    stops = encoder.tokenizer.convert_ids_to_tokens(list(sampling.stops))
    in_force = {"max_new_tokens", "temperature", "top_p", "seed", "precision"}
    write_json(settings, {key: cfg[key] for key in sorted(in_force)} | {"stop_tokens": stops})
    said = f"{run}: {len(prompts)} prompts continued"
    if parsed:
        before, after = (parsed[name]["share"] for name in ("base", "tuned"))
        said += f", {before:.0%} parse before, {after:.0%} after"
    say(said)


def _documents(rows: Path, format: str) -> Iterator[Document]:
    """The documents of a split; of pairs, their chosen halves."""
    for documents in read_documents(rows):
        for document in documents:
            yield halves(document)[0] if format == "preference" else document


def _texts(results: list[dict[int, list[int]]], tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """The continuations of all workers as text, in the order of the prompts."""
    tokens = {number: tokens for result in results for number, tokens in result.items()}
    return [
        str(
            tokenizer.decode(
                tokens[number], skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )
        for number in sorted(tokens)
    ]


def _parsed(prompts: list[Prompt], continuations: list[str]) -> dict[str, Any]:
    whole = [p.text + text for p, text in zip(prompts, continuations, strict=True)]
    result: dict[str, Any] = PythonSyntax(keep_in_memory=True).compute(predictions=whole)
    return result


if __name__ == "__main__":
    command_line(generate)
