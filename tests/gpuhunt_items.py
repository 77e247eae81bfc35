"""Items of a price list as gpuhunt returns them."""

from dataclasses import dataclass, field


@dataclass
class Item:
    """As ``gpuhunt.CatalogItem`` of version 0.1.34."""

    provider: str = "aws"
    instance_name: str = "some.machine"
    location: str = "us-east-1"
    price: float = 3.0
    cpu: int = 8
    memory: float = 64.0
    gpu_count: int = 1
    gpu_name: str | None = "L40S"
    gpu_memory: float | None = 48.0
    spot: bool = False
    disk_size: float | None = None
    flags: list[str] = field(default_factory=list)
