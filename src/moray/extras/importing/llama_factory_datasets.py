"""The counterparts of LLaMA-Factory's datasets."""

import re
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

from moray.extras.importing.settings import combine, held_out, judge, place, same_but_for_place
from moray.extras.importing.table import Draft
from moray.provenance.manifest import read_json

FORMATS = {
    "sft": "instruction",
    "pt": "text",
    "dpo": "preference",
    "kto": "unpaired-preference",
    "rm": "reward",
}
_PAIRS = {
    "prompt": "prompt",
    "messages": "prompt",
    "chosen": "chosen",
    "rejected": "rejected",
    "system": "system",
    "tools": "tools",
}
# Its names for the columns, by the format here: those that differ from its own defaults.
_COLUMNS = {
    "instruction": {
        "prompt": "instruction",
        "query": "input",
        "response": "output",
        "system": "system",
        "history": "history",
    },
    "messages": {"messages": "messages", "system": "system", "tools": "tools"},
    "preference": _PAIRS,
    "reward": _PAIRS,
    "unpaired-preference": {
        "prompt": "prompt",
        "response": "completion",
        "messages": "messages",
        "kto_tag": "label",
        "system": "system",
        "tools": "tools",
    },
    "text": {"prompt": "text"},
}
_KNOWN = {
    *("file_name", "hf_hub_url", "formatting", "columns", "subset", "split", "folder"),
    *("ranking", "tags", "num_samples"),
    # The same rows at other hubs.
    *("ms_hub_url", "om_hub_url"),
}
_SHAREGPT_TAGS = {
    "role_tag": ("role", "from"),
    "content_tag": ("content", "value"),
    "user_tag": ("user", "human"),
    "assistant_tag": ("assistant", "gpt"),
    "observation_tag": ("observation", "tool"),
    "function_tag": ("function_call",),
    "system_tag": ("system",),
}


def as_list(value: Any) -> list[str]:
    """The entries of a list, which may be written with commas."""
    entries = value.split(",") if isinstance(value, str) else list(value or [])
    return [str(entry).strip() for entry in entries]


def datasets(draft: Draft) -> None:
    """The datasets as `dataset_info.json` describes them, their splits and shares."""
    stage = draft.get("stage", "sft")
    share = held_out(draft, "val_size")
    folder, limit = Path(str(draft.get("dataset_dir", "data"))), draft.number("max_samples")
    names = as_list(draft.get("dataset"))
    if not names:
        draft.refused["dataset"] = "no dataset: nothing is trained; see `moray chat`, export"
    for name in names if stage in FORMATS else []:
        section = _described(draft, name, stage, folder, limit)
        if section["format"] == "instruction":
            draft.different["stage"] = "an empty line is between an instruction and its input"
        section.update({"validation_share": share, "test_share": 0.05})
        _add(draft, name, section)
    others = as_list(draft.get("eval_dataset"))
    made = [_described(draft, name, stage, folder, None) for name in others if stage in FORMATS]
    if others and not same_but_for_place(draft, made):
        draft.different["eval_dataset"] = (
            "a share of 0.05 is held out instead; see datasets.NAME.split and path, train and "
            "validation"
        )
    if stage == "rm":
        judge(draft, "dataset")
    weights = [float(weight) for weight in as_list(draft.get("interleave_probs"))]
    combine(draft)
    mixes = str(draft.get("mix_strategy", "concat")) != "concat"
    if len(draft.datasets) > 1 and mixes and len(weights) == len(draft.datasets):
        draft.put("dataset", dict(zip(draft.datasets, weights, strict=True)))
        draft.different["interleave_probs"] = "shares of the tokens, not of the rows"
    elif mixes and weights:
        draft.refused["interleave_probs"] = f"{len(weights)} for {len(draft.datasets)} datasets"
    elif len(draft.datasets) > 1:
        if weights:
            draft.same["interleave_probs"] = "only for mix_strategy: interleave_…"
        draft.different.setdefault("dataset", "")
        text = "shares of the tokens are equal; LLaMA-Factory's follow from the sizes"
        draft.different["dataset"] = f"{draft.different['dataset']}; {text}".removeprefix("; ")


def _described(
    draft: Draft, name: str, stage: str, folder: Path, limit: float | None
) -> dict[str, Any]:
    """A dataset as the file beside it describes it, or as it may be."""
    if str(folder) == "ONLINE":
        entry: Mapping[str, Any] | None = {"hf_hub_url": name}
    else:
        index = folder / "dataset_info.json"
        descriptions = read_json(index, remedy="correct it") if index.is_file() else {}
        entry = descriptions.get(name)
    if entry is not None:
        section = _section_of(draft, name, entry, stage, folder)
    else:
        section = {"source": "files", "path": f"{folder}/{name}.json", "format": FORMATS[stage]}
        missing = (
            f"{index} doesn't describe {name}"
            if index.is_file()
            else f"there is no {index} below the current folder"
        )
        draft.different["dataset"] = f"{missing}; correct path, format and columns"
    _limit(draft, name, section, limit, (entry or {}).get("num_samples"))
    return section


def _limit(
    draft: Draft, name: str, section: dict[str, Any], limit: float | None, number: Any
) -> None:
    """Take so many rows at most, as the config or the dataset's description says."""
    both = {"max_samples": limit, f"dataset.{name}.num_samples": number}
    limits = {key: int(rows) for key, rows in both.items() if rows}
    if not limits:
        return
    if "repo_id" in section and "[" not in section["split"]:
        section["split"] += f"[:{min(limits.values())}]"
        if number:
            draft.different[f"dataset.{name}.num_samples"] = "the first rows instead of random ones"
        return
    rows = "a split's part" if "repo_id" in section else "a file"
    draft.different |= dict.fromkeys(limits, f"all rows of {rows} are used")


def _free_name(draft: Draft, name: str) -> str:
    """A name that the config takes, and no other dataset has."""
    plain = re.sub("[^A-Za-z0-9]", "-", name).strip("-") or "data"
    numbered = (f"{plain}-{number}" for number in count(2))
    return next(each for each in chain([plain], numbered) if each not in draft.datasets)


def _add(draft: Draft, name: str, section: dict[str, Any]) -> None:
    """Add a dataset. Files that are read in the same way are one, as when they are concatenated."""
    rest = {key: value for key, value in section.items() if key != "path"}
    mixed = draft.config.get("mix_strategy") not in (None, "concat")
    for other in draft.datasets.values() if "path" in section and not mixed else ():
        if "path" in other and {key: other[key] for key in other if key != "path"} == rest:
            paths = other["path"] if isinstance(other["path"], list) else [other["path"]]
            other["path"] = [*paths, section["path"]]
            return
    if section in draft.datasets.values():
        draft.refused["dataset"] = f"{name} is there twice"
    draft.datasets[_free_name(draft, name)] = section


def _section_of(
    draft: Draft, name: str, entry: Mapping[str, Any], stage: str, folder: Path
) -> dict[str, Any]:
    """A dataset as `dataset_info.json` describes it."""
    file = entry.get("file_name")
    section: dict[str, Any] = {"source": "files", "path": f"{folder}/{file}"}
    # If both are there, LLaMA-Factory takes the repository.
    if file is None or entry.get("hf_hub_url"):
        if not entry.get("hf_hub_url"):
            draft.refused[f"dataset.{name}"] = "neither file_name nor hf_hub_url"
        section = place(str(entry.get("hf_hub_url")))
        section["split"] = entry.get("split", "train")
        section |= {"name": entry["subset"]} if entry.get("subset") else {}
        section |= {"data_dir": entry["folder"]} if entry.get("folder") else {}
    format = FORMATS[stage]
    if stage == "sft" and entry.get("formatting", "alpaca") != "alpaca":
        format = "messages"
    section["format"] = format
    names = dict(entry.get("columns", {}))
    defaults = {"messages": "conversations"}
    counterparts = _COLUMNS[format]
    refusals = [f"columns.{key}" for key in names.keys() - counterparts.keys() if names[key]]
    refusals += list(entry.keys() - _KNOWN)
    refusals += [
        f"tags.{key}"
        for key, tag in entry.get("tags", {}).items()
        if tag not in _SHAREGPT_TAGS.get(key, ())
    ]
    if stage in ("dpo", "kto", "rm") and entry.get("formatting", "alpaca") == "alpaca":
        draft.different[f"dataset.{name}"] = (
            "answers that are text get no chat template; write prompts and answers as messages"
        )
    if stage == "kto" and "kto_tag" not in names:
        refusals.append("no columns.kto_tag")
    if stage not in ("dpo", "rm") and entry.get("ranking"):
        refusals.append("ranking")
    if refusals:
        draft.refused[f"dataset.{name}"] = f"{', '.join(refusals)}: no counterpart"
    # In a file of pairs, an unnamed prompt is in LLaMA-Factory's default column.
    columns = {
        counterparts[key]: column
        for key, column in names.items()
        if key in counterparts and column not in (counterparts[key], defaults.get(key))
    }
    if format == "text" and "prompt" not in names:
        columns = {"text": "instruction"}
    section |= {"columns": columns} if columns else {}
    return section
