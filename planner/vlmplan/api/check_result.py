"""What ``vlmplan.check`` and ``vlmplan.read_config`` return."""

from collections.abc import Mapping
from typing import Any

from vlmplan.api.estimate_result import EstimateResult
from vlmplan.api.record import Result


class Configuration(Result):
    """What another trainer is started with, as that trainer takes it."""

    __slots__ = ()

    @property
    def source(self) -> str:
        """The file."""
        return self._values["source"]

    @property
    def trainer(self) -> str:
        """Whose configuration it is, and as of which version it is read."""
        return self._values["trainer"]

    @property
    def options(self) -> Mapping[str, Any]:
        """Arguments of ``vlmplan.estimate`` that mean the same, ``model`` among them."""
        return dict(self._more["options"])

    @property
    def ds_config(self) -> Mapping[str, Any] | None:
        """What DeepSpeed is configured with; None without it."""
        return self.as_dict()["ds_config"]

    @property
    def said(self) -> Mapping[str, str]:
        """Keys of the file that decide memory or time, with their values as text."""
        return self.as_dict()["said"]

    @property
    def defaults(self) -> Mapping[str, str]:
        """What the trainer takes where the file is silent."""
        return self.as_dict()["defaults"]

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Keys of the file that change neither memory nor time."""
        return tuple(self._values["without_effect"])

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not planned as the trainer does it, in sentences."""
        return tuple(self._values["notes"])

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.source} as {self.trainer} reads it>"


class CheckResult(Result):
    """A configuration as it was read, and its estimate: what ``vlmplan check`` answers (schema ``vlmplan.check/1``)."""

    __slots__ = ()

    @property
    def config(self) -> Configuration:
        """How the file was read."""
        return Configuration(*self._more["config"])

    @property
    def estimate(self) -> EstimateResult | None:
        """What it takes; None where neither GPUs are named nor this machine has some."""
        parts = self._more["estimate"]
        return None if parts is None else EstimateResult(*parts)

    @property
    def fits(self) -> bool | None:
        """Whether it runs; None without an estimate."""
        return None if self.estimate is None else self.estimate.fits

    def __repr__(self) -> str:
        found = "no GPU is known" if self.estimate is None else self.estimate.verdict
        return f"<{type(self).__name__}: {self.config.source}: {found}>"
