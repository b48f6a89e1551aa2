"""What both tools have of adapters."""

import re
from typing import Any

from moray.extras.importing.table import Draft


def initial_weights(draft: Draft, key: str, value: Any) -> dict[str, Any]:
    """The key of an adapter for PEFT's `init_lora_weights`, if it has this value."""
    if value in (None, True, "true"):
        return {}
    if not re.fullmatch(r"gaussian|orthogonal|olora|pissa(_niter_[1-9]\d*)?", str(value)):
        draft.refused[key] = f"{value}: only gaussian, orthogonal, olora and pissa"
        return {}
    return {"init_lora_weights": value}


def earlier_adapter(draft: Draft, key: str, goes_on: bool) -> dict[str, Any]:
    """The adapter that a run starts from, as that of its base model.

    Args:
        goes_on: whether it is trained further, instead of a new one on top of it.

    Returns:
        Keys of the run's adapter.
    """
    folder = draft.get(key)
    if not folder:
        return {}
    if not isinstance(folder, str) or "," in folder:
        draft.refused[key] = "several adapters: merge all but the last one into the base"
        return {}
    draft.model["adapter"] = folder.removeprefix("./")
    return {"create_new_adapter": False} if goes_on else {}
