"""What SkyPilot says of the clouds that ``vlmplan.emit.sky`` names, as planner/vlmplan/emit/sky_facts.py keeps it.

SkyPilot 0.14 needs a click before 8.2, which is why it cannot be installed beside what README.md installs. In an
environment with skypilot and what vlmplan needs:

PYTHONPATH=planner python tests/tools/skypilot_facts.py >planner/vlmplan/emit/sky_facts.py

Sources: ``sky/clouds/cloud.py`` (``CloudImplementationFeatures``, ``check_features_are_supported``), which asks each
cloud's ``_unsupported_features_for_resources``; ``sky/data/storage.py`` (``mount_cached_command``).
"""

from collections.abc import Iterable, Mapping

FEATURES = {
    "CLOUDS_WITH_SEVERAL_NODES": ("MULTI_NODE", "Those on which a task may have more than one machine."),
    "CLOUDS_WITH_SPOT": ("SPOT_INSTANCE", "Those that rent machines which may be taken away."),
    "CLOUDS_WITH_BUCKETS": ("STORAGE_MOUNTING", "Those whose machines can mount a bucket."),
    "CLOUDS_WITH_NETWORK_TIERS": ("CUSTOM_NETWORK_TIER", "Those that know ``network_tier`` for every card."),
}
COUNTS = range(1, 17)


def supports(cloud: str, feature: str, gpu: str, count: int) -> bool:
    """Whether SkyPilot would start ``count`` of a card with this feature on the cloud."""
    import sky
    from sky import exceptions
    from sky.clouds import CloudImplementationFeatures
    from sky.utils.registry import CLOUD_REGISTRY

    wanted = CloudImplementationFeatures[feature]
    resources = sky.Resources(accelerators={gpu: count}, use_spot=feature == "SPOT_INSTANCE")
    try:
        CLOUD_REGISTRY.from_str(cloud).check_features_are_supported(resources, {wanted})
    except exceptions.NotSupportedError:
        return False
    return True


def clouds_with(
    feature: str, clouds: Iterable[str], gpus: Iterable[str]
) -> tuple[list[str], dict[str, dict[str, int]]]:
    """The clouds that have a feature whatever the card, and by cloud the cards that have it in one number alone."""
    everywhere: list[str] = []
    exceptions: dict[str, dict[str, int]] = {}
    for cloud in sorted(clouds):
        able = {(gpu, count) for gpu in gpus for count in COUNTS if supports(cloud, feature, gpu, count)}
        if len(able) == len(set(gpus)) * len(COUNTS):
            everywhere.append(cloud)
        elif able:
            exceptions[cloud] = dict(sorted(able))
            assert len(exceptions[cloud]) == len(able), f"{feature} on {cloud} goes with several numbers of a card"
    return everywhere, exceptions


def clouds_with_cached_mounts(clouds: Iterable[str]) -> list[str]:
    """Those whose own bucket can be mounted as MOUNT_CACHED."""
    from sky.data import storage

    names = {cloud: storage.StoreType.from_cloud(cloud) for cloud in clouds if has_store(cloud)}
    stores = {
        storage.StoreType.GCS: storage.GcsStore,
        storage.StoreType.AZURE: storage.AzureBlobStore,
        storage.StoreType.IBM: storage.IBMCosStore,
        storage.StoreType.OCI: storage.OciStore,
        storage.StoreType.S3: storage.S3Store,
        storage.StoreType.NEBIUS: storage.NebiusStore,
    }
    is_there = storage.AbstractStore.mount_cached_command
    return sorted(cloud for cloud, kind in names.items() if stores[kind].mount_cached_command is not is_there)


def has_store(cloud: str) -> bool:
    from sky.data import storage

    try:
        storage.StoreType.from_cloud(cloud)
    except ValueError:
        return False
    return True


def facts(clouds: Iterable[str], gpus: Iterable[str]) -> dict[str, object]:
    """The constants of the module by name."""
    import sky

    clouds, gpus = sorted(set(clouds)), sorted(set(gpus))
    found: dict[str, object] = {"SKYPILOT_VERSION": sky.__version__}
    for name, (feature, _) in FEATURES.items():
        everywhere, exceptions = clouds_with(feature, clouds, gpus)
        found[name] = frozenset(everywhere)
        if feature == "CUSTOM_NETWORK_TIER":
            found["NETWORK_TIER_GPUS"] = exceptions
        else:
            assert not exceptions, f"{feature} depends on the card on {', '.join(exceptions)}"
    found["CLOUDS_WITH_CACHED_MOUNTS"] = frozenset(clouds_with_cached_mounts(clouds))
    return found


DOCUMENTED = {name: text for name, (_, text) in FEATURES.items()} | {
    "SKYPILOT_VERSION": "Whose facts these are.",
    "NETWORK_TIER_GPUS": "By cloud, the cards that have a ``network_tier`` there and the number in a machine.",
    "CLOUDS_WITH_CACHED_MOUNTS": "Those whose bucket can be mounted as ``MOUNT_CACHED``.",
}


def module_text(found: Mapping[str, object]) -> str:
    """sky_facts.py."""
    lines = [
        '"""What SkyPilot can do on the clouds that ``emit.sky`` names: written from SkyPilot itself.',
        "",
        "By tests/tools/skypilot_facts.py, which says from which of its sources.",
        '"""',
        "",
        "from collections.abc import Mapping",
        "",
    ]
    for name, value in found.items():
        if isinstance(value, frozenset):
            words = ", ".join(f'"{item}"' for item in sorted(value))
            lines.append(f"{name} = frozenset(({words},))")
        elif isinstance(value, dict):
            lines.append(f"{name}: Mapping[str, Mapping[str, int]] = {value!r}".replace("'", '"'))
        else:
            lines.append(f'{name} = "{value}"')
        lines.append(f'"""{DOCUMENTED[name]}"""')
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    from vlmplan.emit.sky import SKYPILOT_ACCELERATORS, SKYPILOT_CLOUDS

    print(module_text(facts(SKYPILOT_CLOUDS.values(), SKYPILOT_ACCELERATORS.values())), end="")
