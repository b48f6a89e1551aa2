"""Rule base_model."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.base_model import base_model

    cfg = snakemake.params.cfg
    from_scratch = cfg["source"] == "scratch"
    base_model(
        output=Path(snakemake.output[0]).parent,
        cfg=cfg,
        dataset=Path(snakemake.input.files[0]).parent if from_scratch else None,
    )
