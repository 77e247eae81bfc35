"""Every sky.yaml before SkyPilot itself, and what is kept of its facts beside what it says.

SkyPilot needs a click before 8.2, so it cannot be installed beside what README.md installs: .ci/run runs this file in
an environment of its own.
"""

import sys
from pathlib import Path

import pytest
import yaml

sky = pytest.importorskip("sky", reason="SkyPilot is not installed here; .ci/run has it beside")
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from emit_skypilot_keys import CLOUDS, RESOURCES_KEYS, TASK_KEYS  # noqa: E402
from sky.utils import registry, schemas  # noqa: E402
from sky_plans import every_plan, rented, spot  # noqa: E402
from skypilot_facts import facts, module_text  # noqa: E402

from recipe_cases import plan  # noqa: E402
from vlmplan.emit import sky_facts  # noqa: E402
from vlmplan.emit.sky import (  # noqa: E402
    CLOUD_ACCELERATORS,
    RECOVERY,
    SKYPILOT_ACCELERATORS,
    SKYPILOT_CLOUDS,
    sky_problem,
    sky_task,
    sky_text,
)
from vlmplan.plan import Plan  # noqa: E402

GIVEN = [("TRAIN_DATA", "d.jsonl"), ("BUCKET", "a-bucket-of-somebodys")]


def taken(values: dict) -> "sky.Task":
    """The task as ``sky launch`` reads it."""
    given = [(name, value) for name, value in GIVEN if name in values["envs"]]
    return sky.Task.from_yaml_config(values, env_overrides=given)


def refusal(task: "sky.Task", cloud: str) -> str | None:
    """What the cloud cannot do of the task, in SkyPilot's words; None where it can do all of it."""
    (resources,) = task.resources
    wanted = task.get_required_cloud_features() | resources.get_required_cloud_features()
    try:
        registry.CLOUD_REGISTRY.from_str(cloud).check_features_are_supported(resources, wanted)
    except sky.exceptions.NotSupportedError as error:
        return str(error)
    return None


def test_what_is_kept_of_skypilot_is_what_it_says():
    found = facts(SKYPILOT_CLOUDS.values(), SKYPILOT_ACCELERATORS.values())
    kept = {name: getattr(sky_facts, name) for name in found}
    assert kept == found
    text = Path(sky_facts.__file__).read_text()
    assert text.replace(",\n", "\n").split() == module_text(found).replace(",))", "))").split()


def test_the_keys_and_clouds_are_skypilots():
    assert set(schemas.get_task_schema()["properties"]) >= TASK_KEYS
    assert set(schemas.get_resources_schema()["properties"]) >= RESOURCES_KEYS
    assert set(registry.CLOUD_REGISTRY) == CLOUDS


def test_skypilot_takes_every_task_and_its_cloud_can_do_it():
    """A card and a count say little of what a cloud can do: each is taken once, each cloud with each demand."""
    seen: set[tuple] = set()
    for item in every_plan():
        place = item.hardware.num_nodes, item.hardware.gpus_per_node, item.offer.provider, item.offer.pricing
        if place in seen or sky_problem(item) is not None:
            continue
        seen.add(place)
        task = taken(sky_task(item))
        assert task.num_nodes == item.hardware.num_nodes
        cloud = SKYPILOT_CLOUDS.get(item.offer.provider)
        (resources,) = task.resources
        assert (str(resources.cloud).lower() if cloud else resources.cloud) == (cloud or None)
        assert resources.use_spot is (item.offer.pricing == "interruptible")
        if cloud is not None:
            assert refusal(task, cloud) is None
    assert len(seen) > 50


@pytest.mark.parametrize("provider", SKYPILOT_CLOUDS)
def test_where_there_is_no_task_skypilot_would_have_refused_it(provider: str):
    for item in (
        plan(num_nodes=2, offer=rented(provider=provider)),
        plan(offer=spot(provider)),
        plan(num_nodes=2, offer=spot(provider)),
    ):
        if sky_problem(item) is not None:
            assert refusal(taken(sky_task(item)), SKYPILOT_CLOUDS[provider]) is not None


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_machine_that_may_be_taken_away_mounts_the_bucket_that_is_named(num_nodes: int):
    item: Plan = plan(num_nodes=num_nodes, offer=spot())
    task = taken(yaml.safe_load(sky_text(item)))
    ((folder, storage),) = task.storage_mounts.items()
    assert (folder, storage.name) == ("/checkpoints", "a-bucket-of-somebodys")
    assert storage.mode.value == ("MOUNT_CACHED" if num_nodes == 1 else "MOUNT")
    assert task.envs["OUTPUT_DIR"] == ("/checkpoints/run" if num_nodes == 1 else "output")


def test_the_recovery_is_one_that_skypilot_has():
    from sky.jobs import recovery_strategy  # registers them

    assert recovery_strategy is not None
    assert RECOVERY.lower() in {name.lower() for name in registry.JOBS_RECOVERY_STRATEGY_REGISTRY}
    (resources,) = taken(sky_task(plan(offer=spot()))).resources
    assert resources.job_recovery == {"strategy": RECOVERY}


def test_clouds_call_cards_as_skypilot_does_there():
    from sky.catalog.data_fetchers.fetch_verda import _format_accelerator_name
    from sky.provision.runpod.utils import GPU_NAME_MAP

    boards = {"h100-pcie": "PCIe", "a100-pcie-80gb": "PCIe", "a100-sxm4-80gb": "SXM4", "h200-sxm": "H200"}
    boards |= {"h100-sxm": "HBM3", "v100-sxm2-16gb": "SXM2-16GB", "v100-sxm2-32gb": "SXM2-32GB"}
    for gpu_id, board in boards.items():
        name = CLOUD_ACCELERATORS["runpod"].get(gpu_id, SKYPILOT_ACCELERATORS[gpu_id])
        assert board in GPU_NAME_MAP[name]
    assert _format_accelerator_name("RTX A6000", 48) == CLOUD_ACCELERATORS["verda"]["rtx-a6000"]
