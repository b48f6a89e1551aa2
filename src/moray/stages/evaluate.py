"""Score a run's model and its base on the same held-out documents."""

from moray.console import say
from moray.evaluate.bootstrap import compare
from moray.evaluate.likelihood import score
from moray.evaluate.selection import select_documents
from moray.model.load import load_model
from moray.provenance.manifest import write_json
from moray.stages.boundary import File, Folder, Json, command_line
from moray.tokens.store import StoredSplit


def evaluate(
    base: Folder, tuned: Folder, tokens: Folder, output: File, cfg: Json, batch_size: int = 16
) -> None:
    """Write `eval.json`.

    Args:
        base: Hugging Face folder that the run started from.
        tuned: the run's model.
        tokens: the run's token store.
        output: file to write.
        cfg: keys of the `evaluate` section that the result depends on.
        batch_size: rows in a forward pass.
    """
    split = StoredSplit(tokens, "test")
    selection = select_documents(split, cfg["max_documents"])
    scores = {
        name: score(load_model(folder), split, selection, batch_size)
        for name, folder in (("base", base), ("tuned", tuned))
    }
    held_out = scores["base"]
    result = {
        "rows": len(selection.rows),
        "documents": len(held_out.by_document().tokens),
        "tokens": int(held_out.tokens.sum()),
        "bytes": int(held_out.bytes.sum()),
        "confidence": cfg["confidence"],
        **compare(scores["base"], scores["tuned"], cfg["bootstrap_samples"], cfg["confidence"]),
    }
    write_json(output, result)
    for figure in ("bits_per_byte", "accuracy"):
        first, second = result["base"][figure], result["tuned"][figure]
        say(
            f"{output.parent.name}: {figure} {first['value']:.3f} "
            f"[{first['low']:.3f}, {first['high']:.3f}] before, {second['value']:.3f} "
            f"[{second['low']:.3f}, {second['high']:.3f}] after"
        )


if __name__ == "__main__":
    command_line(evaluate)
