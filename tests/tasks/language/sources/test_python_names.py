"""Which words of a function name what."""

import json

from moray.corpus.dataset import Document
from moray.tasks.language.sources.python_names import tagged

PROMPT = '''def send(self, data: bytes, *more, quiet=False):
    """Send data."""
'''
BODY = """    # Again, if it fails.
    def again(count):
        return count + len(data)
    try:
        self.socket.data = data, 'a b'
    except (socket.timeout, OSError):
        raise errors.Late(quiet) from None
"""
EXPECTED = {
    "FUNCTION": ["send", "again"],
    "PARAMETER": [
        *("self", "data", "more", "quiet", "count"),
        *("count", "data", "self", "data", "quiet"),
    ],
    "EXCEPTION": ["socket . timeout", "OSError", "errors . Late"],
}


def entities(words: list[str], tags: list[str]) -> dict[str, list[str]]:
    found = dict[str, list[str]]()
    for word, tag in zip(words, tags, strict=True):
        if tag.startswith("B-"):
            found.setdefault(tag[2:], []).append(word)
        elif tag != "O":
            found[tag[2:]][-1] += f" {word}"
    return found


def test_words_are_tagged_by_what_they_name() -> None:
    function = Document(prompt=PROMPT, completion=BODY, group="a.py")
    (document,) = tagged([function])
    words, tags = json.loads(document["tokens"]), json.loads(document["tags"])
    assert entities(words, tags) == EXPECTED
    assert document["group"] == "a.py"
    assert "".join(words[:6]) == "defsend(self,data"
    # Strings are empty, and the docstring and comments aren't there.
    assert words.count('""') == 1
    assert not {"#", "Send", "Again"} & {*words}


def test_code_that_is_long_or_not_ascii_is_left_out() -> None:
    for code in ("    return 'é'\n", "    return 1\n" * 40):
        assert not [*tagged([Document(prompt="def f():\n", completion=code, group="a.py")])]
