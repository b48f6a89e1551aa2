"""Rule predict."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.tasks.images.predict import predict

    predict(
        run=snakemake.wildcards.run,
        base=Path(snakemake.input.base).parent,
        tuned=Path(snakemake.input.tuned).parent,
        store=Path(snakemake.input.store).parent,
        output=Path(snakemake.output.samples),
        settings=Path(snakemake.output.settings),
        png=Path(snakemake.output.png),
        svg=Path(snakemake.output.svg),
        cfg=snakemake.params.cfg,
        execution=snakemake.params.execution,
        code=snakemake.params.version,
    )
