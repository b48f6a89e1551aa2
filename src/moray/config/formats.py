"""The row formats of datasets. Part of the code that results depend on; see `config.code`."""

# The columns of each format, and whether a row must have them.
FORMATS: dict[str, dict[str, bool]] = {
    "text": {"text": True},
    "prompt-completion": {"prompt": True, "completion": True},
    "instruction": {"instruction": True, "input": False, "output": True, "system": False},
    # `prompt` and `completion` together, as lists of messages, replace `messages`.
    "messages": {
        "messages": True,
        "prompt": False,
        "completion": False,
        "tools": False,
        "system": False,
    },
    "preference": {
        "prompt": False,
        "chosen": True,
        "rejected": True,
        "tools": False,
        "system": False,
    },
    "images": {"image": True, "label": True},
}
# Rows of `preference` can be conversations or text.
CHAT_FORMATS = ("instruction", "messages", "preference")

# The task of each format.
TASKS = dict.fromkeys(FORMATS, "language") | {"preference": "preference", "images": "images"}
