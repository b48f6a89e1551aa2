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
    system: Annotated[
        str | None, typer.Option(help="A system prompt, for models with a chat template.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0 takes the likeliest token each time.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="The most tokens of an answer.")
    ] = None,
) -> None:
    """Talk to a run's model. Ctrl-C stops an answer, Ctrl-D leaves.

    A model with a chat template answers; any other continues what you type. It samples as
    `snakemake generate` did, unless options say otherwise.
    """
    # So that lines can be edited.
    import readline  # noqa: F401

    from transformers.utils.logging import disable_progress_bar

    from moray.extras.chat.conversation import open_chats, talk

    disable_progress_bar()
    settings = {"temperature": temperature, "max_new_tokens": max_new_tokens}
    changed = {key: value for key, value in settings.items() if value is not None}
    chats = open_chats(run, base or both, both or not base, system, changed)
    # A line that isn't text doesn't end the conversation.
    sys.stdin.reconfigure(errors="surrogateescape")  # type: ignore[union-attr]
    talk(chats)
