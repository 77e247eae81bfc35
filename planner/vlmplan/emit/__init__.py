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
(training_args.yaml and train.py for Hugging Face's; train.py for TRL's callbacks: ``trl_script``), ds_config.json,
train.sh.
"""

# pyright: reportUnusedImport=false
from vlmplan.emit.command import inputs_text, launch_text
from vlmplan.emit.sky import is_for_skypilot, sky_problem
from vlmplan.emit.write import (
    DS_CONFIG_FILE,
    SKY_FILE,
    file_texts,
    refuse_directory,
    write_files,
)
