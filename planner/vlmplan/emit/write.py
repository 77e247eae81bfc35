"""The files of a plan: their texts, and writing them."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vlmplan.emit.cluster import slurm_script
from vlmplan.emit.scripts import hostfile_text, launch_script
from vlmplan.emit.sky import has_sky_yaml, sky_text
from vlmplan.emit.wheel import wheel_bytes, wheel_name
from vlmplan.errors import InputError, UnavailableError
from vlmplan.files import EXECUTABLE, READABLE, refuse_existing, refuse_unwritable, write_atomically
from vlmplan.plan import PLAN_FILE, Plan, plan_text
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import OptimizerKind

DS_CONFIG_FILE, LAUNCH_FILE, HOSTFILE = "ds_config.json", "launch.sh", "hostfile"
SLURM_FILE, SKY_FILE = "job.slurm", "sky.yaml"
IN_DS_CONFIG = (OptimizerKind.ADAMW, OptimizerKind.MUON)
"""What a plan's ds_config.json means without a remark: Muon is written there, AdamW is what no name stands for."""
REMARK = "_comment"


def file_texts(plan: Plan) -> dict[str, str]:
    """The files of a plan by name, but for the wheel."""
    texts = {PLAN_FILE: plan_text(plan)}
    if plan.ds_config is not None:
        texts[DS_CONFIG_FILE] = ds_config_text(plan.ds_config, plan.recipe)
    texts[LAUNCH_FILE] = launch_script(plan)
    if plan.hardware.num_nodes > 1:
        texts[HOSTFILE] = hostfile_text(plan)
    texts[SLURM_FILE] = slurm_script(plan)
    if has_sky_yaml(plan):
        texts[SKY_FILE] = sky_text(plan)
    return texts


def ds_config_text(ds_config: Mapping[str, Any], recipe: Recipe) -> str:
    """A plan's ds_config.json. DeepSpeed has no name for most optimizers: a remark, which it does not read, says which
    one the file is for."""
    kind = recipe.optimizer
    values = dict(ds_config)
    if kind not in IN_DS_CONFIG:
        values = {REMARK: f"for {kind.value}, which the trainer hands over: --ds-config needs --optimizer {kind.value}"}
        values |= ds_config
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def write_files(plan: Plan, directory: Path, *, force: bool = False) -> list[Path]:
    """Write the files of a plan into ``directory``, made if need be; their paths.

    Raises InputError, before anything is written, if one of them exists and ``force`` is off.
    """
    contents: dict[str, str | bytes] = {**file_texts(plan)}
    if has_sky_yaml(plan):
        with suppress(UnavailableError):  # who puts a wheel there by hand can still use the file, which asks for one
            contents[wheel_name(plan.vlmplan_version)] = wheel_bytes()
    return write_texts(contents, directory, executable=LAUNCH_FILE, force=force)


def refuse_directory(directory: Path) -> None:
    """Raise an error where the files of a plan cannot be written into ``directory``, which need not be there yet."""
    if os.path.lexists(directory) and not directory.is_dir():
        raise InputError(f"{directory} is not a folder; plan files need one")
    refuse_unwritable(directory / PLAN_FILE)


def write_texts(
    contents: Mapping[str, str | bytes], directory: Path, *, executable: str, force: bool = False
) -> list[Path]:
    """Write files by name into ``directory``, made if need be; their paths.

    Raises InputError, before anything is written, if one of them exists and ``force`` is off.
    """
    refuse_directory(directory)
    paths = {directory / name: content for name, content in contents.items()}
    refuse_existing(paths, force=force)
    for path, content in paths.items():
        mode = EXECUTABLE if path.name == executable else READABLE
        write_atomically(path, content, force=force, mode=mode)
    return list(paths)
