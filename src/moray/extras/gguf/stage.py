"""Convert a run's model for llama.cpp and Ollama."""

from pathlib import Path
from typing import Any

from moray.console import say
from moray.errors import ConfigError
from moray.extras.gguf.llama_cpp import convert, quantize
from moray.extras.gguf.ollama import modelfile, text_around
from moray.extras.gguf.requirements import CONVERTED, missing_tools
from moray.provenance.manifest import atomic_folder, write_manifest
from moray.tasks.language.chat import ChatTemplate
from moray.tasks.language.tokenizer import adds_bos, load_tokenizer, stop_token_ids

_MODELFILE = "Modelfile"


def gguf(run: str, model: Path, output: Path, cfg: dict[str, Any]) -> None:
    """Write a GGUF file for each type, and a Modelfile for the last of them.

    Raises:
        ConfigError: if a tool of llama.cpp is missing.
        UserError: if llama.cpp can't convert the model.
    """
    types = cfg["types"]
    if missing := list(missing_tools(run, types)):
        raise ConfigError(missing)
    with atomic_folder(output) as folder:
        files = {kind: folder / f"{run}-{kind}.gguf" for kind in types}
        direct = [kind for kind in types if kind in CONVERTED]
        for kind in direct:
            convert(model, files[kind], kind)
        if rest := [kind for kind in types if kind not in CONVERTED]:
            # In fp32, no bits are lost on the way.
            whole = folder / f"{run}-f32.gguf"
            if "f32" not in direct:
                convert(model, whole, "f32")
            for kind in rest:
                quantize(whole, files[kind], kind)
            if "f32" not in direct:
                whole.unlink()
        remark = _write_modelfile(model, folder / _MODELFILE, files[types[-1]].name)
        write_manifest(folder, run=run)
    say(f"{run} as GGUF: {output}, {', '.join(types)}")
    if remark:
        say(f"{run}: {remark}")


def _write_modelfile(model: Path, file: Path, weights: str) -> str | None:
    """Write it; returns in what it differs from the training."""
    tokenizer = load_tokenizer(model)
    stops = tokenizer.convert_ids_to_tokens(stop_token_ids(tokenizer, model))
    texts = None
    if tokenizer.chat_template:
        # Conversations have the date of the training too.
        template = ChatTemplate(tokenizer, None, stops)
        texts = text_around(template.text, template.before_answer)
    # llama.cpp adds it where the tokenizer does.
    bos = tokenizer.bos_token if adds_bos(tokenizer) else None
    file.write_text(modelfile(weights, texts, bos, stops))
    if texts is None:
        return (
            "the Modelfile has no template, because the model has no chat template, or one that "
            "can't be written for Ollama"
        )
    if bos and not texts.opening.startswith(bos):
        return (
            f"llama.cpp begins each prompt with {bos}, which the chat template doesn't, so no "
            "conversation of the training did"
        )
    return None
