"""The counterparts of axolotl's datasets."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moray.extras.importing.axolotl_templates import PROMPT_FIELDS
from moray.extras.importing.settings import combine, held_out, judge, place, same_but_for_place
from moray.extras.importing.table import Draft, Rule, converts, entry_draft, no_effect, refused

_OWN_ROLES = {"system": ["system"], "user": ["user"], "assistant": ["assistant"]}
_FORMATS = {
    "alpaca": "instruction",
    "alpaca:chat": "instruction",
    "alpaca:chatml": "instruction",
    "alpaca:phi": "instruction",
    "chat_template": "messages",
    # What ShareGPT's rows were called before they were rendered with a chat template.
    "sharegpt": "messages",
    "chat_template.default": "preference",
    "chat_template.argilla": "preference",
    "chat_template.argilla_chat": "preference",
    "chatml.argilla_chat": "preference",
    "chatml.ultra": "preference",
    "llama3.argilla_chat": "preference",
    "llama3.ultra": "preference",
    "bradley_terry.chat_template": "reward",
    "completion": "text",
    "pretrain": "text",
}


# Of `rl: kto`, with the prompt in the completion; and the parts of rows of one's own.
_ANSWER_TALKS = ("chatml.argilla_chat", "llama3.argilla_chat")
_ANSWER_FORMS = ("prompt", "completion")
# Beside the keys of a dataset, because its type depends on it.
_RL = "rl"

# How `datasets` reads files that are in no repository, and the endings of their names here.
_ENDINGS = {"json": (".json", ".jsonl"), "csv": (".csv",), "parquet": (".parquet",)}


def _columns(draft: Draft) -> None:
    kind = draft.get("type")
    if draft.get(_RL) == "kto":
        _answers(draft, kind)
        return
    if isinstance(kind, dict):
        _own_prompt(draft, kind)
        return
    kind = str(kind)
    format = _FORMATS.get(kind)
    if format is None:
        draft.refused["type"] = f"{kind}: its rows would be others; see docs/import.md"
        return
    draft.run["format"] = format
    if kind == "sharegpt":
        draft.different["type"] = "axolotl rendered ShareGPT's rows with FastChat's templates"
    fields: dict[str, str] = {
        "instruction": {},
        "messages": {
            "messages": "field_messages",
            "system": "field_system",
            "tools": "field_tools",
        },
        "preference": {
            "prompt": "field_messages",
            "chosen": "field_chosen",
            "rejected": "field_rejected",
        },
        "reward": {},
        "text": {"text": "text_column" if kind == "pretrain" else "field"},
    }[format]
    if format == "preference" and kind != "chat_template.default":
        # Both answers are conversations, with the prompt in them.
        del fields["prompt"]
    columns = {column: draft.get(key) for column, key in fields.items()}
    if kind == "chat_template.default":
        columns["prompt"] = columns["prompt"] or "messages"
        draft.different["type"] = "pairs of text, not of messages, get no chat template"
    if format == "reward":
        columns["prompt"] = "input"
        draft.run["system"] = False
        draft.different["type"] = (
            "pairs of text get no chat template and no system prompt; write them as messages"
        )
    # ShareGPT's name needs no mapping.
    standard = {"messages": ("messages", "conversations")}
    if column_names := {
        column: name
        for column, name in columns.items()
        if name and name not in standard.get(column, (column,))
    }:
        draft.run["columns"] = column_names


def _answers(draft: Draft, kind: Any) -> None:
    """Rows with one answer and a label, as conversations or as text without a prompt's format."""
    draft.run["format"] = "unpaired-preference"
    if str(kind) in _ANSWER_TALKS:
        draft.run["columns"] = {"messages": "completion"}
        return
    given = kind if isinstance(kind, Mapping) else {}
    forms = {name: given.get(f"{name}_format") or f"{{{name}}}" for name in _ANSWER_FORMS}
    if not given or forms != {name: f"{{{name}}}" for name in _ANSWER_FORMS}:
        draft.refused["type"] = (
            f"{kind}: its rows would be others; {', '.join(_ANSWER_TALKS)}, or fields of one's own "
            "without a format"
        )
        return
    names = {name: given.get(f"field_{name}") for name in (*_ANSWER_FORMS, "label")}
    columns = {column: name for column, name in names.items() if name and name != column}
    draft.run.update({"columns": columns} if columns else {})


def _own_prompt(draft: Draft, kind: dict[str, Any]) -> None:
    """Instructions with a prompt of one's own, which is the chat template's."""
    form = "{instruction} "
    if unknown := kind.keys() - PROMPT_FIELDS:
        draft.refused["type"] = f"{', '.join(sorted(unknown))}: the rows would be others"
    elif "{instruction}" not in str(kind.get("no_input_format") or kind.get("format") or form):
        draft.refused["type"] = "a prompt without {instruction}"
    elif kind.get("format") and not kind.get("no_input_format"):
        draft.different["type"] = (
            f"`format` is the prompt of rows without an input too, which is {form!r} in axolotl"
        )
    draft.run["format"] = "instruction"
    names = {name: kind.get(f"field_{name}") for name in ("instruction", "input", "output")}
    names["system"] = kind.get("field_system")
    columns = {column: name for column, name in names.items() if name and name != column}
    draft.run.update({"columns": columns} if columns else {})
    if system := kind.get("system_prompt"):
        draft.run["system"] = system


def _messages(draft: Draft) -> None:
    names = dict(draft.get("message_property_mappings", {}))
    # Their earlier names.
    for key in ("role", "content"):
        if name := draft.get(f"message_field_{key}"):
            names[key] = name
    fits = {"role": ("role", "from"), "content": ("content", "value")}
    if any(name not in fits.get(key, ()) for key, name in dict(names).items()):
        draft.refused["message_property_mappings"] = "only role or from, content or value"
    roles = draft.get("roles", _OWN_ROLES)
    if any(list(spelling) != _OWN_ROLES.get(role) for role, spelling in dict(roles).items()):
        draft.refused["roles"] = "roles have the names of OpenAI's or ShareGPT's format"
    thinking = draft.get("field_thinking", "thinking")
    if thinking not in ("reasoning_content", "reasoning", "thinking"):
        draft.refused["field_thinking"] = "only reasoning_content, reasoning, thinking"


def _put_roles(draft: Draft) -> None:
    trained = draft.get("roles_to_train", ["assistant"])
    if not trained or {*trained} - {"assistant", "gpt"}:
        draft.refused["roles_to_train"] = "only what the assistant says is trained"
    for key in ("train_on_eos", "train_on_eot"):
        if draft.get(key, "turn") != "turn":
            draft.refused[key] = "the end of each answer is trained"
    if draft.get("drop_system_message"):
        draft.run["system"] = False


def _files(draft: Draft) -> None:
    path, files = draft.get("path"), draft.get("data_files", [])
    if not isinstance(path, str):
        draft.refused["path"] = "the name of a dataset is needed"
        return
    names = [files] if isinstance(files, str) else list(files)
    commit, subset = str(draft.get("revision", "")), draft.get("name")
    if path in _ENDINGS and names and not Path(path).exists():
        # Without a repository, the path names the builder of `datasets` that reads the files.
        _put_files(draft, [str(name) for name in names])
        return
    location = place(path)
    if "repo_id" not in location:
        inside = [f"{location['path'].rstrip('/')}/{name}" for name in names]
        draft.run.update({"source": "files", "path": inside or location["path"]})
    elif names:
        at = f"@{commit}" if commit else ""
        urls = [f"hf://datasets/{path}{at}/{name}" for name in names]
        draft.run.update({"source": "url", "url": urls})
        if not commit:
            draft.different["data_files"] = "the newest commit is read, not a pinned one"
    else:
        draft.run.update(location)
        if re.fullmatch("[0-9a-f]{40}", commit):
            draft.run["revision"] = commit
        elif commit and commit != "main":
            draft.different["revision"] = "a whole commit hash is needed; fill it in"
        draft.run["split"] = draft.get("split", "train")
        if skipped := draft.number("skip"):
            draft.run["split"] += f"[{skipped:g}:]"
        if subset:
            draft.run["name"] = subset
    if draft.get("skip") and "split" not in draft.run:
        draft.refused["skip"] = "only of a repository's datasets"
    # Files have a single split.
    if draft.get("split", "train") != "train" and "split" not in draft.run:
        draft.refused["split"] = "only of a repository's datasets"


def _put_files(draft: Draft, names: list[str]) -> None:
    remote = ["://" in name for name in names]
    if any(remote) and not all(remote):
        draft.refused["data_files"] = "either all are URLs, or none"
    elif any(remote):
        draft.run.update({"source": "url", "url": names})
    else:
        draft.run.update({"source": "files", "path": names if len(names) > 1 else names[0]})
    if draft.get("split", "train") != "train":
        draft.refused["split"] = "only of a repository's datasets"


def _kind_of_file(draft: Draft) -> None:
    """How a file is read, which its name tells here."""
    kind = draft.get("ds_type")
    if kind is None:
        return
    paths = draft.run.get("path", draft.run.get("url", []))
    suffixes = _ENDINGS.get(str(kind), ())
    # A path without an ending is a folder.
    endings = [Path(str(path)).suffixes for path in _as_list(paths)]
    if not suffixes or any(names and not {*names} & {*suffixes} for names in endings):
        draft.refused["ds_type"] = f"{kind}: files are read by the ending of their names"
    else:
        draft.same["ds_type"] = "files are read by the ending of their names"


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


DATASET: Sequence[Rule] = (
    converts(
        "path name split skip data_files revision", "`source`, `repo_id`, `path`, `split`", _files
    ),
    converts(
        "type field field_messages field_system field_tools field_chosen field_rejected "
        "text_column",
        "`format`: `alpaca`, with `:chat`, `:chatml` and `:phi`, and a prompt of one's own → "
        "`instruction`; `chat_template`, `sharegpt` → `messages`; `chat_template.default`, "
        "`.argilla`, `.argilla_chat`, `chatml.` and `llama3.` with `ultra` and `argilla_chat` → "
        "`preference`; with `rl: kto`, `chatml.` and `llama3.argilla_chat`, and one's own fields "
        "→ `unpaired-preference`; `bradley_terry.chat_template` → `reward`; `completion`, "
        "`pretrain` → `text`; `columns`",
        _columns,
    ),
    converts(
        "message_property_mappings message_field_role message_field_content roles field_thinking",
        "names that `format: messages` knows; others are refused",
        _messages,
    ),
    converts(
        "roles_to_train train_on_eos train_on_eot drop_system_message",
        "answers and the ends of their turns are trained, others are refused; `system: false`",
        _put_roles,
    ),
    converts(
        "chat_template chat_template_jinja conversation",
        "`data.chat_template`, as those of the config",
        lambda draft: draft.read.update(("chat_template", "chat_template_jinja", "conversation")),
    ),
    converts("ds_type", "the ending of a file's name; others are refused", _kind_of_file),
    refused("shards shards_idx", "a part of the rows; of a repository, split: train[:10%] is one"),
    no_effect("preprocess_shards trust_remote_code", "how files are read"),
    no_effect("template_thinking_key", "the chat template gets reasoning_content"),
    refused(
        "message_field_training message_field_training_detail", "a turn is trained by its role"
    ),
    refused(
        "input_format input_transform field_human field_model split_thinking logprobs_field "
        "temperature step_separator max_completion_length train_on_last_step_only length "
        "sequence_length min_input_id max_input_id seed",
        "the rows would be others",
    ),
)


def datasets(draft: Draft) -> None:
    """The datasets, their splits, and what is done with long documents."""
    share = held_out(draft, "val_set_size")
    text_only = True
    for key in ("datasets", "pretraining_dataset"):
        for number, entry in enumerate(draft.get(key, [])):
            if key == "pretraining_dataset":
                entry = {"type": "pretrain", **entry}
            inner = _entry(draft, f"{key}.{number}", entry)
            section = inner.run
            section.update({"validation_share": share, "test_share": 0.05})
            draft.datasets[f"{draft.name}-{len(draft.datasets) + 1}"] = section
            text_only = text_only and section.get("format") == "text"
    _validation(draft)
    _unite(draft)
    formats = {str(section.get("format")) for section in draft.datasets.values()}
    if not draft.datasets:
        draft.refused["datasets"] = "no dataset"
    if len(draft.datasets) > 1:
        draft.different["datasets"] = "shares of the tokens are equal; axolotl's follow from sizes"
    if {"instruction", "messages"} <= formats:
        draft.refused["datasets"] = "alpaca and chat_template need two chat templates in one run"
    rl = draft.config.get("rl")
    if rl == "kto" and formats != {"unpaired-preference"}:
        draft.refused["datasets"] = "rl: kto is for answers with a label alone"
    elif rl != "kto" and (formats == {"preference"}) != bool(rl):
        draft.refused["datasets"] = (
            "rl: dpo, ipo, simpo and orpo are for pairs, such as type: chat_template.default"
        )
    if (formats == {"reward"}) != bool(draft.config.get("reward_model")):
        draft.refused["datasets"] = (
            "reward_model is for pairs, type: bradley_terry.chat_template, and they are for it"
        )
    if formats == {"reward"}:
        judge(draft, "datasets")
    if draft.get("train_on_inputs") and not text_only:
        draft.refused["train_on_inputs"] = "prompts aren't trained"
    handling = str(draft.get("excess_length_strategy", "drop"))
    draft.put("data.long_documents", "split" if text_only else handling)
    combine(draft)


def _entry(draft: Draft, key: str, entry: Mapping[str, Any]) -> Draft:
    return entry_draft(draft, key, {**entry, _RL: draft.config.get("rl")}, DATASET)


def _unite(draft: Draft) -> None:
    """Leave out a dataset that is there twice, if axolotl leaves out rows that are."""
    sections = [*draft.datasets.items()]
    twice = [
        name
        for n, (name, section) in enumerate(sections)
        if section in [each for _, each in sections[:n]]
    ]
    if draft.get("dataset_exact_deduplication"):
        draft.different["dataset_exact_deduplication"] = (
            "a dataset that is there twice is read once; rows that are, are kept"
        )
        for name in twice:
            del draft.datasets[name]
    elif twice:
        draft.refused["datasets"] = "one is there twice; remove it, and train twice as many epochs"


def _validation(draft: Draft) -> None:
    """Rows of their own for validation."""
    entries = draft.get("test_datasets", [])
    made = [_entry(draft, f"test_datasets.{n}", entry) for n, entry in enumerate(entries)]
    if entries and not same_but_for_place(draft, [inner.run for inner in made]):
        draft.different["test_datasets"] = (
            "a share of 0.05 is held out instead; see datasets.NAME.split and path, train and "
            "validation"
        )
