"""Rule generate_run."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.generate import generate

    generate(
        base=Path(snakemake.input.base).parent,
        tuned=Path(snakemake.input.tuned).parent,
        rows=Path(snakemake.input.rows),
        output=Path(snakemake.output[0]),
        cfg=snakemake.params.cfg,
    )
