"""A sweep as an array of jobs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from neuralpower.errors import InputError

OWN = ("--slurm", "--shard")  # options that the script sets itself, each with a value


def array_script(arguments: Sequence[str], jobs: int, *, gpu: bool) -> str:
    """A script for `sbatch`: each job, on a GPU or not, measures its share of what `neuralpower ARGUMENTS` would.

    Raises:
        InputError: fewer than one job.
    """
    if jobs < 1:
        raise InputError(f"array of {jobs} jobs: must be 1 or more")
    kept: list[str] = []
    skip = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if not skip and name not in OWN:
            kept.append(argument)
        skip = not skip and name in OWN and not equals
    command = shlex.join(["neuralpower", *kept])
    on_gpu = "#SBATCH --gres=gpu:1\n" if gpu else ""
    return (
        "#!/bin/bash\n"
        "#SBATCH --job-name=paradnn\n"
        f"#SBATCH --array=1-{jobs}\n"
        "#SBATCH --ntasks=1\n"
        "#SBATCH --exclusive\n"
        f"{on_gpu}"
        "#SBATCH --output=paradnn-%A-%a.log\n"
        "# A job that is cut off continues when it is submitted again.\n"
        f'srun {command} --shard "$SLURM_ARRAY_TASK_ID/{jobs}"\n'
    )
