"""Continue held-out prompts with a run's model and with its base."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from moray.config.tasks import FormatName
from moray.console import say
from moray.corpus.dataset import Document, answers_of, read_documents
from moray.errors import ConfigError
from moray.evaluate.bootstrap import compare_means
from moray.evaluate.driver import (
    start_evaluation_workers,
    with_interval,
)
from moray.evaluate.worker import may_be_bf16
from moray.model.load import load_config, longest_sequence
from moray.proofs.comparison import collect, conclude
from moray.provenance.lineage import write_sealed
from moray.provenance.manifest import MANIFEST
from moray.tasks.language import metric_requirements
from moray.tasks.language.encode import make_encoder
from moray.tasks.language.generation import (
    Prompt,
    Sampling,
    choose_prompts,
    continue_on_worker,
)
from moray.tasks.language.proofs.scores import Continuation, compare_continuations
from moray.tasks.language.tokenizer import decode_after

_REMARKS = {
    "no_room": "{count:,} prompts were left out, as they leave no room for the {room:,} tokens of "
    "generate.max_new_tokens in the model's {length:,}, so what is continued is shorter than usual",
    "no_prompt": "{count:,} documents were left out, as they have no prompt, or the chat template "
    "makes none of them",
    "longer_references": "{count:,} references are longer than the {room:,} tokens of "
    "generate.max_new_tokens, so no continuation can equal them",
}
"""Remarks about prompts that aren't continued as in their documents, by the name of a count."""


def generate(
    run: str,
    base: Path,
    tuned: Path,
    rows: list[Path],
    output: Path,
    settings: Path,
    cfg: dict[str, Any],
    execution: dict[str, Any],
    code: str = "",
) -> None:
    """Write `samples.jsonl`: prompt, reference, both continuations, what metrics say of them.

    The batches that a killed process has on disk aren't continued again.

    Args:
        rows: test splits of the run's datasets, as Parquet, in their order.
        settings: file to write the sampling settings to, the means of the metrics, and the digests
            of the inputs.
        cfg: the keys of the `generate` section that the result depends on, and for each dataset,
            what its tokens depend on; with metrics, those of `evaluate` for the intervals.
        code: the version of what decides on the result.

    Raises:
        ConfigError: if a metric needs a package that isn't installed.
    """
    if faults := list(metric_requirements.missing(run, cfg["metrics"])):
        raise ConfigError(faults)
    datasets = cfg["datasets"]
    encoders = {name: make_encoder(tuned, section) for name, section in datasets.items()}
    length = longest_sequence(load_config(tuned))
    shares = _shares(cfg["num_samples"], len(rows))
    counts = Counter[str]()
    prompts_by_dataset = {
        name: choose_prompts(
            _documents(file, datasets[name]["format"]),
            encoders[name],
            model_length=length,
            num_samples=share,
            prompt_length=cfg["prompt_tokens"],
            max_new_tokens=cfg["max_new_tokens"],
            seed=cfg["seed"],
            left_out=counts,
        )
        for name, file, share in zip(datasets, rows, shares, strict=True)
        if share
    }
    prompts = [prompt for some in prompts_by_dataset.values() for prompt in some]
    counts["longer_references"] = sum(
        len(encoders[name].tokens_of(prompt.reference)) > cfg["max_new_tokens"]
        for name, some in prompts_by_dataset.items()
        for prompt in some
        # The reference of a text is cut to that length.
        if datasets[name]["format"] != "text"
    )
    tokenizer = next(iter(encoders.values())).tokenizer
    # Chats also stop at the end of a turn.
    stops = {stop: None for encoder in encoders.values() for stop in encoder.stops}
    sampling = Sampling(
        **{key: cfg[key] for key in ("max_new_tokens", "temperature", "top_p", "seed")},
        stops=tuple(stops),
        padding=tokenizer.eos_token_id,
    )
    models = {"base": base.absolute(), "tuned": tuned.absolute()}
    with start_evaluation_workers("generate", run, output, cfg, execution, code) as workers:
        tokens = [prompt.tokens for prompt in prompts]
        entry_point = partial(continue_on_worker, prompts=tokens, sampling=sampling)
        decided_by = [tokens, asdict(sampling)]
        results = workers.run(entry_point, models, (), len(prompts), decided_by=decided_by)
        continuations = {
            name: _continuations(
                prompts, [result[name] for result in results], tokenizer, sampling.stops
            )
            for name in models
        }
        proof = []
        if execution["proofs"] != "off":
            comparisons = collect(
                "continuations",
                lambda: compare_continuations(
                    models,
                    continuations,
                    sampling.temperature,
                    sampling.top_p,
                    workers.seconds,
                    may_be_bf16(cfg["precision"]),
                ),
            )
            proof = conclude(comparisons, execution["proofs"], f"runs.{run}")
        texts_by_model = {name: [one.text for one in some] for name, some in continuations.items()}
        first: dict[str, int] = {}
        groups = [first.setdefault(prompt.group, number) for number, prompt in enumerate(prompts)]
        owners = [name for name, some in prompts_by_dataset.items() for _ in some]
        formats = [
            "messages" if prompt.is_chat else datasets[owner]["format"]
            for prompt, owner in zip(prompts, owners, strict=True)
        ]
        scores = {
            metric: _scores(metric, prompts, texts_by_model, formats) for metric in cfg["metrics"]
        }
        with output.open("w") as file:
            for number, (prompt, owner) in enumerate(zip(prompts, owners, strict=True)):
                sample: dict[str, Any] = {"dataset": owner} if len(datasets) > 1 else {}
                sample |= {"prompt": prompt.text, "reference": prompt.reference}
                for name, texts in texts_by_model.items():
                    sample[name] = texts[number]
                    for metric, of_models in scores.items():
                        if number in of_models[name]:
                            sample[f"{name}_{metric}"] = of_models[name][number]
                file.write(json.dumps(sample) + "\n")
        metrics = {
            metric: compare_means(
                [*of_models["base"].values()],
                [*of_models["tuned"].values()],
                np.array([groups[number] for number in of_models["base"]]),
                cfg["bootstrap_samples"],
                cfg["confidence"],
            )
            for metric, of_models in scores.items()
            if of_models["base"]
        }
        in_force = {"max_new_tokens", "temperature", "top_p", "seed", "precision"}
        stop_tokens = tokenizer.convert_ids_to_tokens(list(sampling.stops))
        record = {key: cfg[key] for key in sorted(in_force)} | {"stop_tokens": stop_tokens}
        unfinished = {
            name: sum(one.new[-1] not in sampling.stops for one in some)
            for name, some in continuations.items()
        }
        remark_counts = {kind: counts[kind] for kind in _REMARKS}
        record["prompts"] = {"continued": len(prompts), **remark_counts, "unfinished": unfinished}
        if metrics:
            record |= {"confidence": cfg["confidence"], "metrics": metrics}
        if proof:
            record["proof"] = proof
        write_sealed(settings, record, [base / MANIFEST, tuned / MANIFEST, *rows])
    notes = [f"{run}: {len(prompts)} prompts continued"]
    for metric, of_models in scores.items():
        if metric in metrics:
            is_share = isinstance(next(iter(of_models["base"].values())), bool)
            form = ".0%" if is_share else ".4g"
            before, after = (with_interval(metrics[metric][name], form) for name in models)
            notes.append(f"{metric} {before} before, {after} after")
        else:
            notes.append(f"{metric} applies to none of them")
    # Continuations of a text rarely end by themselves.
    if any(section["format"] != "text" for section in datasets.values()):
        notes += [
            f"{count} by {name} end at max_new_tokens"
            for name, count in unfinished.items()
            if count
        ]
    say(", ".join(notes))
    uses_references = bool({"exact_match", "chrf"} & {*cfg["metrics"]})
    for kind, line in _REMARKS.items():
        if counts[kind] and (uses_references or kind != "longer_references"):
            room = cfg["max_new_tokens"]
            say(f"warning: {run}: {line.format(count=counts[kind], room=room, length=length)}")


def _shares(samples: int, datasets: int) -> list[int]:
    """How many of the samples each dataset gets: as equal numbers as possible."""
    return [samples // datasets + (number < samples % datasets) for number in range(datasets)]


def _documents(rows: Path, format: FormatName) -> Iterator[Document]:
    """The documents of a split; of pairs, their chosen halves; of answers, good ones."""
    for documents in read_documents(rows):
        for document in documents:
            if format != "unpaired-preference" or document["label"]:
                yield answers_of(document)[0]


def _continuations(
    prompts: list[Prompt],
    results: list[dict[int, list[int]]],
    tokenizer: PreTrainedTokenizerFast,
    stops: tuple[int, ...],
) -> list[Continuation]:
    """The prompts with their continuations by all workers, in their order.

    Their texts are without the stop token, as references are. Other special tokens stay: one may
    begin the call of a tool.
    """
    tokens = {number: tokens for result in results for number, tokens in result.items()}

    def text(number: int) -> str:
        new = tokens[number]
        text_tokens = new[:-1] if new[-1] in stops else new
        return decode_after(tokenizer, prompts[number].tokens, text_tokens)

    return [
        Continuation(prompts[number].tokens, tokens[number], text(number))
        for number in sorted(tokens)
    ]


def _scores(
    metric: str, prompts: list[Prompt], texts_by_model: dict[str, list[str]], formats: list[str]
) -> dict[str, dict[int, Any]]:
    """A metric's scores of the continuations that it applies to, by model and number."""
    # Takes seconds to import.
    from moray.tasks.language.metrics import score_texts

    texts, references = ([getattr(p, name) for p in prompts] for name in ("text", "reference"))
    return score_texts(metric, texts, references, formats, texts_by_model)
