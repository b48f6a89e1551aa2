"""Rule classify."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.tasks.classification.classify import classify

    classify(
        run=snakemake.wildcards.run,
        base=Path(snakemake.input.base).parent,
        tuned=Path(snakemake.input.tuned).parent,
        store=Path(snakemake.input.store).parent,
        documents=Path(snakemake.input.rows[0]),
        output=Path(snakemake.output.samples),
        settings=Path(snakemake.output.settings),
        cfg=snakemake.params.cfg,
        execution=snakemake.params.execution,
    )
