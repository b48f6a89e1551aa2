"""Rule push_run."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.push import push

    push(
        model=Path(snakemake.input.model).parent,
        card=Path(snakemake.input.card),
        output=Path(snakemake.output[0]),
        cfg=snakemake.params.cfg,
    )
