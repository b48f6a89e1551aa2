"""Rule teacher."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.tasks.distillation.teacher import teacher

    teacher(
        run=snakemake.params.run,
        model=Path(snakemake.input.model[0]).parent,
        base=Path(snakemake.input.base).parent,
        tokens=Path(snakemake.input.tokens).parent,
        output=Path(snakemake.output[0]).parent,
        cfg=snakemake.params.cfg,
        execution=snakemake.params.execution,
        code=snakemake.params.version,
        proofs=snakemake.params.proofs,
    )
