"""Rule generate_run."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.tasks.language.generate import generate

    generate(
        run=snakemake.wildcards.run,
        base=Path(snakemake.input.base).parent,
        tuned=Path(snakemake.input.tuned).parent,
        rows=[Path(file) for file in snakemake.input.rows],
        output=Path(snakemake.output.samples),
        settings=Path(snakemake.output.settings),
        cfg=snakemake.params.cfg,
        execution=snakemake.params.execution,
        code=snakemake.params.version,
    )
