"""What SkyPilot can do on the clouds that ``emit.sky`` names: written from SkyPilot itself.

By tests/tools/skypilot_facts.py, which says from which of its sources.
"""

from collections.abc import Mapping

SKYPILOT_VERSION = "0.14.1"
"""Whose facts these are."""
CLOUDS_WITH_SEVERAL_NODES = frozenset(("aws", "azure", "do", "gcp", "lambda", "nebius", "oci", "paperspace"))
"""Those on which a task may have more than one machine."""
CLOUDS_WITH_SPOT = frozenset(("aws", "azure", "gcp", "nebius", "oci", "runpod", "vast", "verda"))
"""Those that rent machines which may be taken away."""
CLOUDS_WITH_BUCKETS = frozenset(("aws", "azure", "do", "gcp", "lambda", "nebius", "oci", "paperspace"))
"""Those whose machines can mount a bucket."""
CLOUDS_WITH_NETWORK_TIERS = frozenset(("aws", "gcp", "oci"))
"""Those that know ``network_tier`` for every card."""
NETWORK_TIER_GPUS: Mapping[str, Mapping[str, int]] = {"nebius": {"B200": 8, "H100": 8, "H200": 8}}
"""By cloud, the cards that have a ``network_tier`` there and the number in a machine."""
CLOUDS_WITH_CACHED_MOUNTS = frozenset(("aws", "azure", "gcp", "nebius"))
"""Those whose bucket can be mounted as ``MOUNT_CACHED``."""
