"""How much an engine sends in a step, and how long that takes on a cluster's links.

volume    the collectives of a step, and their totals
links     rates of NVLink, PCIe and networks
measured  the same links where a calibration has measured them
rings     seconds of one collective, by NCCL's own model
seconds   seconds of all collectives of a step
"""

# pyright: reportUnusedImport=false
from vlmplan.communication.links import (
    ASSUMED_NETWORK_BYTES_PER_SECOND,
    link_bytes_per_second,
    links_of,
)
from vlmplan.communication.seconds import (
    COLLECTIVE_LATENCY_SECONDS,
    OVERLAP_FRACTION,
    CommunicationSeconds,
    communication_seconds,
)
from vlmplan.communication.volume import step_collectives, volume_json
