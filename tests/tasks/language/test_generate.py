"""Held-out prompts, continued by both models."""

import ast
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conversations import CHATML, chat_tokenizer, conversation
from jobs import execution_of
from resumed import check_batches_resumption
from tokenizers import decoders
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Data
from moray.config.tasks import FormatName
from moray.corpus.dataset import Document
from moray.corpus.documents import write_dataset
from moray.errors import UserError
from moray.model.load import load_model
from moray.provenance.manifest import sha256_file
from moray.tasks.language.generate import generate
from moray.tasks.language.generation import Sampling, continue_prompts

CFG = {
    **result_keys(Data()),
    "num_samples": 4,
    "max_new_tokens": 8,
    "prompt_tokens": 8,
    "temperature": 0.0,
    "top_p": 1.0,
    "seed": 0,
    "precision": "auto",
    "format": "text",
    "metrics": [],
    "bootstrap_samples": 20,
    "confidence": 0.9,
}
EXECUTION = execution_of("generate", batch_size=3)
OF_DATASET = {"format", *result_keys(Data())}
PAIRS = [Document(prompt="x = 1 #", completion=" note\n"), Document(prompt="(", completion="x)")]


def of_dataset(cfg: dict[str, Any]) -> dict[str, Any]:
    """The `cfg` of a run on one dataset, from keys of the dataset and of the stage."""
    own = {key: cfg[key] for key in cfg if key in OF_DATASET}
    return {key: cfg[key] for key in cfg if key not in OF_DATASET} | {"datasets": {"data": own}}


def run(base: Path, tuned: Path, rows: Path, output: Path, **cfg: Any) -> list[dict[str, Any]]:
    settings = output.with_suffix(".json")
    generate("tuned", base, tuned, [rows], output, settings, of_dataset(CFG | cfg), EXECUTION)
    manifest = tuned / "manifest.json"
    inputs = json.loads(settings.read_text())["inputs"]
    assert inputs[str(manifest)] == sha256_file(manifest)
    return [json.loads(line) for line in output.read_text().splitlines()]


def likeliest(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, prompts: list[list[int]]
) -> list[str]:
    """The likeliest eight tokens after each prompt, each by itself, as text."""
    stop = tokenizer.eos_token_id
    sampling = Sampling(8, 0.0, 1.0, seed=0, stops=(stop,), padding=stop)
    written = [continue_prompts(model, {0: prompt}, sampling)[0] for prompt in prompts]
    return tokenizer.batch_decode(written, skip_special_tokens=True)  # type: ignore[no-any-return]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    rows = [(split, row) for split in ("train", "test") for row in PAIRS]
    write_dataset(tmp_path / "pairs", iter(rows), "prompt-completion", {})
    return tmp_path / "pairs/test.parquet"


def test_each_prompt_is_continued_by_both_models(
    tmp_path: Path,
    model_folder: Path,
    tuned_folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    dataset: Path,
    texts: list[str],
) -> None:
    rows = dataset / "test.parquet"
    format = json.loads((dataset / "dataset.json").read_text())["format"]
    samples = run(model_folder, tuned_folder, rows, tmp_path / "samples.jsonl", format=format)
    assert len(samples) == 4
    held_out = texts[2::3]
    for sample in samples:
        assert list(sample) == ["prompt", "reference", "base", "tuned"]
        assert any(sample["prompt"] + sample["reference"] in text for text in held_out)
    for name, folder in (("base", model_folder), ("tuned", tuned_folder)):
        expected = likeliest(
            load_model(folder),
            tokenizer,
            [
                [tokenizer.bos_token_id, *tokenizer(sample["prompt"])["input_ids"]]
                for sample in samples
            ],
        )
        assert [sample[name] for sample in samples] == expected
    assert any(sample["base"] != sample["tuned"] for sample in samples)


def test_a_conversation_s_last_answer_is_written_again(
    tmp_path: Path, chat_folder: Path, texts: list[str]
) -> None:
    talks = [
        conversation(("user", "é?"), ("assistant", "x"), ("user", "y"), ("assistant", " 東京 ")),
        conversation(("user", "a"), ("assistant", "")),
    ]
    rows = ((split, talk) for split in ("train", "test") for talk in talks)
    write_dataset(tmp_path / "talks", rows, "messages", {})
    cfg = {"format": "messages", "chat_template": CHATML}
    file = tmp_path / "talks/test.parquet"
    samples = run(chat_folder, chat_folder, file, tmp_path / "samples.jsonl", **cfg)
    asked = "<|im_start|>user\né?<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n"
    assert [(sample["prompt"], sample["reference"]) for sample in samples] == [
        (f"{asked}<|im_start|>user\ny<|im_end|>\n<|im_start|>assistant\n", " 東京 "),
        ("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n", ""),
    ]
    tokenizer = chat_tokenizer(texts)
    expected = likeliest(
        load_model(chat_folder),
        tokenizer,
        [tokenizer(sample["prompt"])["input_ids"] for sample in samples],
    )
    assert [sample["tuned"] for sample in samples] == expected


def test_prompts_and_references_that_are_too_long_are_counted(
    tmp_path: Path,
    tuned_folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Else metrics would be of the short ones alone, and nothing would say so."""
    room = LlamaForCausalLM.from_pretrained(tuned_folder).config.max_position_embeddings
    rows = [
        Document(prompt="(", completion="x)"),
        Document(prompt="x = 1 #", completion=" " + "note " * 9),
        Document(prompt="x " * room, completion="y"),
    ]
    assert len(tokenizer(rows[1]["completion"])["input_ids"]) > 8
    split = ((split, row) for split in ("train", "test") for row in rows)
    write_dataset(tmp_path / "rows", split, "prompt-completion", {})
    file, output = tmp_path / "rows/test.parquet", tmp_path / "samples.jsonl"
    keys = {"format": "prompt-completion", "metrics": ["exact_match"]}
    samples = run(tuned_folder, tuned_folder, file, output, **keys)
    assert len(samples) == 2
    counts = json.loads(output.with_suffix(".json").read_text())["prompts"]
    unfinished = counts.pop("unfinished")
    assert counts == {"continued": 2, "no_room": 1, "no_prompt": 0, "longer_references": 1}
    stopped = [len(tokenizer(sample["tuned"])["input_ids"]) < 8 for sample in samples]
    assert unfinished == dict.fromkeys(("base", "tuned"), stopped.count(False))
    said = [line for line in capsys.readouterr().err.splitlines() if "warning: tuned: 1 " in line]
    assert len(said) == 2


@pytest.mark.parametrize("format", ["messages", "preference"])
def test_of_conversations_the_syntax_is_not_judged(
    tmp_path: Path, chat_folder: Path, capsys: pytest.CaptureFixture[str], format: FormatName
) -> None:
    """Their prompts have the template's text, so none would parse."""
    talk = conversation(("user", "x"), ("assistant", "x = 1"))
    if format == "preference":
        talk = Document(chosen=talk["messages"], rejected=talk["messages"], tools=None)
    write_dataset(tmp_path / "talks", ((s, talk) for s in ("train", "test")), format, {})
    cfg = {"format": format, "chat_template": CHATML, "metrics": ["python_syntax", "exact_match"]}
    file, output = tmp_path / "talks/test.parquet", tmp_path / "samples.jsonl"
    (sample,) = run(chat_folder, chat_folder, file, output, **cfg)
    assert "tuned_exact_match" in sample
    assert "tuned_python_syntax" not in sample
    assert "python_syntax applies to none of them" in capsys.readouterr().err


def test_of_a_pair_the_chosen_answer_is_written_again(
    tmp_path: Path, tuned_folder: Path, pairs: Path
) -> None:
    chosen = [
        Document(prompt=row["prompt"], chosen=row["completion"], rejected="no", tools=None)
        for row in PAIRS
    ]
    rows = ((split, row) for split in ("train", "test") for row in chosen)
    write_dataset(tmp_path / "chosen", rows, "preference", {})
    file = tmp_path / "chosen/test.parquet"
    cfg = {"metrics": ["python_syntax"], "format": "preference"}
    samples = run(tuned_folder, tuned_folder, file, tmp_path / "chosen.jsonl", **cfg)
    cfg = {"metrics": ["python_syntax"], "format": "prompt-completion"}
    assert samples == run(tuned_folder, tuned_folder, pairs, tmp_path / "plain.jsonl", **cfg)


def test_the_stop_tokens_of_the_model_s_folder_end_a_continuation(
    tmp_path: Path, tuned_folder: Path, tokenizer: PreTrainedTokenizerFast, pairs: Path
) -> None:
    folder = Path(shutil.copytree(tuned_folder, tmp_path / "model"))
    settings = json.loads((folder / "generation_config.json").read_text())
    settings["eos_token_id"] = [*range(len(tokenizer))]
    (folder / "generation_config.json").write_text(json.dumps(settings))
    samples = run(folder, folder, pairs, tmp_path / "samples.jsonl", format="prompt-completion")
    for sample in samples:
        assert len(tokenizer(sample["tuned"])["input_ids"]) <= 1, "the first token stops"
    longer = run(tuned_folder, tuned_folder, pairs, tmp_path / "longer.jsonl")
    assert any(len(tokenizer(sample["tuned"])["input_ids"]) > 1 for sample in longer)


def test_special_tokens_within_a_continuation_are_part_of_it(
    tmp_path: Path, model_folder: Path, tokenizer: PreTrainedTokenizerFast, pairs: Path
) -> None:
    """Such as the one that begins the call of a tool, which references have too."""
    folder = Path(shutil.copytree(model_folder, tmp_path / "model"))
    model, prompt = load_model(folder), tokenizer(PAIRS[0]["prompt"])["input_ids"]
    stop = tokenizer.eos_token_id
    sampling = Sampling(8, 0.0, 1.0, seed=0, stops=(stop,), padding=stop)
    (first, *_) = continue_prompts(model, {0: [tokenizer.bos_token_id, *prompt]}, sampling)[0]
    assert first not in prompt
    special = AutoTokenizer.from_pretrained(folder)
    special.add_special_tokens({"pad_token": tokenizer.convert_ids_to_tokens(first)})
    special.save_pretrained(folder)
    cfg = {"format": "prompt-completion"}
    (sample, *_) = run(folder, folder, pairs, tmp_path / "samples.jsonl", **cfg)
    assert sample["tuned"].startswith(special.pad_token)


def test_a_continuation_keeps_what_the_tokenizer_strips_from_the_start_of_a_text(
    tmp_path: Path, model_folder: Path, pairs: Path
) -> None:
    """As Llama 2's tokenizer does with a space."""
    cfg = {"format": "prompt-completion"}
    folder = Path(shutil.copytree(model_folder, tmp_path / "model"))
    before = run(folder, folder, pairs, tmp_path / "before.jsonl", **cfg)
    first = before[0]["tuned"][0]
    stripping = AutoTokenizer.from_pretrained(folder)
    stripping.backend_tokenizer.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Fuse(), decoders.Strip(first, 1, 0)]
    )
    assert stripping.decode(stripping(first)["input_ids"]) == ""
    stripping.save_pretrained(folder)
    assert run(folder, folder, pairs, tmp_path / "after.jsonl", **cfg) == before


def test_of_functions_it_is_said_whether_they_parse(
    tmp_path: Path, tuned_folder: Path, pairs: Path
) -> None:
    output = tmp_path / "samples.jsonl"
    cfg = {"format": "prompt-completion", "metrics": ["python_syntax"]}
    samples = run(tuned_folder, tuned_folder, pairs, output, **cfg)
    assert [sample["prompt"] for sample in samples] == [row["prompt"] for row in PAIRS]
    for sample in samples:
        try:
            ast.parse(sample["prompt"] + sample["tuned"])
            expected = True
        except SyntaxError:
            expected = False
        assert sample["tuned_python_syntax"] is sample["base_python_syntax"] is expected
    assert samples[0]["tuned_python_syntax"], "a comment parses unless a line follows it"


@pytest.mark.parametrize(
    "cfg",
    [
        {"format": "prompt-completion", "metrics": []},
        {"format": "text", "metrics": ["python_syntax"]},
    ],
)
def test_of_other_texts_it_is_not(
    tmp_path: Path, tuned_folder: Path, pairs: Path, cfg: dict[str, Any]
) -> None:
    samples = run(tuned_folder, tuned_folder, pairs, tmp_path / "samples.jsonl", **cfg)
    assert all(set(sample) == {"prompt", "reference", "base", "tuned"} for sample in samples)


def test_the_metrics_of_the_config_are_in_samples_and_settings(
    tmp_path: Path, model_folder: Path, tuned_folder: Path, pairs: Path, capfd: Any
) -> None:
    metrics = ["exact_match", "python_syntax", "chrf"]
    cfg = {"format": "prompt-completion", "metrics": metrics}
    samples = run(model_folder, tuned_folder, pairs, tmp_path / "samples.jsonl", **cfg)
    record = json.loads((tmp_path / "samples.json").read_text())
    assert list(record["metrics"]) == metrics
    assert record["confidence"] == 0.9
    for metric in metrics:
        assert record["metrics"][metric]["samples"] == 2
        for model in ("base", "tuned"):
            mean = sum(sample[f"{model}_{metric}"] for sample in samples) / len(samples)
            assert record["metrics"][metric][model]["value"] == pytest.approx(mean)
    said = capfd.readouterr().err.splitlines()[-1]
    assert said.startswith("tuned: 2 prompts continued, exact_match 0% [0%, 0%] before, ")
    assert re.search(r", python_syntax 50% \[0%, 100%\] before, .* after, chrf [\d.]+ \[", said)


def test_prompts_without_room_leave_nothing_behind(
    tmp_path: Path, tuned_folder: Path, pairs: Path
) -> None:
    output = tmp_path / "samples.jsonl"
    with pytest.raises(UserError, match=r"got 128, which leaves no room for a prompt"):
        run(tuned_folder, tuned_folder, pairs, output, max_new_tokens=128)
    assert not output.exists()


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("torchrun", marks=pytest.mark.long),
        # Evaluation starts workers the same way, and is tested with Ray.
        pytest.param("ray", marks=pytest.mark.release),
    ],
)
@pytest.mark.parametrize("dataset", ["prompt-completion"], indirect=True)
def test_the_number_of_workers_changes_no_continuation(
    tmp_path: Path,
    model_folder: Path,
    tuned_folder: Path,
    dataset: Path,
    launcher: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sampled, so that it would show if a prompt's random numbers depended on the others."""
    # The workflow passes relative paths, and a Ray worker's current directory is another one.
    monkeypatch.chdir(tmp_path)
    base, tuned = (Path(os.path.relpath(folder)) for folder in (model_folder, tuned_folder))
    rows, cfg = dataset / "test.parquet", CFG | {"temperature": 1.0, "num_samples": 7}
    cfg["format"] = json.loads((dataset / "dataset.json").read_text())["format"]
    samples = []
    for workers in (1, 2):
        execution = execution_of("generate", workers, 2, launcher)
        output, settings = Path(f"{workers}.jsonl"), Path(f"{workers}.json")
        generate("tuned", base, tuned, [rows], output, settings, of_dataset(cfg), execution)
        samples.append(output.read_text())
    assert samples[0] == samples[1]
    assert len(samples[0].splitlines()) == 7


@pytest.mark.parametrize("dataset", ["text"], indirect=True)
def test_an_interrupted_generation_continues_and_ends_with_the_same_bytes(
    tmp_path: Path,
    model_folder: Path,
    tuned_folder: Path,
    dataset: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    cfg = of_dataset(CFG | {"temperature": 1.0, "num_samples": 7})

    def stage(folder: Path) -> None:
        rows, execution = dataset / "test.parquet", execution_of("generate", batch_size=2)
        output, settings = folder / "samples.jsonl", folder / "generation.json"
        generate("tuned", model_folder, tuned_folder, [rows], output, settings, cfg, execution)

    check_batches_resumption(stage, tmp_path, capfd)


def test_what_is_in_force_is_written_beside_the_samples(
    tmp_path: Path, tuned_folder: Path, tokenizer: PreTrainedTokenizerFast, pairs: Path
) -> None:
    """And not what the model's folder says besides."""
    folder = Path(shutil.copytree(tuned_folder, tmp_path / "model"))
    said = json.loads((folder / "generation_config.json").read_text())
    said |= {"repetition_penalty": 5.0, "temperature": 0.1}
    (folder / "generation_config.json").write_text(json.dumps(said))
    samples = run(folder, tuned_folder, pairs, tmp_path / "samples.jsonl")
    assert all(sample["base"] == sample["tuned"] for sample in samples)
    written = json.loads((tmp_path / "samples.json").read_text())
    assert all(one["holds"] for one in written.pop("proof"))
    assert written.pop("prompts")["continued"] == len(samples)
    assert {key: written[key] for key in written if key not in ("inputs", "sha256")} == {
        "max_new_tokens": 8,
        "precision": "auto",
        "seed": 0,
        "stop_tokens": [tokenizer.eos_token],
        "temperature": 0.0,
        "top_p": 1.0,
    }


def test_sampling_follows_its_keys(tmp_path: Path, model_folder: Path, pairs: Path) -> None:
    def written(**cfg: Any) -> list[str]:
        keys = {"format": "prompt-completion", "max_new_tokens": 32, **cfg}
        samples = run(model_folder, model_folder, pairs, tmp_path / "samples.jsonl", **keys)
        return [sample["tuned"] for sample in samples]

    likeliest, drawn = written(), written(temperature=1.0)
    assert likeliest != drawn
    assert written(temperature=1.0, seed=1) != drawn
    assert written(temperature=1.0, top_p=1e-6) == likeliest


def test_a_prompt_of_text_has_so_many_tokens(
    tmp_path: Path, model_folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = [(split, Document(text="return value for " * 20)) for split in ("train", "test")]
    write_dataset(tmp_path / "texts", iter(rows), "text", {})
    file = tmp_path / "texts/test.parquet"
    for count in (5, 9):
        first, *_ = run(
            model_folder, model_folder, file, tmp_path / "samples.jsonl", prompt_tokens=count
        )
        assert len(tokenizer(first["prompt"])["input_ids"]) == count


def test_models_compute_in_the_precision_that_the_config_names(
    tmp_path: Path, tuned_folder: Path, pairs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Continuations may be the same; so what the weights are loaded as is looked at."""
    loaded = []
    generate_by_model = LlamaForCausalLM.generate

    def seen(self: LlamaForCausalLM, *positional: Any, **named: Any) -> Any:
        loaded.append(self.dtype)
        return generate_by_model(self, *positional, **named)

    monkeypatch.setattr(LlamaForCausalLM, "generate", seen)
    for precision in ("auto", "fp32", "bf16"):
        run(tuned_folder, tuned_folder, pairs, tmp_path / "samples.jsonl", precision=precision)
    assert loaded == [torch.float32] * 4 + [torch.bfloat16] * 2
