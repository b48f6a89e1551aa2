"""Rule gguf_run."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.extras.gguf.stage import gguf

    gguf(
        run=snakemake.wildcards.run,
        model=Path(snakemake.input.model).parent,
        output=Path(snakemake.output[0]).parent,
        cfg=snakemake.params.cfg,
    )
