"""Rule base_model_images."""

from pathlib import Path

from moray.stages.boundary import stage

with stage(snakemake.log[0]):
    from moray.stages.base_model_images import base_model_images

    base_model_images(
        output=Path(snakemake.output[0]).parent,
        cfg=snakemake.params.cfg,
        dataset=Path(snakemake.input.files[0]).parent,
    )
