"""Compiles gpu_catalog.yaml while a wheel is built: https://hatch.pypa.io/latest/plugins/build-hook/custom/."""

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CATALOG = "gpu_catalog.yaml"


class CompiledCatalog(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the compiled catalog to a wheel. An editable installation reads the YAML, and keeps what it read."""
        if version == "editable":
            return
        root = Path(self.root)
        module = _module_at(root / "planner/vlmplan/compiled_catalog.py")
        text = (root / CATALOG).read_text(encoding="utf-8")
        self._folder = tempfile.TemporaryDirectory()
        made = Path(self._folder.name) / module.COMPILED_CATALOG.name
        made.write_text(module.compiled(text, yaml.safe_load_all(text)), encoding="ascii")
        build_data["force_include"][str(made)] = f"vlmplan/data/{made.name}"


def _module_at(path: Path) -> Any:
    """A module by itself: what its package imports may not be there while the wheel is built."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
