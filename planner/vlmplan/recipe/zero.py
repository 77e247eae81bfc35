"""The sizes and switches of DeepSpeed's ``zero_optimization`` that a recipe has."""

from dataclasses import dataclass, fields, replace
from functools import lru_cache

from vlmplan.errors import InputError

MAX_ELEMENTS = 10**18
"""What no bucket comes near."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSettings:
    """The sizes in ``zero_optimization``, in elements, and the switches that change memory.

    The defaults are DeepSpeed's (``deepspeed/runtime/zero/config.py``, 0.19.8): what a ds_config that leaves them out
    gets. The planner chooses its own.
    """

    reduce_bucket_size: int = 500_000_000
    allgather_bucket_size: int = 500_000_000
    overlap_comm: bool = False
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    round_robin_gradients: bool = False
    stage3_prefetch_bucket_size: int = 50_000_000
    stage3_param_persistence_threshold: int = 100_000
    stage3_max_live_parameters: int = 1_000_000_000
    stage3_max_reuse_distance: int = 1_000_000_000
    sub_group_size: int = 1_000_000_000
    memory_efficient_linear: bool = True

    def __post_init__(self) -> None:
        for name, least in _LEAST_ELEMENTS:
            value = getattr(self, name)
            if not least <= value <= MAX_ELEMENTS:
                allowed = f"{least} or more" if value < least else f"at most {MAX_ELEMENTS:.0e}"
                raise InputError(f"zero_optimization.{name} is {value}; {allowed} elements are needed")

    def __hash__(self) -> int:
        """The hash of the sizes that tell most settings apart: all twelve take longer than to compare the few that are
        left."""
        return hash((self.reduce_bucket_size, self.stage3_prefetch_bucket_size, self.overlap_comm))

    @lru_cache(maxsize=1024)  # noqa: B019 a few settings, asked for thousands of times in a search
    def read_by(self, stage: int | None) -> "ZeroSettings":
        """The settings that a stage reads, and defaults for the rest: the stage does the same with either."""
        if stage is None or stage == 0:
            return ZeroSettings()
        if stage == 3:
            return self
        rest = {field.name: field.default for field in fields(self) if field.name.startswith("stage3_")}
        return replace(self, **rest)


_LEAST_ELEMENTS = tuple(
    (field.name, 0 if field.name.startswith("stage3_") or field.name == "sub_group_size" else 1)
    for field in fields(ZeroSettings)
    if not isinstance(field.default, bool)
)
"""The sizes, and the least that each may be."""
DEFAULT_ZERO_SETTINGS = ZeroSettings()
