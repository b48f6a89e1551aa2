"""Rule evaluate_images."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.evaluate_images import evaluate_images

    evaluate_images(
        run=snakemake.wildcards.run,
        base=Path(snakemake.input.base).parent,
        tuned=Path(snakemake.input.tuned).parent,
        store=Path(snakemake.input.store).parent,
        output=Path(snakemake.output[0]),
        cfg=snakemake.params.cfg,
        execution=snakemake.params.execution,
    )
