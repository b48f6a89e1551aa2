"""Rule smoke_test."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.extras.smoke_test.stage import smoke_test

    smoke_test(
        run=snakemake.params.run,
        start=Path(snakemake.input.start).parent,
        stores=[Path(manifest).parent for manifest in snakemake.input.stores],
        output=Path(snakemake.output[0]).parent,
        cfg=snakemake.params.cfg,
        execution=snakemake.params.execution,
    )
