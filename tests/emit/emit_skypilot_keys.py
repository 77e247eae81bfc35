"""The keys that SkyPilot 0.14 takes in a task and in its resources (``sky/utils/schemas.py``: ``get_task_schema``,
``get_resources_schema``, without those of its own use), for where SkyPilot itself is not installed."""

TASK_KEYS = frozenset(
    """name workdir event_callback num_nodes resources file_mounts service pool setup run envs secrets managed_secrets
    inputs outputs config volumes volume_mounts api_server_access""".split()
)
RESOURCES_KEYS = frozenset(
    """cloud region zone infra cpus memory instance_type use_spot job_recovery volumes disk_size ephemeral_storage
    disk_tier network_tier local_disk max_hourly_cost ports labels accelerator_args image_id autostop priority
    priority_class accelerators any_of ordered""".split()
)
CLOUDS = frozenset(
    """aws azure cudo do fluidstack gcp hyperbolic ibm kubernetes lambda mithril nebius oci paperspace primeintellect
    runpod scp seeweb shadeform slurm ssh vast verda vsphere yotta""".split()
)
"""``sky.utils.registry.CLOUD_REGISTRY``."""
