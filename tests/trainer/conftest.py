"""Puts this folder on the path of the tests in the folders below it, which start the trainer as those here do.

Where torchvision is installed, but is built for another device than torch is (the wheel of PyPI beside torch for the
CPU), its compiled operators are missing, and it does not even import. Processors use its transforms alone, so that
names for those operators are all that tests need.
"""

import importlib
import importlib.util
import re
import sys

from torch import library as operators


def _import_torchvision() -> None:
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


if importlib.util.find_spec("torchvision") is not None:
    _import_torchvision()
