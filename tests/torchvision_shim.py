"""Lets torchvision be imported where it is built for another device than torch is.

The wheel of PyPI beside torch for the CPU misses its compiled operators, and does not even import. Processors use its
transforms alone, so that names for those operators are all that they need.
"""

import importlib
import importlib.util
import re
import sys

from torch import library as operators


def import_torchvision() -> None:
    """Import torchvision where it is installed."""
    if importlib.util.find_spec("torchvision") is None:
        return
    while True:
        try:
            importlib.import_module("torchvision")
            return
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if missing is None:
                raise
            operators.define(f"torchvision::{missing[1]}", "(Tensor x) -> Tensor")
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
