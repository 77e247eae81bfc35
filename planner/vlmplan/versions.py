"""The versions of the training libraries that the memory model was checked against, as constraints.txt has them."""

from vlmplan import __version__

CHECKED_VERSIONS: dict[str, str] = {
    "torch": "2.13.0",
    "transformers": "5.23.0",
    "deepspeed": "0.19.8",
    "peft": "0.21.2",
    "bitsandbytes": "0.50.2",
    "accelerate": "1.15.0",
}

VLMPLAN_VERSION = __version__
