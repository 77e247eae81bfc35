"""The GPUs and offers that are known: the shipped catalog under the user's own files.

Later wins, field by field: the shipped ``gpu_catalog.yaml``; prices that ``--refresh-prices`` fetched
(``refreshed_catalog_path``); the user's own (``user_catalog_path``); the project's ``vlmplan_catalog.yaml`` in the
working directory; each file named on the command line. Nothing is parsed or built before it is asked for, and the
shipped file is read once per process.
"""

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path

from vlmplan.catalog.file import (
    REFRESHED_FILE_NAME,
    CatalogFile,
    Sections,
    offers_with_price_lists,
    read_catalog_file,
)
from vlmplan.catalog.layers import layered_gpus, layered_offers
from vlmplan.catalog.objects import gpu_from_fields, offer_from_fields, provider_names
from vlmplan.catalog.rules import Fields
from vlmplan.compiled_catalog import compiled_documents
from vlmplan.errors import InputError, UnknownNameError
from vlmplan.files import SHIPPED_CATALOG, shipped_catalog_path, text_of
from vlmplan.hardware import Gpu, MatmulPeaks, Offer, Vendor
from vlmplan.machine.host import host_ram_bytes

PROJECT_FILE_NAME = "vlmplan_catalog.yaml"

_BRANDS = frozenset(("nvidia", "geforce", "tesla", "amd", "instinct", "gpu"))


class ShippedCatalog:
    """The catalog that comes with vlmplan, not checked again here: its offers are parsed only on request."""

    def __init__(self, path: Path) -> None:
        text = text_of(path, name=str(path))
        self._sections = Sections(path.name, compiled_documents(text))

    @cached_property
    def gpus(self) -> Mapping[str, Fields]:
        """Fields by GPU id."""
        gpus: Mapping[str, Fields] = self._sections["gpus"]  # pyright: ignore[reportAssignmentType]
        return gpus

    @cached_property
    def offers(self) -> Sequence[Fields]:
        """Fields of every offer, what its price list says included."""
        offers: list[Fields] = self._sections["offers"]  # pyright: ignore[reportAssignmentType]
        price_lists: Mapping[str, Fields] = self._sections["price_lists"]  # pyright: ignore[reportAssignmentType]
        return offers_with_price_lists(self._sections.name, offers, price_lists)

    @cached_property
    def sources(self) -> Mapping[str, str]:
        """What the short names in ``Gpu.sources`` stand for."""
        sources: Mapping[str, str] = self._sections["sources"]  # pyright: ignore[reportAssignmentType]
        return sources


class Catalog:
    """The shipped catalog as changed by ``files``, in that order. ``load_catalog`` makes one."""

    def __init__(self, shipped: ShippedCatalog, files: Sequence[CatalogFile] = ()) -> None:
        self._shipped = shipped
        self._files = tuple(files)
        self._built: dict[str, Gpu] = {}
        self._require_complete_entries()

    @property
    def file_names(self) -> tuple[str, ...]:
        """The user's own files that are in effect, in the order in which they apply."""
        return tuple(file.name for file in self._files)

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        """Every GPU that is not hidden."""
        return tuple(self._gpu_fields)

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU that is not hidden."""
        return tuple(self.gpu_by_id(gpu_id) for gpu_id in self._gpu_fields)

    @cached_property
    def offers(self) -> tuple[Offer, ...]:
        """Every offer that is not hidden, of a GPU that is not hidden."""
        fields = self._shipped.offers
        if any(file.offers or file.hide or file.discounts for file in self._files):
            fields = layered_offers(fields, self._shipped.gpus, self._files)
        return tuple(offer_from_fields(offer) for offer in fields if offer["gpu"] in self._gpu_fields)

    def offers_for(self, gpu_id: str) -> tuple[Offer, ...]:
        """The offers of one GPU."""
        return self._offers_by_gpu.get(gpu_id, ())

    @cached_property
    def sources(self) -> Mapping[str, str]:
        """What the short names in ``Gpu.sources`` stand for."""
        return {
            **self._shipped.sources,
            **{key: text for file in self._files for key, text in file.sources.items()},
        }

    def gpu_by_id(self, gpu_id: str) -> Gpu:
        """The GPU with exactly this id, built once. Raises KeyError."""
        if gpu_id not in self._built:
            self._built[gpu_id] = gpu_from_fields(gpu_id, self._gpu_fields[gpu_id])
        return self._built[gpu_id]

    def gpu(self, name: str) -> Gpu:
        """The GPU called ``name``: id, marketing, driver or provider name, in any case and spacing.

        Raises InputError naming the candidates where several GPUs are called so, UnknownNameError naming
        the nearest where none is.
        """
        gpu_id = name.strip().casefold()
        if gpu_id in self._gpu_fields:
            return self.gpu_by_id(gpu_id)
        called_so = self._ids_by_name.get(_squeezed(name), ())
        if len(called_so) == 1:
            return self.gpu_by_id(called_so[0])
        candidates = called_so or self._ids_with_words(name)
        if len(candidates) > 1:
            shown = ", ".join(candidates[:8]) + (", ..." if len(candidates) > 8 else "")
            raise InputError(f"GPU {name!r} could be any of {shown}; name one of them")
        raise UnknownNameError("GPU", name, candidates or self._gpu_fields, "`vlmplan gpus` lists them")

    @cached_property
    def _gpu_fields(self) -> Mapping[str, Fields]:
        return layered_gpus(self._shipped.gpus, self._files) if self._files else self._shipped.gpus

    @cached_property
    def _offers_by_gpu(self) -> Mapping[str, tuple[Offer, ...]]:
        by_gpu: dict[str, list[Offer]] = {}
        for offer in self.offers:
            by_gpu.setdefault(offer.gpu_id, []).append(offer)
        return {gpu_id: tuple(offers) for gpu_id, offers in by_gpu.items()}

    @cached_property
    def _ids_by_name(self) -> Mapping[str, tuple[str, ...]]:
        """Ids by each name without brand, case and spacing."""
        ids: dict[str, list[str]] = {}
        for gpu_id, fields in self._gpu_fields.items():
            names = (gpu_id, fields.get("name", ""), *(fields.get("aliases") or ()), *provider_names(fields))
            for key in {_squeezed(name) for name in names}:
                ids.setdefault(key, []).append(gpu_id)
        return {key: tuple(found) for key, found in ids.items()}

    def _ids_with_words(self, name: str) -> tuple[str, ...]:
        """Ids of the GPUs whose id and name contain every word of ``name``."""
        wanted = set(_words(name))
        return tuple(
            gpu_id
            for gpu_id, fields in self._gpu_fields.items()
            if wanted and wanted <= {*_words(gpu_id), *_words(fields.get("name", ""))}
        )

    def _require_complete_entries(self) -> None:
        """Raise InputError now, and name the file, if the user's own entries do not make whole objects."""
        for file in self._files:
            for gpu_id in file.gpus.keys() & self._gpu_fields.keys():
                try:
                    self.gpu_by_id(gpu_id)
                except InputError as error:
                    raise InputError(f"{file.name}: {error}") from None
            if file.offers or file.hide or file.discounts:
                _ = self.offers


def load_catalog(catalog_files: Iterable[Path] = (), *, project_dir: Path | None = None) -> Catalog:
    """The catalog as it is on this machine, in ``project_dir`` (the working directory) with these files.

    Raises InputError, in one sentence, for whatever in a file is not allowed.
    """
    found = [
        path
        for path in (refreshed_catalog_path(), user_catalog_path(), (project_dir or Path()) / PROJECT_FILE_NAME)
        if path is not None and path.is_file()
    ]
    named = list(catalog_files)
    # A file that is both found and named counts once, where it was named: a discount must not apply twice.
    last_place = {os.path.realpath(path): i for i, path in enumerate([*found, *named])}
    files = [
        read_catalog_file(path, may_be_empty=i < len(found))
        for i, path in enumerate([*found, *named])
        if last_place[os.path.realpath(path)] == i
    ]
    return Catalog(shipped_catalog(), files)


@cache
def shipped_catalog() -> ShippedCatalog:
    """The catalog of this installation. Raises UnavailableError where its file is gone."""
    return ShippedCatalog(shipped_catalog_path(Path(__file__).resolve().parents[1]))


def user_catalog_path() -> Path | None:
    """Where the user's own catalog is looked for; ``None`` without a home."""
    if sys.platform == "win32":
        config = os.environ.get("APPDATA", "")
    else:
        config = os.environ.get("XDG_CONFIG_HOME", "")
    # The XDG base directory specification: a relative path is to be ignored.
    if Path(config).is_absolute():
        return Path(config) / "vlmplan" / SHIPPED_CATALOG
    try:
        return Path.home() / ".config" / "vlmplan" / SHIPPED_CATALOG
    except RuntimeError:
        return None


def refreshed_catalog_path() -> Path | None:
    """Where fetched prices are kept, beside the user's own catalog; ``None`` without a home."""
    path = user_catalog_path()
    return None if path is None else path.with_name(REFRESHED_FILE_NAME)


def cpu_gpu(num_ranks: int, ram_bytes: int | None = None) -> Gpu:
    """A stand-in for a GPU: one of ``num_ranks`` ranks on this machine's CPU, with its share of the RAM: of
    ``ram_bytes``, or of what the machine has.

    No speed is known of it. Raises InputError for less than one rank, UnavailableError where the amount of
    RAM cannot be found out.
    """
    if num_ranks < 1:
        raise InputError(f"cpu:{num_ranks} asks for {num_ranks} ranks; it must be at least 1")
    return Gpu(
        id="cpu",
        name="CPU (this machine's RAM, shared by its ranks)",
        vendor=Vendor.CPU,
        memory_bytes=(host_ram_bytes() if ram_bytes is None else ram_bytes) // num_ranks,
        supports_bf16=True,
        peak_flops_per_second=MatmulPeaks(),
        supports_flash_attention_2=False,
        supports_fp8=False,
        has_nvlink=False,
    )


def _words(name: str) -> list[str]:
    words = re.findall(r"[a-z0-9]+", name.casefold())
    return [word for word in words if word not in _BRANDS]


def _squeezed(name: str) -> str:
    return "".join(_words(name))
