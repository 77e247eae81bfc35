"""A wheel of the vlmplan that is running, for machines that cannot get it from an index.

It is put together from the installed files, so it needs neither a checkout nor a build tool: the packages as Python
found them, and the metadata that their installation left. The same installation gives the same bytes.

Source: packaging.python.org, specifications/binary-distribution-format and recording-installed-packages.
"""

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata, util
from pathlib import Path

from vlmplan.compiled_catalog import COMPILED_CATALOG, compiled_text
from vlmplan.errors import UnavailableError
from vlmplan.files import SHIPPED_CATALOG, shipped_catalog_path, text_of
from vlmplan.versions import VLMPLAN_VERSION

NAME = "vlmplan"
PACKAGES = ("vlmplan", "vlmplan_trainer")
WHEEL = "Wheel-Version: 1.0\nGenerator: vlmplan\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
KEPT_METADATA = ("METADATA", "entry_points.txt")
LEFT_OUT = ("__pycache__", ".pyc")
DATE = (1980, 1, 1, 0, 0, 0)
"""The first that a zip file can hold."""
MODE = 0o100644


def wheel_name(version: str = VLMPLAN_VERSION) -> str:
    """What the wheel of a version is called."""
    return f"{NAME}-{version}-py3-none-any.whl"


def wheel_bytes() -> bytes:
    """The wheel. Raises UnavailableError where vlmplan runs from files that were never installed."""
    files = {**_package_files(), **_metadata_files()}
    folder = _dist_info()
    record = "".join(f"{name},{_digest(content)},{len(content)}\n" for name, content in files.items())
    files[f"{folder}/RECORD"] = f"{record}{folder}/RECORD,,\n".encode()
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, DATE)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, MODE << 16
            archive.writestr(entry, content)
    return packed.getvalue()


def _dist_info() -> str:
    return f"{NAME}-{VLMPLAN_VERSION}.dist-info"


def _package_files() -> dict[str, bytes]:
    """The files of both packages by their place in the wheel, and the catalog, which a checkout keeps elsewhere
    and does not compile."""
    found: dict[str, bytes] = {}
    for package in PACKAGES:
        folder = _package_folder(package)
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder.parent).as_posix()
            if path.is_file() and not any(part in name for part in LEFT_OUT):
                found[name] = path.read_bytes()
    catalog = shipped_catalog_path(_package_folder(NAME))
    found[f"{NAME}/{SHIPPED_CATALOG}"] = catalog.read_bytes()
    found[f"{NAME}/data/{COMPILED_CATALOG.name}"] = compiled_text(text_of(catalog, name=str(catalog))).encode()
    return dict(sorted(found.items()))


def _package_folder(package: str) -> Path:
    spec = util.find_spec(package)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise UnavailableError(f"no wheel of vlmplan can be made: {package} is not a folder of files here")
    return Path(spec.origin).parent


def _metadata_files() -> Mapping[str, bytes]:
    """The folder of metadata, without what only says how it was installed."""
    try:
        installed = metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        raise UnavailableError("no wheel of vlmplan can be made: it runs without having been installed") from None
    if installed.version != VLMPLAN_VERSION:
        raise UnavailableError(
            f"no wheel of vlmplan can be made: version {installed.version} is installed, {VLMPLAN_VERSION} is running"
        )
    texts = {name: text for name in KEPT_METADATA if (text := installed.read_text(name)) is not None}
    folder = _dist_info()
    found = {f"{folder}/{name}": text.encode() for name, text in texts.items()}
    found |= {f"{folder}/{name}": content for name, content in _licenses(installed)}
    return found | {f"{folder}/WHEEL": WHEEL.encode()}


def _licenses(installed: metadata.Distribution) -> Iterator[tuple[str, bytes]]:
    for file in installed.files or ():
        place = file.parts
        if len(place) > 2 and place[0].endswith(".dist-info") and place[1] == "licenses":
            yield "/".join(place[1:]), file.read_binary()


def _digest(content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"
