"""What several runs wrote for the same held-out prompts, beside each other."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from moray.report.answer import Answer
from moray.report.details import Limits, cut

# More texts beside each other are too narrow to read.
_MOST_RUNS, _MOST_PROMPTS = 4, 2
_SHARED = ("prompt", "reference", "base")


def samples_beside(
    answers: Iterable[Answer], samples: Mapping[str, Sequence[Mapping[str, Any]]], limits: Limits
) -> list[tuple[dict[str, Any], list[tuple[str, str]]]]:
    """Samples of the best runs of each answer with several: what they share, then name and text.

    Args:
        samples: by run, as in `Results.samples`. Those without a prompt are left out.
    """
    found = []
    for answer in answers:
        names = {line.run: line.name for line in answer.lines[:_MOST_RUNS]}
        if len(names) < 2:
            continue
        first, *others = ({_key(s): s for s in samples[run] if "prompt" in s} for run in names)
        common = [key for key in first if all(key in other for other in others)]
        for key in common[:_MOST_PROMPTS]:
            shared = {name: cut(first[key][name], limits.characters) for name in _SHARED}
            texts = [cut(of[key]["tuned"], limits.characters) for of in (first, *others)]
            if all(isinstance(text, str) for text in texts):
                found.append((shared, list(zip(names.values(), texts, strict=True))))
    return found


def _key(sample: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(str(sample.get(name)) for name in _SHARED)
