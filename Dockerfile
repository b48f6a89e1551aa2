# moray with the locked libraries and Ray's dashboard, as a user without privileges.
#
# For GPUs and CPUs, with PyTorch's build for CUDA:
#   docker build --tag REGISTRY/moray:0.2.0 .
# For CPUs alone, several gigabytes smaller. INDEX is the package index of PyTorch's builds for CPUs,
# which pytorch.org names under "Get started":
#   docker build --tag REGISTRY/moray:0.2.0-cpu --build-arg PYTORCH_INDEX=INDEX .
# A project of one's own, in a folder in which user 1000 may write:
#   docker run --rm --shm-size 2g --volume "$PWD:/work" --workdir /work REGISTRY/moray:0.2.0 \
#     snakemake finetune
FROM python:3.11.14-slim-bookworm

# torch.compile needs a compiler.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 --user-group ray

ARG PYTORCH_INDEX=
COPY envs/requirements.txt envs/requirements-cuda.txt envs/requirements-dev.txt /tmp/envs/
# The dashboard, which jobs, probes and the autoscaler need, is locked with the tools for tests.
RUN if [ -n "$PYTORCH_INDEX" ]; then \
        pip install --no-cache-dir --no-deps --index-url "$PYTORCH_INDEX" \
            "$(grep '^torch==' /tmp/envs/requirements.txt)"; \
    fi \
    && pip install --no-cache-dir --requirement /tmp/envs/requirements.txt \
        --constraint /tmp/envs/requirements-cuda.txt \
    && pip install --no-cache-dir --constraint /tmp/envs/requirements.txt \
        --constraint /tmp/envs/requirements-dev.txt 'ray[default]'

COPY --chown=ray:ray . /opt/moray
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable /opt/moray

# As a number, so that Kubernetes can check that it isn't root.
USER 1000
WORKDIR /opt/moray
ENV RAY_USAGE_STATS_ENABLED=0
