"""A run's model for llama.cpp, by its own converter where it is, and by a stand-in elsewhere."""

import shutil
from pathlib import Path

import psutil
import pytest
from conversations import CHATML
from fleet import until
from run_stage import stage_command
from small_config import experiment_with
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from moray.errors import ConfigError, UserError
from moray.extras.gguf.stage import gguf
from moray.provenance.manifest import damaged_files, read_manifest
from moray.stages.preflight import preflight

# Writes its arguments, as the tools of llama.cpp take them.
CONVERTER = """
import sys
_, kind_option, kind, file_option, file, model = sys.argv
assert (kind_option, file_option) == ("--outtype", "--outfile")
if kind == "bf16":
    sys.exit("NotImplementedError: no such architecture")
open(file, "w").write(f"{kind} of {model}")
"""
QUANTIZER = """#!/bin/sh
echo "$3 from $(cat "$1")" > "$2"
"""


@pytest.fixture
def llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "llama.cpp"
    (folder / "build/bin").mkdir(parents=True)
    (folder / "convert_hf_to_gguf.py").write_text(CONVERTER)
    (folder / "build/bin/llama-quantize").write_text(QUANTIZER)
    (folder / "build/bin/llama-quantize").chmod(0o700)
    monkeypatch.setenv("LLAMA_CPP_DIR", str(folder))
    return folder


@pytest.mark.usefixtures("llama_cpp")
def test_a_file_for_each_type_and_a_modelfile(tmp_path: Path, chat_folder: Path) -> None:
    model, output = shutil.copytree(chat_folder, tmp_path / "model"), tmp_path / "gguf"
    (model / "chat_template.jinja").write_text(CHATML)
    gguf("tuned", model, output, {"types": ["q8_0", "q4_k_m"]})
    assert set(read_manifest(output)["files"]) == {
        "Modelfile",
        "tuned-q4_k_m.gguf",
        "tuned-q8_0.gguf",
    }
    assert damaged_files(output) == []
    assert (output / "tuned-q8_0.gguf").read_text() == f"q8_0 of {model}"
    # From all bits that there are, not from other small ones.
    assert (output / "tuned-q4_k_m.gguf").read_text() == f"Q4_K_M from f32 of {model}\n"
    written = (output / "Modelfile").read_text()
    assert written.startswith('FROM ./tuned-q4_k_m.gguf\nTEMPLATE """')
    assert 'PARAMETER stop "<|im_end|>"' in written


@pytest.mark.usefixtures("llama_cpp")
@pytest.mark.parametrize("added", [False, True], ids=["", "added"])
@pytest.mark.parametrize("written", [False, True], ids=["", "in the template"])
def test_the_template_begins_with_the_bos_token_unless_llama_cpp_adds_it(
    tmp_path: Path,
    chat_folder: Path,
    capsys: pytest.CaptureFixture[str],
    added: bool,
    written: bool,
) -> None:
    model = shutil.copytree(chat_folder, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(model)
    bos = tokenizer.bos_token
    if added:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_token_id)]
        )
    tokenizer.chat_template = ("{{ bos_token }}" if written else "") + CHATML
    tokenizer.save_pretrained(model)
    gguf("tuned", model, tmp_path / "gguf", {"types": ["f16"]})
    template = (tmp_path / "gguf/Modelfile").read_text().partition('"""')[2]
    assert template.startswith(bos) == (written and not added)
    remark = f"llama.cpp begins each prompt with {bos}, which the chat template doesn't"
    assert (remark in capsys.readouterr().err) == (added and not written)


@pytest.mark.long
def test_a_killed_stage_ends_the_converter(
    tmp_path: Path, model_folder: Path, llama_cpp: Path
) -> None:
    (llama_cpp / "convert_hf_to_gguf.py").write_text("import time\ntime.sleep(600)\n")
    output, cfg = tmp_path / "gguf", {"types": ["f16"]}
    stage = psutil.Popen(
        stage_command("gguf", run="tuned", model=model_folder, output=output, cfg=cfg)
    )

    def converters() -> list[psutil.Process]:
        assert stage.poll() is None, "the stage has ended"
        return [it for it in stage.children() if "convert_hf_to_gguf.py" in " ".join(it.cmdline())]

    try:
        until(converters)
        (converter,) = converters()
    finally:
        stage.kill()
    assert not psutil.wait_procs([converter], timeout=60)[1]


@pytest.mark.usefixtures("llama_cpp")
def test_a_model_that_llama_cpp_does_not_know_costs_one_line(
    tmp_path: Path, model_folder: Path
) -> None:
    with pytest.raises(UserError, match=r"convert_hf_to_gguf\.py of llama\.cpp fails \(NotImpl"):
        gguf("tuned", model_folder, tmp_path / "gguf", {"types": ["f16", "bf16"]})
    assert not (tmp_path / "gguf").exists()


def test_tools_that_are_missing_are_named(
    tmp_path: Path, model_folder: Path, llama_cpp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault() -> str:
        with pytest.raises(ConfigError) as raised:
            gguf("tuned", model_folder, tmp_path / "gguf", {"types": ["f16", "q4_k_m"]})
        return str(raised.value)

    monkeypatch.setenv("PATH", "")
    (llama_cpp / "build/bin/llama-quantize").unlink()
    assert fault().startswith("runs.tuned.gguf.types: q4_k_m needs llama-quantize, which is not in")
    (llama_cpp / "convert_hf_to_gguf.py").unlink()
    assert "which has no convert_hf_to_gguf.py" in fault()
    monkeypatch.setattr("moray.extras.gguf.requirements.find_spec", lambda name: None)
    assert "is missing: sentencepiece; pip install 'moray[gguf]'" in fault()
    monkeypatch.undo()
    monkeypatch.delenv("LLAMA_CPP_DIR", raising=False)
    assert fault() == (
        "runs.tuned.gguf: needs llama.cpp, and LLAMA_CPP_DIR is not set; set it to the folder of "
        "llama.cpp's source"
    )


def test_what_is_missing_is_known_before_the_first_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMA_CPP_DIR", raising=False)
    with pytest.raises(ConfigError, match=r"^runs\.tuned\.gguf: needs llama\.cpp, and "):
        preflight(experiment_with({"runs.tuned.gguf": {}}), [], stages={"gguf": ["tuned"]})
