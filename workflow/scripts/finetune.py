"""Rule finetune_run."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.finetune import finetune

    finetune(
        run=snakemake.wildcards.run,
        start=Path(snakemake.input.start).parent,
        stores=[Path(manifest).parent for manifest in snakemake.input.stores],
        output=Path(snakemake.output.train).parent,
        cfg=snakemake.params.cfg,
        execution=snakemake.params.execution,
        code=snakemake.params.training,
    )
