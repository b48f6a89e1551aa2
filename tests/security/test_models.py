"""Model folders that people hand in: weights and words are taken from them, code is not."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import pytest
import torch
from safetensors.torch import save_file

from moray.corpus.dataset import Document, RowError
from moray.errors import UserError
from moray.model.load import empty_model
from moray.provenance.manifest import damaged_files
from moray.stages.base_model import base_model
from moray.tasks.language.chat import ChatTemplate
from moray.tasks.language.tokenizer import load_tokenizer


@pytest.fixture
def handed_in(tmp_path: Path, model_folder: Path) -> Path:
    """A sound folder, for a test to spoil."""
    return Path(shutil.copytree(model_folder, tmp_path / "handed in"))


def take(folder: Path, output: Path) -> Path:
    """Make a base of a folder, as a user's `source: path` does."""
    base_model(output, {"source": "path", "path": str(folder)})
    assert damaged_files(output) == []
    return output


def refusal(folder: Path, output: Path) -> str:
    with pytest.raises(UserError) as caught:
        take(folder, output)
    assert "\n" not in str(caught.value)
    assert not (output / "manifest.json").exists()
    return str(caught.value)


def add_keys(file: Path, **keys: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


PICKLES = ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "optimizer.pkl", "scaler.pt"]


def write_pickles(folder: Path, trap: object) -> None:
    for number, name in enumerate(PICKLES):
        if number % 2:
            (folder / name).write_bytes(pickle.dumps({"weights": trap}))
        else:
            torch.save({"weights": trap}, folder / name)


def test_pickles_beside_the_weights_stay_where_they_are(
    handed_in: Path, output: Path, trap: object, canary: Path
) -> None:
    write_pickles(handed_in, trap)
    taken = {path.name for path in take(handed_in, output).iterdir()}
    assert taken.isdisjoint(PICKLES)
    assert not canary.exists()


def test_pickles_instead_of_the_weights_are_refused(
    handed_in: Path, output: Path, trap: object, canary: Path
) -> None:
    write_pickles(handed_in, trap)
    (handed_in / "model.safetensors").unlink()
    assert refusal(handed_in, output).startswith(
        f"{handed_in}: the folder has no weights in .safetensors"
    )
    assert not canary.exists()


@pytest.mark.parametrize("copied", [True, False])
def test_an_index_that_names_a_pickle_has_it_run_nowhere(
    handed_in: Path, output: Path, trap: object, canary: Path, copied: bool
) -> None:
    name = "pytorch_model.bin" if copied else "weights.safetensors"
    torch.save({"model.norm.weight": trap}, handed_in / name)
    (handed_in / "model.safetensors").unlink()
    save_file({"x": torch.zeros(1)}, handed_in / "part.safetensors")
    index = {"metadata": {}, "weight_map": {"model.norm.weight": name, "x": "part.safetensors"}}
    (handed_in / "model.safetensors.index.json").write_text(json.dumps(index))
    beginning = f"models.output: {handed_in}: can't load a causal language model ("
    assert refusal(handed_in, output).startswith(beginning)
    assert not canary.exists()


def code_that_touches(canary: Path) -> str:
    return (
        f"import pathlib\npathlib.Path({str(canary)!r}).touch()\n"
        "from transformers import LlamaConfig as Config, LlamaForCausalLM as Model\n"
        "from transformers import PreTrainedTokenizerFast as Tokenizer\n"
    )


@pytest.mark.parametrize("known", [True, False])
def test_code_of_a_model_is_left_behind(
    handed_in: Path, output: Path, canary: Path, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    (handed_in / "custom.py").write_text(code_that_touches(canary))
    auto_map = {"AutoConfig": "custom.Config", "AutoModelForCausalLM": "custom.Model"}
    add_keys(handed_in / "config.json", auto_map=auto_map)
    if known:
        # transformers has an architecture of this name: its own is taken.
        assert not (take(handed_in, output) / "custom.py").exists()
        empty_model(handed_in)
    else:
        add_keys(handed_in / "config.json", model_type="custom")
        assert "can't load a causal language model" in refusal(handed_in, output)
        with pytest.raises(UserError, match="can't load a causal language model"):
            empty_model(handed_in)
    assert not canary.exists()


@pytest.mark.parametrize("known", [True, False])
def test_code_of_a_tokenizer_is_left_behind(
    handed_in: Path, output: Path, canary: Path, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    (handed_in / "custom.py").write_text(code_that_touches(canary))
    auto_map = {"AutoTokenizer": ["custom.Tokenizer", "custom.Tokenizer"]}
    name = "PreTrainedTokenizerFast" if known else "Tokenizer"
    add_keys(handed_in / "tokenizer_config.json", auto_map=auto_map, tokenizer_class=name)
    if known:
        for folder in (handed_in, take(handed_in, output)):
            load_tokenizer(folder)
    else:
        assert "can't load the tokenizer" in refusal(handed_in, output)
        with pytest.raises(UserError, match="can't load the tokenizer"):
            load_tokenizer(handed_in)
    assert not canary.exists()


ESCAPES = [
    "{{ cycler.__init__.__globals__.os.mknod(canary) }}",
    "{{ ''.__class__.__base__.__subclasses__()[0] }}{{ lipsum.__globals__['os'].mknod(canary) }}",
    "{{ (lipsum|attr('__globals__'))['os'].mknod(canary) }}",
    "{{ joiner['__init__']['__globals__']['os'].mknod(canary) }}",
    "{{ self.__init__.__globals__.__builtins__.open(canary, 'w') }}",
    "{{ '{0.__init__.__globals__[os]}'.format(cycler) }}{{ cycler.__init__.__globals__.os.x }}",
]


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("own", [True, False], ids=["of the model", "of the config"])
def test_a_chat_template_does_not_get_out_of_its_text(
    chat_folder: Path, tmp_path: Path, output: Path, canary: Path, escape: str, own: bool
) -> None:
    spoilt = escape.replace("canary", f"'{canary}'")
    folder = Path(shutil.copytree(chat_folder, tmp_path / "chat"))
    if own:
        (folder / "chat_template.jinja").write_text(spoilt)
    tokenizer = load_tokenizer(take(folder, output))
    template = ChatTemplate(tokenizer, None if own else spoilt, [tokenizer.eos_token])
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    with pytest.raises(RowError, match="the chat template fails"):
        template.render(Document(messages=json.dumps(said), tools=None))
    assert not canary.exists()


def test_templates_like_these_get_out_where_there_is_no_sandbox(canary: Path) -> None:
    template = jinja2.Environment().from_string(ESCAPES[0].replace("canary", f"'{canary}'"))
    template.render()
    assert canary.exists()


@pytest.mark.parametrize("whole", [True, False])
def test_an_adapter_is_refused_whose_base_lies_elsewhere(
    handed_in: Path, output: Path, tmp_path: Path, whole: bool
) -> None:
    other = Path(shutil.copytree(handed_in, tmp_path / "other"))
    adapter = {"peft_type": "LORA", "r": 1, "target_modules": ["q_proj"]}
    adapter["base_model_name_or_path"] = str(other)
    (handed_in / "adapter_config.json").write_text(json.dumps(adapter))
    (handed_in / "model.safetensors").rename(handed_in / "adapter_model.safetensors")
    if not whole:
        (handed_in / "config.json").unlink()
    assert refusal(handed_in, output) == (
        f"{handed_in}: got an adapter (adapter_config.json), expected a full model; "
        "merge the adapter into its base with merge_and_unload and save_pretrained"
    )


def test_linked_weights_are_copied_as_files(
    handed_in: Path, output: Path, tmp_path: Path, elsewhere: Callable[[], set[str]]
) -> None:
    """The hub's own cache has a link for each file."""
    weights = (handed_in / "model.safetensors").rename(tmp_path / "blob")
    (handed_in / "model.safetensors").symlink_to(weights)
    before = elsewhere()
    copy = take(handed_in, output) / "model.safetensors"
    assert not copy.is_symlink()
    assert copy.read_bytes() == weights.read_bytes()
    assert elsewhere() == before


def test_what_is_no_file_is_not_read_though_it_has_the_name_of_one(
    handed_in: Path, output: Path, tmp_path: Path
) -> None:
    """A pipe or a device would be read for good."""
    os.mkfifo(tmp_path / "pipe")
    (handed_in / "pipe.json").symlink_to(tmp_path / "pipe")
    (handed_in / "folder.json").symlink_to(tmp_path)
    (handed_in / "nothing.json").symlink_to(tmp_path / "nothing")
    (handed_in / "device.json").symlink_to("/dev/null")
    names = {path.name for path in take(handed_in, output).iterdir()}
    assert names.isdisjoint({"pipe.json", "folder.json", "nothing.json", "device.json"})
