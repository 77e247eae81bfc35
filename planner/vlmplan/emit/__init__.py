"""What ``--out DIR`` writes, so that a plan can be read, checked and started without vlmplan's help.

plan.json        the plan; the trainer reads nothing else
ds_config.json   the same numbers for DeepSpeed, to look at; not for plain PyTorch
launch.sh        starts exactly this plan; its arguments go to the trainer
hostfile         a template, for several nodes
job.slurm        runs launch.sh on every node of a Slurm job
sky.yaml         rents the machines through SkyPilot and trains on them; for rented machines and several nodes, where
                 SkyPilot can do what the plan needs
vlmplan-*.whl    vlmplan itself, for the machines of sky.yaml

For another trainer (``trainer_files``, which needs the planner's model code and is imported by itself): train.yaml
(training_args.yaml and train.py for Hugging Face's), ds_config.json, train.sh.
"""

from vlmplan.emit.cluster import slurm_script
from vlmplan.emit.command import inputs_text, launch_command, launch_text
from vlmplan.emit.scripts import hostfile_text, launch_script
from vlmplan.emit.sky import is_for_skypilot, sky_problem, sky_text
from vlmplan.emit.write import (
    DS_CONFIG_FILE,
    HOSTFILE,
    LAUNCH_FILE,
    SKY_FILE,
    SLURM_FILE,
    file_texts,
    refuse_directory,
    write_files,
)

__all__ = [
    "DS_CONFIG_FILE",
    "HOSTFILE",
    "LAUNCH_FILE",
    "SKY_FILE",
    "SLURM_FILE",
    "file_texts",
    "hostfile_text",
    "inputs_text",
    "is_for_skypilot",
    "launch_command",
    "launch_script",
    "launch_text",
    "refuse_directory",
    "sky_problem",
    "sky_text",
    "slurm_script",
    "write_files",
]
