"""What a killed build of a kernel leaves behind is found where torch would wait for it, and named before it hangs."""

from pathlib import Path

import pytest

from launch_cases import asked, gpu_plan, sound_facts
from vlmplan.catalog import Catalog, shipped_catalog
from vlmplan.launch.extensions import compiled_kernels, held_locks
from vlmplan.launch.preflight import preflight
from vlmplan.recipe import Recipe
from vlmplan.recipe.choices import Offload

OFFLOADED = gpu_plan(Recipe(zero_stage=2, micro_batch=3, offload_optimizer=Offload.CPU))


def locked(folder: Path) -> Path:
    """The lock of a build in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lock").write_text("")
    return folder / "lock"


@pytest.mark.parametrize("names_the_place", [True, False])
def test_a_lock_is_looked_for_where_torch_builds(names_the_place: bool, monkeypatch, tmp_path):
    from torch.utils.cpp_extension import _get_build_directory

    environment = {"TORCH_EXTENSIONS_DIR" if names_the_place else "XDG_CACHE_HOME": str(tmp_path)}
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert held_locks(OFFLOADED, environment) == []
    lock = locked(Path(_get_build_directory("cpu_adam", False)))
    assert held_locks(OFFLOADED, environment) == [lock]
    assert held_locks(gpu_plan(), environment) == []


def test_only_offload_needs_a_kernel_of_the_host():
    nvme = Recipe(zero_stage=3, micro_batch=3, offload_params=Offload.NVME, nvme_path="/nvme")
    assert [compiled_kernels(plan) for plan in (gpu_plan(), OFFLOADED, gpu_plan(nvme))] == [
        [],
        ["cpu_adam"],
        ["async_io"],
    ]


def test_a_run_that_would_wait_for_ever_is_not_started(tmp_path):
    lock = locked(tmp_path / "cpu_adam")
    facts = sound_facts(held_locks=(lock,))
    (problem,) = preflight(OFFLOADED, asked(tmp_path), facts, Catalog(shipped_catalog())).problems
    assert str(lock) in problem
    assert "delete it" in problem


def test_a_monitor_whose_package_is_missing_is_named(tmp_path):
    bare = sound_facts(packages={**sound_facts().packages, "tensorboard": None, "wandb": None})
    options = asked(tmp_path, monitor=("csv", "tensorboard"))
    (problem,) = preflight(gpu_plan(), options, bare, Catalog(shipped_catalog())).problems
    assert problem == "--monitor tensorboard needs tensorboard, not installed here: pip install tensorboard"
