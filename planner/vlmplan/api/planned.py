"""What can be trained: its plan, and the files that start it."""

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any

from vlmplan.api.record import parsed

if TYPE_CHECKING:
    from pathlib import Path


class Planned:
    """What can be trained as it is: it has a plan, or with ``for_`` the files of another trainer."""

    _more: Mapping[str, Any]

    def _plan_text(self) -> str:
        """plan.json. Raises InputError where something is missing to run it."""
        if self._more["plan"] is None:
            from vlmplan.errors import InputError

            raise InputError(self._more["no_plan"])
        return self._more["plan"]

    @property
    def ds_config(self) -> Mapping[str, Any] | None:
        """The ds_config.json, all numbers; None where DeepSpeed is not used. Raises InputError where the setup lacks
        something to run, as a folder for NVMe."""
        return parsed(self._plan_text())["ds_config"]

    @property
    def made_for(self) -> Mapping[str, Any] | None:
        """The trainer of ``for_``: its ``settings``, ``environment`` and ``command``, what is ``to_fill_in``, and the
        command that reads its files back (``check``); None where the bundled trainer runs it."""
        text = self._more["made_for"]
        return None if text is None else parsed(text)

    def save(self, path: str | PathLike[str], *, force: bool = False) -> "Path":
        """Write plan.json, which ``vlmplan launch --plan`` trains; its path.

        Raises InputError if the file exists and ``force`` is off, or as ``ds_config`` does.
        """
        from vlmplan.api.writing import save_plan

        return save_plan(self._plan_text(), path, force=force)

    def write(self, folder: str | PathLike[str], *, force: bool = False) -> "tuple[Path, ...]":
        """Write what ``recommend --out`` writes: plan.json, ds_config.json, launch.sh and the like, with ``for_`` the
        trainer's own file, its DeepSpeed file and train.sh; their paths.

        Raises InputError, before anything is written, if one exists and ``force`` is off, or as ``ds_config`` does.
        """
        from vlmplan.api.writing import write_plan_files, write_trainer_texts

        if self._more["made_for"] is not None:
            return write_trainer_texts(self._more["files"], folder, force=force)
        return write_plan_files(self._plan_text(), folder, force=force)
