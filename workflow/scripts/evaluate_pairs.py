"""Rule evaluate_pairs."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.evaluate_pairs import evaluate_pairs

    evaluate_pairs(
        run=snakemake.wildcards.run,
        base=Path(snakemake.input.base).parent,
        tuned=Path(snakemake.input.tuned).parent,
        tokens=Path(snakemake.input.tokens).parent,
        output=Path(snakemake.output[0]),
        cfg=snakemake.params.cfg,
        execution=snakemake.params.execution,
    )
