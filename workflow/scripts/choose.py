"""Rule choose."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.choose import choose

    choose(
        runs=[Path(record).parent for record in snakemake.input.records],
        output=Path(snakemake.output.model).parent,
        choice=Path(snakemake.output.choice),
        cfg=snakemake.params.cfg,
    )
