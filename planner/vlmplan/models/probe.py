"""Asking transformers, in a process of its own, how a model is built that vlmplan has no family for.

The planner never imports torch: it runs ``vlmplan_trainer/probe.py`` as a script and reads the layout that it writes.
What was asked once is kept for a config.json: until another version of transformers is installed, and where none is,
it is taken as it is. Only transformers' own classes are built, on the meta device; code that a checkpoint brings along
is never run.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vlmplan.architecture.families import FAMILIES, NO_MODEL_TYPE
from vlmplan.architecture.generic.layout import LAYOUT_SCHEMA, ModelLayout, layout_from_json
from vlmplan.errors import InputError, MissingPackageError, UnavailableError, nearest
from vlmplan.files.json_reader import JsonDict
from vlmplan.files.user_cache import keep_text, kept_text
from vlmplan.plain_text import one_line

TIMEOUT_SECONDS = 180.0
"""Importing torch and transformers takes some seconds, on a busy machine or a network drive many."""
HIDDEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""What the probe has no use for."""


def probed_layout(config: Mapping[str, Any], *, brings_own_code: bool = False) -> ModelLayout:
    """The layout of the model that ``config`` describes. ``brings_own_code`` only changes what errors say.

    Raises MissingPackageError without torch and transformers, InputError if transformers does not know the
    model_type or refuses the configuration, or where there is none.
    """
    if "model_type" not in config:
        raise InputError(NO_MODEL_TYPE)
    model_type = str(config["model_type"])
    text = json.dumps(config, sort_keys=True)
    digest = hashlib.sha256(f"{LAYOUT_SCHEMA} {text}".encode()).hexdigest()
    place = ("layouts", f"{digest[:32]}.json")
    kept, installed = _layout(kept_text(*place)), _installed_transformers()
    if kept is not None and installed in (None, kept.transformers_version):
        return kept
    if installed is None:
        raise MissingPackageError(
            f"vlmplan describes no model_type {model_type!r} itself and needs transformers to look it up: "
            f"pip install 'vlmplan[train]', or take one of `vlmplan models`{_like_a_family(model_type)}"
        )
    answer = _answer(config)
    error = answer.get("error")
    if error is not None:
        raise _refusal(model_type, str(error), str(answer.get("message")), brings_own_code=brings_own_code)
    layout_text = json.dumps(answer.get("layout"))
    layout = _layout(layout_text)
    assert layout is not None, "the probe and the planner are of different versions"
    keep_text(layout_text, *place)
    return layout


def _installed_transformers() -> str | None:
    """The version of transformers, where it and torch are installed."""
    try:
        version("torch")
        return version("transformers")
    except PackageNotFoundError:
        return None


def _layout(text: str | None) -> ModelLayout | None:
    try:
        return layout_from_json(json.loads(text or "null"))
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def probe_path(package: Path) -> Path:
    """The probe's script: beside the installed ``package`` folder, or in the trainer of a checkout."""
    for folder in (package.parent, package.parents[1] / "trainer"):
        path = folder / "vlmplan_trainer" / "probe.py"
        if path.is_file():
            return path
    raise UnavailableError("vlmplan_trainer is missing from this installation; install vlmplan again")


def _answer(config: Mapping[str, Any]) -> JsonDict:
    """What the probe says. It runs isolated from the working directory and offline, with this process's packages."""
    search_path = [str(Path(entry).resolve()) for entry in sys.path if entry]
    request = json.dumps({"path": search_path, "config": dict(config)})
    environment = {key: value for key, value in os.environ.items() if key not in HIDDEN_VARIABLES}
    environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    script = probe_path(Path(__file__).resolve().parents[1])
    try:
        with tempfile.TemporaryDirectory(prefix="vlmplan-") as folder:
            done = subprocess.run(  # noqa: S603 this interpreter and a script of ours
                [sys.executable, "-I", str(script)],
                input=request,
                capture_output=True,
                timeout=TIMEOUT_SECONDS,
                env=environment,
                cwd=folder,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"transformers took more than {TIMEOUT_SECONDS:.0f} s to build the model") from None
    except OSError as error:
        raise UnavailableError(f"Python could not be started to ask transformers: {error.strerror}") from None
    try:
        return json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UnavailableError(f"transformers could not be asked about the model: {part_of_a_sentence(last)}") from None


def _refusal(model_type: str, kind: str, message: str, *, brings_own_code: bool) -> Exception:
    """The probe's answer as an error that says what to do."""
    message = part_of_a_sentence(message)
    if kind == "missing":
        return MissingPackageError(f"transformers cannot be imported ({message}); pip install 'vlmplan[train]'")
    if kind == "unknown" and brings_own_code:
        return InputError(f"{message}: its classes come with the checkpoint, as code that vlmplan does not run")
    if kind == "unknown":
        return InputError(f"{message}; a newer transformers may have it{_like_a_family(model_type)}")
    if kind == "unsupported":
        return InputError(f"{message}, which vlmplan does not plan")
    return InputError(f"transformers refuses this config.json of model_type {model_type!r}: {message}")


def _like_a_family(model_type: str) -> str:
    """The end of a sentence with the nearest type that a family describes; empty where none is near."""
    found = nearest(model_type, FAMILIES)
    return f"; did you mean {found[0]!r}?" if found else ""


def part_of_a_sentence(text: str) -> str:
    """Text of somebody else's in one line, cut short, without a full stop."""
    joined = one_line(text).rstrip(".")
    return joined if len(joined) <= 300 else joined[:297] + "..."
