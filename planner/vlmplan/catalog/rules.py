"""What a catalog file may say: its keys and what each value must be.

Keys keep the data sheet's units (``memory_mib``); the header of ``gpu_catalog.yaml`` explains each of them.
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, cast

from vlmplan.errors import InputError
from vlmplan.files.json_reader import JsonObject, not_allowed, unknown_key
from vlmplan.hardware import MAX_GPUS_PER_NODE, PCIE_BYTES_PER_SECOND_PER_LANE, Pricing, Vendor

SCHEMA = "vlmplan.catalog/1"
SECTIONS = ("schema", "sources", "gpus", "price_lists", "offers", "hide", "discounts")

MAX_NUMBER = 10**9
"""No rate, size or price in the units of a catalog comes near it."""
MAX_SELECTORS = 1000
"""Entries of ``hide`` and ``discounts``, each of which is compared with every offer."""

Fields = Mapping[str, Any]
"""The keys and values of one GPU or offer as the file has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a value must be: what is ``needed`` for the user, ``accepts`` for the machine."""

    needed: str
    accepts: Callable[[object], bool]

    def or_null(self) -> "Rule":
        """The rule that also accepts null: not known."""
        return Rule(needed=f"{self.needed} or null", accepts=lambda v: v is None or self.accepts(v))


Rules = Mapping[str, "Rule | Rules"]


def checked(file: str, where: str, value: object, rules: Rules) -> Fields:
    """``value`` as a mapping that keeps to ``rules``; else InputError (file, key, value, what is allowed)."""
    fields = checked_mapping(file, where, value)
    for key, entry in fields.items():
        rule = rules.get(key)
        if rule is None:
            raise unknown_key(file, where, key, rules)
        if isinstance(rule, Rule):
            checked_value(file, f"{where}.{key}", entry, rule)
        else:
            checked(file, f"{where}.{key}", entry, rule)
    return fields


def checked_value(file: str, where: str, value: object, rule: Rule) -> Any:
    """``value`` if the rule accepts it; else InputError."""
    if not rule.accepts(value):
        raise not_allowed(file, where, value, rule.needed)
    return value


def checked_mapping(file: str, where: str, value: object) -> Mapping[str, object]:
    """``value`` as a mapping with text keys; else InputError."""
    return JsonObject(value, source=file, path=where).values


def checked_gpu_id(file: str, key: str) -> str:
    """``key`` if it can stand on a command line as NAME[:COUNT]; else InputError."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", key) or key in ("local", "cpu"):
        raise InputError(
            f"{file}: GPU id {key!r} cannot be used; allowed are lower-case letters, digits, dots and "
            "dashes, and neither 'local' nor 'cpu'"
        )
    return key


def checked_selector(file: str, where: str, value: object, rules: Rules) -> Fields:
    """A ``hide`` or ``discounts`` entry; InputError also when it selects nothing or lacks its fraction."""
    fields = checked(file, where, value, rules)
    if not fields.keys() & SELECTOR_RULES.keys():
        raise InputError(f"{file}: {where} selects nothing; name at least one of {', '.join(SELECTOR_RULES)}")
    if "fraction" in rules and "fraction" not in fields:
        raise InputError(f"{file}: {where}.fraction is missing; {FRACTION.needed} is needed")
    return fields


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _number(
    *, above: float | None = None, at_least: float | None = None, most: int = MAX_NUMBER, whole: bool = False
) -> Rule:
    def accepts(value: object) -> bool:
        if not _is_number(value) or (whole and not isinstance(value, int)):
            return False
        number = cast(float, value)
        return (above is None or number > above) and (at_least is None or number >= at_least) and number <= most

    bound = f"above {above:g}" if above is not None else f"of at least {at_least:g}"
    bound += f" and at most {most:,}"
    return Rule(needed=f"a {'whole ' if whole else ''}number {bound}", accepts=accepts)


def _one_of(choices: Sequence[object]) -> Rule:
    return Rule(
        needed="one of " + ", ".join("null" if choice is None else str(choice) for choice in choices),
        accepts=lambda v: not isinstance(v, bool) and v in choices,
    )


def _is_day_or_month(value: object) -> bool:
    if isinstance(value, date):
        return True
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d{2}(-\d{2})?", value):
        return False
    try:
        date.fromisoformat(value if len(value) == 10 else f"{value}-01")
    except ValueError:
        return False
    return True


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(NAME.accepts, cast(list[object], value)))


def _is_pci_ids(value: object) -> bool:
    return _is_texts(value) and all(re.fullmatch("[0-9A-Fa-f]{4}", text) for text in cast(list[str], value))


def _is_compute_capability(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\d+\.\d", value) is not None


def _is_text_or_text_table(value: object) -> bool:
    if isinstance(value, dict):
        table = cast(dict[object, object], value)
        return all(_is_printable(text) for pair in table.items() for text in pair)
    return _is_printable(value)


def _is_name_table(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_texts, cast(dict[object, object], value).values()))


def _is_printable(value: object) -> bool:
    """Lines of text, without what steers a terminal or turns the direction of writing."""
    return isinstance(value, str) and all(map(str.isprintable, value.splitlines()))


TEXT = Rule(needed="printable text", accepts=lambda v: _is_printable(v) and bool(cast(str, v).strip()))
NAME = Rule(
    needed="printable text in one line", accepts=lambda v: isinstance(v, str) and v.isprintable() and bool(v.strip())
)
_TEXTS = Rule(needed="a list of texts", accepts=_is_texts)
_BOOLEAN = Rule(needed="true or false", accepts=lambda v: isinstance(v, bool))
_COUNT = _number(at_least=1, whole=True)
_GPUS_PER_NODE = _number(at_least=1, most=MAX_GPUS_PER_NODE, whole=True)
_TEXT, _NAME, _FACT, _POSITIVE, _COUNT_OR_NULL = (
    TEXT.or_null(),
    NAME.or_null(),
    _BOOLEAN.or_null(),
    _number(above=0).or_null(),
    _COUNT.or_null(),
)

GPU_RULES: Rules = {
    "name": NAME,
    "vendor": _one_of([vendor.value for vendor in Vendor if vendor is not Vendor.CPU]),
    "architecture": _NAME,
    "compute_capability": Rule(needed='text in quotes such as "8.9"', accepts=_is_compute_capability).or_null(),
    "aliases": _TEXTS,
    "pci_device_ids": Rule(
        needed='a list of four hexadecimal digits in quotes, such as ["2684"]', accepts=_is_pci_ids
    ).or_null(),
    "provider_names": Rule(needed="a list of texts for each tool", accepts=_is_name_table),
    "memory_gb": _POSITIVE,
    "memory_mib": _number(at_least=1024).or_null(),  # who writes 24 means GiB
    "memory_basis": _TEXT,
    "memory_mib_alternatives": Rule(needed="a list of {mib, when}", accepts=lambda v: isinstance(v, list)),
    "cuda_visible_mib": _number(at_least=1024).or_null(),
    "memory_type": _NAME,
    "memory_bandwidth_gb_s": _POSITIVE,
    "sm_count": _COUNT_OR_NULL,
    "boost_mhz": _POSITIVE,
    "tensor_tflops_dense": dict.fromkeys(("bf16", "fp16", "tf32", "fp8"), _POSITIVE),
    "tensor_basis": Rule(needed="text, or a text for each dtype", accepts=_is_text_or_text_table).or_null(),
    "fp32_tflops": _POSITIVE,
    "supports_bf16": _BOOLEAN,
    "supports_flash_attention_2": _FACT,
    "supports_fp8": _FACT,
    "has_nvlink": _FACT,
    "nvlink_gb_s": _POSITIVE,
    "nvlink_note": _TEXT,
    "pcie": {
        "gen": _one_of([*PCIE_BYTES_PER_SECOND_PER_LANE, None]),
        "lanes": _one_of([1, 2, 4, 8, 16, None]),
    },
    "form_factor": _NAME,
    "tdp_w": _POSITIVE,
    "tdp_note": _TEXT,
    "max_gpus_per_node": _GPUS_PER_NODE.or_null(),
    "host_cpu_arch": _NAME,
    "launch_year": _number(at_least=2000, whole=True).or_null(),
    "launch_price_usd": _POSITIVE,
    "launch_price_is_rounded": _BOOLEAN,
    "street_price_usd": _POSITIVE,
    "note": _TEXT,
    "sources": Rule(needed="lines or a mapping of key: source", accepts=_is_text_or_text_table),
}

_PRICING = _one_of([pricing.value for pricing in Pricing])
_USD = _number(at_least=0)
FRACTION = Rule(
    needed="a number from 0 to 1 (0.1 is 10% off)",
    accepts=lambda v: _is_number(v) and 0 <= cast(float, v) <= 1,
)

_SEEN_AT = Rule(
    needed="a moment in UTC such as 2026-11-24T06:15:00Z",
    accepts=lambda v: isinstance(v, str) and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", v) is not None,
).or_null()
_CURRENCY = Rule(
    needed="three capital letters such as EUR",
    accepts=lambda v: isinstance(v, str) and re.fullmatch("[A-Z]{3}", v) is not None,
)

PRICE_LIST_RULES: Rules = {
    "provider": NAME,
    "region": _NAME,
    "pricing": _PRICING,
    "as_of": Rule(needed="a day such as 2026-05-24, or a month such as 2026-05", accepts=_is_day_or_month).or_null(),
    "as_of_basis": _NAME,
    "source": _NAME,
    "license": _NAME,
    "note": _TEXT,
    "seen_at": _SEEN_AT,
    "currency": _CURRENCY,
    "exchange_rate": _number(above=0),
}
OFFER_RULES: Rules = {
    **PRICE_LIST_RULES,
    "gpu": NAME,
    "num_gpus": _GPUS_PER_NODE,
    "price_list": NAME,
    "sku": _NAME,
    "usd_per_hour": _USD,
    "spot_usd_per_hour": _USD.or_null(),
    "vcpus": _COUNT_OR_NULL,
    "host_ram_gib": _POSITIVE,
}
OFFER_REQUIRED = ("gpu", "num_gpus", "provider", "pricing", "usd_per_hour")

SELECTOR_RULES: Rules = {
    "gpu": NAME,
    "num_gpus": _GPUS_PER_NODE,
    "provider": NAME,
    "sku": NAME,
    "region": NAME,
    "pricing": _PRICING,
}
DISCOUNT_RULES: Rules = {**SELECTOR_RULES, "fraction": FRACTION}
