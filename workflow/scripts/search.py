"""Rule search_run."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.extras.search.stage import search

    search(
        run=snakemake.wildcards.run,
        start=Path(snakemake.input.start).parent,
        stores=[Path(manifest).parent for manifest in snakemake.input.stores],
        best=Path(snakemake.output.best),
        trials=Path(snakemake.output.trials),
        cfg=snakemake.params.cfg,
        execution=snakemake.params.execution,
        code=snakemake.params.training,
    )
