#!/usr/bin/env bash
# The entry point of a Ray job: runs the workflow of the project in this folder, with Ray's cluster.
#   entrypoint.sh FOLDER [ARGUMENTS OF SNAKEMAKE]
# Results and state go to FOLDER, which all nodes must share: the project itself may be a copy that
# Ray unpacked for this job alone. The next job goes on from what is there.
set -euo pipefail

folder=$1
shift
mkdir -p "$folder"
cp -R config "$folder/"
# Before the copy of the package that Ray puts there for workers.
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}
# In place of this shell, so that the job's signals reach Snakemake.
exec snakemake --snakefile "$PWD/Snakefile" --directory "$folder" \
  --profile "$PWD/profiles/cluster" --workflow-profile "$PWD/profiles/default" "$@"
