"""Rule reference."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.tasks.preference.reference import reference

    reference(
        run=snakemake.params.run,
        start=Path(snakemake.input.start).parent,
        tokens=Path(snakemake.input.tokens).parent,
        output=Path(snakemake.output[0]).parent,
        cfg=snakemake.params.cfg,
        execution=snakemake.params.execution,
        code=snakemake.params.version,
    )
