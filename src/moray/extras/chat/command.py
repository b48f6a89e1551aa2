"""The command `moray chat`."""

import sys
from typing import Annotated

import typer


def command(
    run: Annotated[str, typer.Argument(help="Name of a run.")],
    base: Annotated[
        bool, typer.Option("--base", help="Talk to the model it started from.")
    ] = False,
    both: Annotated[bool, typer.Option("--both", help="Talk to both models.")] = False,
) -> None:
    """Talk to a run's model. Ctrl-C stops an answer, Ctrl-D leaves.

    A model with a chat template answers; any other continues what you type.
    """
    # So that lines can be edited.
    import readline  # noqa: F401

    from transformers.utils.logging import disable_progress_bar

    from moray.extras.chat.conversation import open_chats, talk

    disable_progress_bar()
    chats = open_chats(run, base=base or both, tuned=both or not base)
    # A line that isn't text doesn't end the conversation.
    sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    talk(chats)
