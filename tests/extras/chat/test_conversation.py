"""Talking to a model: its tokens, and its terminal."""

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest
import torch
import yaml
from conversations import CHATML, MARKED
from made_up_results import write_run
from metaspace import STOP, metaspace
from project import ROOT
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from moray.config.schema.base import result_keys
from moray.config.schema.sections import Augmentation, Data
from moray.corpus.dataset import Document
from moray.errors import UserError
from moray.extras.chat.conversation import Chat, _Printer, open_chats, talk
from moray.provenance.lineage import write_sealed
from moray.provenance.manifest import write_manifest
from moray.tasks.language.encode import Encoder, make_encoder

TURNS = ["What is 1 + 1?", "It is 2.", "And 2 + 2?", "That is 4."]


def template_of(overlay: str) -> str:
    config = yaml.safe_load((ROOT / "config" / overlay).read_text())
    (run,) = filter(None, config["runs"].values())
    template: str = run["data"]["chat_template"]
    return template


STRICT = """
{%- for message in messages %}
    {%- if message.role != ['user', 'assistant'][loop.index0 % 2] %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
{%- endfor %}
"""

TEMPLATES = {
    "chatml": CHATML,
    "strict": STRICT + CHATML.lstrip(),
    "marked": MARKED,
    **{name: template_of(name) for name in ("chat.yaml", "instruction.yaml")},
}


def make_run(project: Path, model: Path, **facts: object) -> None:
    """A trained run named `tuned`, as the workflow leaves it."""
    run = project / "results/runs/tuned"
    shutil.copytree(model, run / "model")
    (run / "train.json").write_text(json.dumps({"inputs": {"start": str(model)}}))
    (run / "generation.json").write_text(json.dumps(facts))


@pytest.fixture(params=TEMPLATES)
def chat(
    request: pytest.FixtureRequest,
    chat_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Chat:
    """A chat with a model of each template."""
    judged = {"exact_match": {"tuned": {"value": 0.5, "low": 0.0, "high": 1.0}}}
    make_run(tmp_path, chat_folder, max_new_tokens=4, metrics=judged)
    model = tmp_path / "results/runs/tuned/model"
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = TEMPLATES[request.param]
    tokenizer.save_pretrained(model)
    monkeypatch.chdir(tmp_path)
    return open_chats("tuned", base=False, tuned=True)["tuned"]


def test_a_model_gets_the_tokens_that_it_was_trained_with(chat: Chat) -> None:
    chat.length = 10_000
    messages = [
        {"role": role, "content": text}
        for role, text in zip(["user", "assistant"] * 2, TURNS, strict=True)
    ]
    cfg = {"format": "messages", **result_keys(Data())}
    encoder = make_encoder(Path("results/runs/tuned/model"), cfg)
    document = Document(messages=json.dumps(messages), tools=None)
    (trained,) = encoder.encode_documents([document], 0, count_bytes=False)
    for number in (0, 2):
        tokens = chat.tokens(TURNS[number])
        assert tokens == trained.tokens[: len(tokens)].tolist()
        # The answer is trained, and what is before it isn't.
        assert not trained.mask[len(tokens) - 1]
        assert trained.mask[len(tokens) :].any()
        chat.messages.append({"role": "assistant", "content": TURNS[number + 1]})


@pytest.mark.parametrize("bos", [False, True, None])
def test_a_text_begins_as_in_training(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bos: bool | None
) -> None:
    """By the model's manifest; that of earlier versions says nothing."""
    make_run(tmp_path, model_folder)
    facts = {} if bos is None else {"bos": bos}
    write_manifest(tmp_path / "results/runs/tuned/model", **facts)
    monkeypatch.chdir(tmp_path)
    chat = open_chats("tuned", base=False, tuned=True)["tuned"]
    chat.length = 10_000
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    alone = tokenizer("def", add_special_tokens=False)["input_ids"]
    assert chat.tokens("def") == [tokenizer.bos_token_id] * (bos is not False) + alone


@pytest.mark.parametrize("chat", ["chatml"], indirect=True)
def test_the_oldest_messages_are_forgotten_if_there_is_no_room(chat: Chat) -> None:
    chat.length = 10_000
    first = chat.tokens(TURNS[0])
    chat.messages.append({"role": "assistant", "content": TURNS[1]})
    chat.length = len(first) + 20
    assert len(chat.tokens(TURNS[2])) <= chat.length - 4
    assert [message["content"] for message in chat.messages] == [TURNS[2]]
    chat.length = 10
    with pytest.raises(UserError, match="shorten it"):
        chat.tokens(TURNS[0])


@pytest.mark.parametrize("chat", ["strict"], indirect=True)
def test_a_message_that_does_not_fit_leaves_the_conversation_as_it_was(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "x = 1 " * chat.length
    monkeypatch.setattr("sys.stdin", StringIO(f"Hello\n{long}\nAnd now?\n"))
    talk({"tuned": chat})
    said = [message["content"] for message in chat.messages if message["role"] == "user"]
    assert said == ["Hello", "And now?"]
    assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2
    line, *_ = errors(capsys)
    whole = chat.encoder.template().before_answer([{"role": "user", "content": long}])
    assert line.startswith(f"error: your message: got {len(chat.encoder.tokens_of(whole))} tokens")


def errors(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of errors; a model that isn't trained goes on until it is cut."""
    lines = capsys.readouterr().err.splitlines()
    return [line for line in lines if not line.startswith("(cut after 4 tokens; ")]


@pytest.mark.parametrize("chat", ["chatml"], indirect=True)
def test_a_system_prompt_comes_first_and_stays_if_others_are_forgotten(chat: Chat) -> None:
    chat.length, chat.system = 10_000, "Be short."
    before = [{"role": "system", "content": "Be short."}]
    user = [{"role": "user", "content": TURNS[0]}]
    whole = chat.encoder.template().before_answer([*before, *user])
    assert chat.tokens(TURNS[0]) == chat.encoder.tokens_of(whole)
    chat.messages.append({"role": "assistant", "content": TURNS[1]})
    chat.length = len(chat.encoder.tokens_of(whole)) + 20
    begin = chat.encoder.template().before_answer(before)
    assert chat.tokens(TURNS[2])[:5] == chat.encoder.tokens_of(begin)[:5]
    assert chat.messages == [{"role": "user", "content": TURNS[2]}]


@pytest.mark.parametrize(("stop", "is_cut"), [(None, True), (0, False)])
def test_an_answer_that_is_cut_is_said_to_be(
    stop: int | None,
    is_cut: bool,
    chat_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_run(tmp_path, chat_folder)
    monkeypatch.chdir(tmp_path)
    chat = open_chats("tuned", False, True, settings={"max_new_tokens": 4, "temperature": 0.0})
    assert chat["tuned"].sampling.max_new_tokens == 4
    one = chat["tuned"]
    if stop is not None:
        one.sampling = replace(one.sampling, stops=tuple(range(len(one.encoder.tokenizer))))
    capsys.readouterr()
    one.answer("Hello")
    said = capsys.readouterr().err
    assert said == is_cut * "(cut after 4 tokens; start with --max-new-tokens for more)\n"


def test_a_system_prompt_needs_a_chat_template(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, model_folder)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^--system: .* has no chat template"):
        open_chats("tuned", base=False, tuned=True, system="Be short.")


@pytest.mark.parametrize("chat", ["strict"], indirect=True)
def test_a_message_can_have_several_lines(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO("def f(x):\\\n    return x\n"))
    talk({"tuned": chat})
    assert chat.messages[0]["content"] == "def f(x):\n    return x"


@pytest.mark.parametrize("chat", ["strict"], indirect=True)
def test_a_message_that_is_no_text_is_left_out(
    chat: Chat, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = TextIOWrapper(BytesIO(b"caf\xe9\nwhole\n"), "utf-8", errors="surrogateescape")
    monkeypatch.setattr("sys.stdin", typed)
    talk({"tuned": chat})
    assert "error: your message: isn't text" in capsys.readouterr().err
    assert [message["content"] for message in chat.messages[::2]] == ["whole"]


@pytest.mark.parametrize("chat", ["strict"], indirect=True)
def test_a_message_that_the_template_refuses_is_left_out(chat: Chat) -> None:
    chat.messages = [{"role": "assistant", "content": TURNS[1]}]
    with pytest.raises(UserError, match="roles must alternate"):
        chat.tokens(TURNS[0])
    assert chat.messages == [{"role": "assistant", "content": TURNS[1]}]


def test_a_run_that_is_not_there_is_refused(
    tuned_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"make it by snakemake finetune$"):
        open_chats("tuned", base=False, tuned=True)
    make_run(tmp_path, tuned_folder)
    with pytest.raises(UserError, match="name one of tuned"):
        open_chats("other", base=False, tuned=True)


def test_a_model_of_images_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, "photos", sections={"augmentation": result_keys(Augmentation())})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="this model is for images; see snakemake generate"):
        open_chats("photos", base=False, tuned=True)


def test_the_model_of_an_earlier_training_is_named(
    tuned_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A training that fails has no train.json yet; the model is that of the one before."""
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path, tuned_folder)
    record = Path("results/runs/tuned/train.json")
    facts = {"training": json.loads(record.read_text())}
    write_sealed(record.with_name("model") / "lineage.json", facts, [record])
    open_chats("tuned", base=True, tuned=False)
    assert "earlier" not in capsys.readouterr().err
    record.unlink()
    assert {*open_chats("tuned", base=True, tuned=False)} == {"base of tuned"}
    assert f"this model is of an earlier training than {record}" in capsys.readouterr().err


class Terminal:
    """A command on a pseudo-terminal."""

    def __init__(self, process: "subprocess.Popen[bytes]", screen: int) -> None:
        self.process, self._screen = process, screen
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def wait_for(self, text: str) -> None:
        """Read until a text is shown after what was read before."""
        read, ends = "", time.monotonic() + 120
        while text not in read:
            assert time.monotonic() < ends, self.shown + read
            if select.select([self._screen], [], [], 1)[0]:
                read += os.read(self._screen, 4096).decode(errors="replace")
        self.shown += read


@pytest.fixture
def terminal(tuned_folder: Path, tmp_path: Path) -> Iterator[Terminal]:
    """`moray chat` with a model that would write for minutes."""
    endless = tmp_path / "endless"
    shutil.copytree(tuned_folder, endless)
    config = json.loads((endless / "config.json").read_text())
    # Its positions are rotated, so it takes longer texts than it was trained on.
    config["max_position_embeddings"] = 10**6
    (endless / "config.json").write_text(json.dumps(config))
    write_manifest(endless)
    make_run(tmp_path, endless, max_new_tokens=10**5, temperature=1.0, top_p=1.0)
    screen, keyboard = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "from moray.cli import app; app()", "chat", "tuned"],
        cwd=tmp_path,
        stdin=keyboard,
        stdout=keyboard,
        stderr=keyboard,
        start_new_session=True,
        # Makes the pseudo-terminal the one whose Ctrl-C reaches it.
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
    )
    os.close(keyboard)
    yield Terminal(process, screen)
    process.kill()
    process.wait()
    os.close(screen)


@pytest.mark.long
def test_ctrl_c_stops_an_answer_and_ctrl_d_leaves(terminal: Terminal) -> None:
    terminal.wait_for("> ")
    terminal.type("def f(x):\n")
    # The echo of the line, and a word of the answer.
    terminal.wait_for("\n")
    terminal.wait_for(" ")
    terminal.type("\x03")
    terminal.wait_for("\n> ")
    assert terminal.process.poll() is None
    terminal.type("\x04")
    assert terminal.process.wait(timeout=60) == 0
    assert "Traceback" not in terminal.shown


@pytest.mark.long
def test_a_line_that_is_no_text_does_not_end_the_command(
    tuned_folder: Path, tmp_path: Path
) -> None:
    make_run(tmp_path, tuned_folder, max_new_tokens=2)
    done = subprocess.run(
        [sys.executable, "-c", "from moray.cli import app; app()", "chat", "tuned"],
        cwd=tmp_path,
        # As in most locales but C.
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
        input=b"caf\xe9\nwhole\n",
        capture_output=True,
    )
    assert (done.returncode, done.stdout.count(b"> ")) == (0, 3)
    error, cut = done.stderr.decode().splitlines()
    assert error == "error: your message: isn't text; type it again"
    assert cut == "(cut after 2 tokens; start with --max-new-tokens for more)"


@pytest.mark.parametrize("scheme", ["always", "first"])
@pytest.mark.parametrize("unigram", [False, True])
def test_what_is_printed_keeps_the_spaces_that_it_begins_with(
    unigram: bool, scheme: str, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=metaspace(unigram, scheme, texts), bos_token="<s>", eos_token=STOP
    )
    encoder = Encoder(tokenizer, 4096)
    prompt, completion = "def f(x):\n", "    y = x\n    return 'é🐍'\n"
    before = encoder.prompt_tokens(prompt)
    printed = _Printer(tokenizer)
    printed.put(torch.tensor(before))
    for token in encoder.prompt_tokens(prompt + completion)[len(before) :]:
        printed.put(torch.tensor([token]))
    printed.end()
    assert printed.text == completion
    assert capsys.readouterr().out == completion + "\n"
