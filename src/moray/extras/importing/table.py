"""A table of another tool's keys and what becomes of each, and how it is applied to a config."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Literal

import yaml

_OFF: tuple[Any, ...] = (None, False, "", [], {}, 0)
_NUMBER = re.compile(r"[+-]?[\d.]+(?:e[+-]?\d+)?", re.IGNORECASE)
REVISION = "FILL-IN"


@dataclass
class Draft:
    """A draft of an overlay, and notes on the keys of the other tool's config.

    Attributes:
        name: name of the run.
        config: the values of the other tool's keys, nested ones with dots.
        gpus: number of GPUs that the config was for.
        run: the run's sections.
        model: its model's section.
        datasets: sections of its datasets, by name.
        same: keys without an effect on the result here, with the reason.
        different: keys that lead to another result here, with what is done instead.
        refused: keys that have no counterpart, with the reason.
        off: keys whose values switch nothing on.
        read: keys that rules have read. A key that is in none of these is unknown.
        origin: by the path of a key in the run, the other tool's keys that it comes from.
    """

    name: str
    config: Mapping[str, Any]
    gpus: int = 1
    run: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    datasets: dict[str, dict[str, Any]] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    different: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    off: list[str] = field(default_factory=list)
    read: set[str] = field(default_factory=set)
    origin: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # The keys of the rule under way.
    _converted: tuple[str, ...] = ()

    def get(self, key: str, default: Any = None) -> Any:
        """A key's value, or the default if it has none; the key then counts as converted."""
        self.read.add(key)
        value = self.config.get(key)
        return default if value is None else value

    def number(self, key: str, default: float | None = None) -> float | None:
        """A key's value as a number; plain YAML reads `1e-4` as text."""
        value = self.get(key, default)
        try:
            number = None if value is None else float(value)
        except (TypeError, ValueError):
            self.refused[key] = f"got {value!r}, expected a number"
            return default
        return int(number) if number is not None and number.is_integer() else number

    def put(self, path: str, value: Any) -> None:
        """Set a key of the run, by its dotted path."""
        self.origin[path] = self._converted
        *parents, last = path.split(".")
        section = self.run
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value


@dataclass(frozen=True)
class Rule:
    """A rule for some keys of another tool.

    Attributes:
        keys: their names, or patterns of them.
        here: their counterpart, for the documentation.
        apply: called with the draft and those of the keys that the config has; in any case, also
            without any, because the other tool's defaults aren't those of this one.
    """

    keys: tuple[str, ...]
    here: str
    apply: Callable[[Draft, Sequence[str]], None]


def becomes(
    keys: str, target: str, default: Any = None, read: Callable[[Any], Any] | None = None
) -> Rule:
    """One key, perhaps of several names, whose value becomes that of a key of the run."""
    first, *others = keys.split()

    def apply(draft: Draft, present: Sequence[str]) -> None:
        for key in (*others, first):
            if key in present or key == first:
                fallback = default if key == first and len(present) < 2 else None
                value = draft.get(key, fallback) if read else draft.number(key, fallback)
                value = read(value) if read and value is not None else value
                if value is not None:
                    draft.put(target, value)

    return Rule((first, *others), f"`{target}`", apply)


def converts(keys: str, here: str, convert: Callable[[Draft], None]) -> Rule:
    """Keys that one function converts."""
    return Rule(tuple(keys.split()), here, lambda draft, present: convert(draft))


def no_effect(keys: str, why: str) -> Rule:
    """Keys that don't change the result here; `key=value` names a default that isn't empty."""
    return _note(keys, f"no effect: {why}", "same", why)


def differs(keys: str, instead: str) -> Rule:
    """Keys whose counterpart leads to another result; `key=value` as in `no_effect`."""
    return _note(keys, f"differs: {instead}", "different", instead)


def refused(keys: str, why: str) -> Rule:
    """Keys without a counterpart; `key=value` as in `no_effect`."""
    return _note(keys, f"refused: {why}", "refused", why)


def feature(
    switches: str, settings: str, why: str, where: Literal["different", "refused"] = "refused"
) -> Rule:
    """Keys that switch something on that isn't here, and its settings, which are nothing alone."""
    names, defaults = _names(switches)

    def apply(draft: Draft, present: Sequence[str]) -> None:
        for key in present:
            if _is_one_of(key, names) and not _is_off(draft.config[key], key, defaults):
                getattr(draft, where)[key] = why
        on = any(key in getattr(draft, where) for key in present)
        rest = [key for key in present if key not in getattr(draft, where)]
        if on:
            draft.read.update(rest)
        else:
            draft.off += rest

    label = "differs" if where == "different" else "refused"
    return Rule((*names, *settings.split()), f"{label}: {why}", apply)


def _note(keys: str, here: str, where: str, text: str) -> Rule:
    names, defaults = _names(keys)

    def apply(draft: Draft, present: Sequence[str]) -> None:
        for key in present:
            if _is_off(draft.config[key], key, defaults):
                draft.off.append(key)
            else:
                getattr(draft, where)[key] = text

    return Rule(names, here, apply)


def _names(keys: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Names of keys, and the defaults that are written behind them."""
    words = [word.partition("=") for word in keys.split()]
    defaults = {name: yaml.safe_load(value) for name, sign, value in words if sign}
    return tuple(name for name, _, _ in words), defaults


def _is_off(value: Any, key: str, defaults: Mapping[str, Any]) -> bool:
    """Whether a value is the other tool's default, or switches nothing on."""
    if value is None:
        return True
    if key in defaults:
        return bool(_plain(value) == _plain(defaults[key]))
    return value in _OFF


def _plain(value: Any) -> Any:
    """A value as it is compared: plain YAML reads `1e-8` as text."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value)
    return value.lower() if isinstance(value, str) else value


def _is_one_of(key: str, names: Sequence[str]) -> bool:
    return any(fnmatchcase(key, name) for name in names)


def apply(rules: Sequence[Rule], draft: Draft) -> None:
    """Apply rules to a draft; a key is its first rule's. Unknown ones are refused, except nulls."""
    rest = [*draft.config]
    for rule in rules:
        present = [key for key in rest if _is_one_of(key, rule.keys)]
        rest = [key for key in rest if key not in present]
        draft._converted = tuple(present)
        try:
            rule.apply(draft, present)
        # A value is of another kind, which may be that of an earlier rule's key.
        except (ArithmeticError, AttributeError, TypeError, ValueError):
            wrong = present or draft.read & draft.config.keys()
            draft.refused |= dict.fromkeys(wrong, "a value of another kind may be expected")
    read = draft.read | draft.same.keys() | draft.different.keys() | draft.refused.keys()
    for key in draft.config.keys() - read - {*draft.off}:
        if draft.config[key] is None:
            draft.off.append(key)
        else:
            draft.refused[key] = _unknown(key, [name for rule in rules for name in rule.keys])


def _unknown(key: str, names: Sequence[str]) -> str:
    if _is_one_of(key, names):
        return "nothing with the other keys as they are"
    near = _near(key, names)
    return f"unknown key; did you mean {near}?" if near else "unknown key"


def _near(key: str, names: Sequence[str]) -> str | None:
    """The key that is most like one that the other tool doesn't have, or is inside another one."""
    inside = (name for name in names if name.endswith(f".{key}"))
    close = get_close_matches(key, [name for name in names if "*" not in name], n=1, cutoff=0.75)
    return next(inside, None) or next(iter(close), None)


def flatten(config: Mapping[str, Any], nested: Sequence[str]) -> dict[str, Any]:
    """A config with the keys inside these mappings beside the others, with dots."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if key in nested and isinstance(value, Mapping) and value:
            flat |= {f"{key}.{inner}": entry for inner, entry in value.items()}
        else:
            flat[str(key)] = value
    return flat


def entry_draft(draft: Draft, key: str, entry: Mapping[str, Any], rules: Sequence[Rule]) -> Draft:
    """Apply rules to a mapping inside a config, and take over their notes on its keys."""
    inner = Draft(draft.name, entry)
    apply(rules, inner)
    for name in ("same", "different", "refused"):
        notes = {f"{key}.{inside}": text for inside, text in getattr(inner, name).items()}
        getattr(draft, name).update(notes)
    draft.off += [f"{key}.{inside}" for inside in inner.off]
    return inner


def markdown(tool: str, rules: Sequence[Rule]) -> Iterator[str]:
    """Lines of a table for the documentation."""
    yield f"| {tool} | in moray |"
    yield "|---|---|"
    for rule in rules:
        yield f"| {', '.join(f'`{key}`' for key in _shown(rule.keys))} | {rule.here} |"


def _shown(keys: Sequence[str]) -> Iterator[str]:
    """Keys, with those that are all inside another one as one entry."""
    blocks = Counter(key.partition(".")[0] for key in keys if "." in key)
    shown = (
        f"{block}.*" if blocks[block] > 6 and inside else key
        for key in keys
        for block, _, inside in [key.partition(".")]
    )
    return iter(dict.fromkeys(shown))
