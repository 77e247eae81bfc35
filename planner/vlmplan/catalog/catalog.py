"""The known GPUs and offers, and a GPU by what the user calls it."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from vlmplan.catalog.file import CatalogFile, read_catalog_file
from vlmplan.catalog.layers import layered_gpus, layered_offers
from vlmplan.catalog.objects import gpu_from_fields, offer_from_fields, provider_names
from vlmplan.catalog.places import PROJECT_FILE_NAME, refreshed_catalog_path, user_catalog_path
from vlmplan.catalog.rules import Fields
from vlmplan.catalog.shipped import ShippedCatalog, shipped_catalog
from vlmplan.errors import InputError, UnknownNameError
from vlmplan.files.user_config import user_config_dir
from vlmplan.hardware import Gpu, Offer

CALIBRATIONS = "calibration"
"""The folder of ``vlmplan.calibration``."""
BRANDS = frozenset(("nvidia", "geforce", "tesla", "amd", "instinct", "gpu"))
APPLE = re.compile(r"(?:apple|mps|metal|mac(?:book)?)\b.*|(?:apple[ -]?)?m[1-9](?:[ -]?(?:pro|max|ultra))?")
"""What GPUs of Apple's are called."""
OF_APPLE = (
    "of Apple's GPUs vlmplan has no memory model; --gpu cpu:1 plans for the processor and its RAM, and recommend "
    "without --gpu finds a GPU to rent"
)


class Catalog:
    """The shipped catalog as changed by ``files``, in that order. ``load_catalog`` makes one.

    ``is_calibrated``: GPUs have the calibrations that the user has measured; ``leaves_out_calibrations``: they say that
    they have none because the user wants none; ``passes_over_unreadable``: one that cannot be read is none.
    """

    def __init__(
        self,
        shipped: ShippedCatalog,
        files: Sequence[CatalogFile] = (),
        *,
        is_calibrated: bool = False,
        leaves_out_calibrations: bool = False,
        passes_over_unreadable: bool = False,
    ) -> None:
        self._shipped, self._is_calibrated = shipped, is_calibrated
        self._leaves_out_calibrations = leaves_out_calibrations
        self._passes_over_unreadable = passes_over_unreadable
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
        """The sources behind the short names in ``Gpu.sources``."""
        return {
            **self._shipped.sources,
            **{key: text for file in self._files for key, text in file.sources.items()},
        }

    def gpu_by_id(self, gpu_id: str) -> Gpu:
        """The GPU with exactly this id, built once. Raises KeyError."""
        if gpu_id not in self._built:
            self._built[gpu_id] = self.calibrated(gpu_from_fields(gpu_id, self._gpu_fields[gpu_id]))
        return self._built[gpu_id]

    def calibrated(self, gpu: Gpu) -> Gpu:
        """The GPU with what was measured on one of its kind, where anything was.

        Raises InputError, in one sentence, for a file of measurements that cannot be.
        """
        if self._leaves_out_calibrations:
            return replace(gpu, leaves_out_calibration=True)
        if not self._is_calibrated:
            return gpu
        from vlmplan.catalog.calibrated import calibrated

        try:
            return calibrated(gpu)
        except InputError:
            if self._passes_over_unreadable:
                return gpu
            raise

    def with_readable_calibrations(self) -> "Catalog":
        """The catalog in which a calibration that cannot be is passed over: of cards that nobody has asked for."""
        if not self._is_calibrated:
            return self
        return Catalog(self._shipped, self._files, is_calibrated=True, passes_over_unreadable=True)

    def without_calibrations(self) -> "Catalog":
        """The catalog with nothing measured."""
        return Catalog(self._shipped, self._files, leaves_out_calibrations=True)

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
        is_counted = re.fullmatch(r"\d+ ?x ?[a-z].*|.*[\w ]x ?\d{1,2}|\d{1,3}", gpu_id) is not None
        count = "a count stands behind the name, as in rtx-4090:2; " if is_counted else ""
        if APPLE.fullmatch(gpu_id):
            raise InputError(f"GPU {name!r}: {OF_APPLE}")
        known = self._gpu_fields if gpu_id.isdigit() else candidates or self._gpu_fields
        raise UnknownNameError("GPU", name, known, f"{count}`vlmplan gpus` lists them")

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
        if path is not None and os.path.isfile(path)  # False too where a folder cannot be entered
    ]
    named = list(catalog_files)
    # A file that is both found and named counts once, where it was named: a discount must not apply twice.
    last_place = {os.path.realpath(path): i for i, path in enumerate([*found, *named])}
    files = [
        read_catalog_file(path, may_be_empty=i < len(found))
        for i, path in enumerate([*found, *named])
        if last_place[os.path.realpath(path)] == i
    ]
    config = user_config_dir()
    is_calibrated = config is not None and os.path.isdir(config / CALIBRATIONS)
    return Catalog(shipped_catalog(), files, is_calibrated=is_calibrated)


def _words(name: str) -> list[str]:
    words = re.findall(r"[a-z0-9]+", name.casefold())
    return [word for word in words if word not in BRANDS]


def _squeezed(name: str) -> str:
    return "".join(_words(name))
