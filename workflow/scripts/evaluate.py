"""Rule evaluate."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.evaluate import evaluate

    evaluate(
        run=snakemake.wildcards.run,
        base=Path(snakemake.input.base).parent,
        tuned=Path(snakemake.input.tuned).parent,
        stores=[Path(manifest).parent for manifest in snakemake.input.stores],
        output=Path(snakemake.output[0]),
        cfg=snakemake.params.cfg,
        execution=snakemake.params.execution,
        code=snakemake.params.version,
        compared=[Path(split) for split in snakemake.input.compared],
    )
