"""Puts this folder on the path of the tests in the folders below it, which start the trainer as those here do, and lets
processors import torchvision."""

from torchvision_shim import import_torchvision

import_torchvision()
