import os
import re
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from vlmplan import compiled_catalog
from vlmplan.catalog import Catalog, load_catalog, shipped_catalog
from vlmplan.catalog import file as catalog_file
from vlmplan.catalog.file import CatalogFile, Sections, offers_with_price_lists, read_catalog_file
from vlmplan.catalog.layers import layered_gpus, layered_offers
from vlmplan.catalog.objects import offer_from_fields
from vlmplan.catalog.places import user_catalog_path
from vlmplan.catalog.shipped import ShippedCatalog
from vlmplan.errors import InputError, UnavailableError, UnknownNameError
from vlmplan.files import shipped_catalog_path, yaml_reader
from vlmplan.gpu_choice import GpuChoice, chosen_node, parse_gpu_choice
from vlmplan.hardware import DRIVER_RESERVE_BYTES, MAX_GPUS_PER_NODE, Pricing
from vlmplan.machine import host as local_host
from vlmplan.machine.cpu import cpu_gpu
from vlmplan.units import GIB, MIB


@pytest.fixture(autouse=True)
def no_files_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("APPDATA", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def with_file(tmp_path: Path, text: str) -> Catalog:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return load_catalog([path])


# The shipped file


@pytest.fixture(scope="module")
def shipped() -> Catalog:
    return Catalog(shipped_catalog())


def test_shipped_catalog_keeps_its_own_rules(shipped: Catalog):
    path = shipped_catalog_path(Path(catalog_file.__file__).parents[1])
    checked = read_catalog_file(path, may_be_empty=False)
    assert set(checked.gpus) == {gpu.id for gpu in shipped.gpus}
    assert len(checked.offers) == len(shipped.offers)


def test_every_shipped_gpu_and_offer_becomes_an_object(shipped: Catalog):
    assert {offer.gpu_id for offer in shipped.offers} < {gpu.id for gpu in shipped.gpus}


def test_every_shipped_offer_has_source_date_and_a_licence_that_allows_shipping(shipped: Catalog):
    assert {offer.license for offer in shipped.offers} == {"Apache-2.0", "MIT"}
    assert all(offer.source and offer.as_of and offer.as_of_basis for offer in shipped.offers)
    assert all(offer.stated_in is None for offer in shipped.offers)


def test_shipped_figures_are_those_of_the_data_sheets(shipped: Catalog):
    a100 = shipped.gpu("a100-sxm4-80gb")
    assert (a100.memory_bytes, a100.usable_bytes) == (81920 * MIB, 81038 * MIB)
    assert a100.peak_flops_per_second.bf16 == pytest.approx(312e12)
    assert a100.memory_bandwidth_bytes_per_second == pytest.approx(2039e9)
    assert a100.nvlink_bytes_per_second == pytest.approx(600e9 / 2)
    assert a100.compute_capability == (8, 0)
    assert shipped.gpu("rtx-5080").memory_bytes == 16303 * MIB
    assert shipped.gpu("rtx-5070").memory_bytes == 12227 * MIB
    assert not shipped.gpu("t4").supports_bf16
    assert shipped.gpu("t4").peak_flops_per_second.bf16 is None


def test_what_is_not_known_stays_unknown(shipped: Catalog):
    assert [gpu.id for gpu in shipped.gpus if not gpu.has_known_memory] == ["rtx-pro-5000-blackwell-72gb"]
    assert shipped.gpu("mi300x").supports_flash_attention_2 is None
    assert shipped.gpu("rtx-3090-ti").nvlink_bytes_per_second is None


def test_driver_reserve_is_never_more_than_23_mib_short_on_the_known_pairs(shipped: Catalog):
    pairs = [gpu for gpu in shipped.gpus if gpu.cuda_visible_bytes is not None]
    assert len(pairs) == 21
    for gpu in pairs:
        assert replace(gpu, cuda_visible_bytes=None).usable_bytes <= gpu.usable_bytes + 23 * MIB
    assert DRIVER_RESERVE_BYTES == 450 * MIB


def test_offer_carries_its_price_list_unless_it_says_otherwise(shipped: Catalog):
    gcp = [offer for offer in shipped.offers_for("a100-sxm4-40gb") if offer.provider == "gcp"]
    assert {offer.region for offer in gcp} == {"us-central1", "europe-west4"}
    assert {offer.as_of for offer in gcp} == {date(2026, 8, 3)}
    single = next(offer for offer in gcp if offer.num_gpus == 1 and offer.region == "us-central1")
    assert (single.usd_per_hour, single.spot_usd_per_hour) == (3.6734, 1.928)
    assert (single.num_vcpus, single.host_ram_bytes) == (12, 85 * GIB)


def test_month_of_a_price_counts_from_its_first_day(shipped: Catalog):
    verda = next(offer for offer in shipped.offers if offer.sku == "8B200.240V")
    assert verda.as_of == date(2026, 5, 1)
    assert verda.as_of_is_month


def test_prices_are_parsed_only_when_they_are_asked_for():
    sections = Sections("file", yaml_reader.yaml_documents("file", "gpus: {}\n---\noffers: ["))
    assert sections["gpus"] == {}
    with pytest.raises(InputError, match="not YAML"):
        _ = sections["offers"]


def test_shipped_file_lies_in_the_package_or_at_the_top_of_a_checkout(tmp_path: Path):
    package = tmp_path / "planner" / "vlmplan"
    package.mkdir(parents=True)
    with pytest.raises(UnavailableError, match=r"gpu_catalog\.yaml"):
        shipped_catalog_path(package)
    (tmp_path / "gpu_catalog.yaml").touch()
    assert shipped_catalog_path(package) == tmp_path / "gpu_catalog.yaml"
    (package / "gpu_catalog.yaml").touch()
    assert shipped_catalog_path(package) == package / "gpu_catalog.yaml"


def test_catalog_reads_the_same_without_libyaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "mine.yaml"
    path.write_text("gpus: {t4: {tdp_w: 71, launch_year: 2018}}\n", encoding="utf-8")
    fast = read_catalog_file(path, may_be_empty=False)
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    yaml_reader._loader.cache_clear()
    try:
        assert read_catalog_file(path, may_be_empty=False) == fast
        with pytest.raises(InputError, match="twice"):
            list(yaml_reader.yaml_documents("x", "{a: 1, a: 2}"))
    finally:
        yaml_reader._loader.cache_clear()


# Names


@pytest.mark.parametrize(
    ("name", "gpu_id"),
    [
        ("a100-sxm4-80gb", "a100-sxm4-80gb"),
        ("A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("GeForce RTX 3080 12GB", "rtx-3080-12gb"),
        ("Tesla T4", "t4"),
        ("H100-SXM", "h100-sxm"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_gpu_is_found_by_id_alias_or_marketing_name_in_any_case(shipped: Catalog, name: str, gpu_id: str):
    assert shipped.gpu(name).id == gpu_id


def test_every_id_and_full_name_finds_its_own_gpu(shipped: Catalog):
    for gpu in shipped.gpus:
        assert shipped.gpu(gpu.id.upper()) is gpu
        assert shipped.gpu(gpu.name) is gpu


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("NVIDIA GeForce RTX 3080", ("rtx-3080-10gb", "rtx-3080-12gb")),
        ("RTX 4060 Ti", ("rtx-4060-ti-8gb", "rtx-4060-ti-16gb")),
        ("A100", ("a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm4-40gb", "a100-sxm4-80gb")),
        ("a100 80gb", ("a100-pcie-80gb", "a100-sxm4-80gb")),
        ("4090", ("rtx-4090", "rtx-4090-laptop")),
    ],
)
def test_ambiguous_name_lists_its_candidates(shipped: Catalog, name: str, candidates: tuple[str, ...]):
    with pytest.raises(InputError) as caught:
        shipped.gpu(name)
    assert not isinstance(caught.value, UnknownNameError)
    assert all(candidate in str(caught.value) for candidate in candidates)


@pytest.mark.parametrize("name", ["mps", "M3-Max", "Apple M4 Pro", "m2", "macbook pro"])
def test_of_apple_s_gpus_it_is_said_what_can_be_planned_instead(shipped: Catalog, name: str):
    with pytest.raises(InputError, match="of Apple's GPUs vlmplan has no memory model; --gpu cpu:1 plans"):
        shipped.gpu(name)


def test_unknown_name_gets_the_nearest(shipped: Catalog):
    with pytest.raises(UnknownNameError, match="rtx-4090"):
        shipped.gpu("rtx-4091")
    with pytest.raises(UnknownNameError, match=f"{len(shipped.gpus)} are known"):
        shipped.gpu("abacus")
    for device in ("cuda:0", "0,1"):
        with pytest.raises(InputError, match="is a device and no card"):
            parse_gpu_choice(device)
    for name in ("2 x rtx-4090", "rtx-4090x2", "4"):
        with pytest.raises(UnknownNameError, match="as in rtx-4090:2"):
            shipped.gpu(name)


@given(
    st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9 ._-]{0,20}[a-zA-Z0-9]", fullmatch=True),
    st.none() | st.integers(min_value=1, max_value=MAX_GPUS_PER_NODE),
)
def test_name_and_count_survive_the_command_line(name: str, num_gpus: int | None):
    choice = GpuChoice(name=name, num_gpus=num_gpus)
    assert parse_gpu_choice(str(choice)) == choice


@pytest.mark.parametrize("count", ["1025", "1000000000", "1" + "0" * 5000])
def test_more_gpus_than_are_in_a_machine_are_refused_with_how_many_may_be(count: str):
    with pytest.raises(InputError, match="at most 1,024"):
        parse_gpu_choice(f"t4:{count}")


@pytest.mark.parametrize("text", ["t4:0", "t4:-3", "t4:x", "t4:", "t4:1.5", ":2", "", " ", "t4:1:2"])
def test_bad_count_or_name_is_one_sentence_that_quotes_it(text: str):
    with pytest.raises(InputError) as caught:
        parse_gpu_choice(text)
    assert text.strip(" ").split(":")[0] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_choice_without_a_count_is_one_card(shipped: Catalog):
    node = chosen_node(parse_gpu_choice("a100-sxm4-80gb"), shipped).node
    assert (node.gpu.id, node.num_gpus) == ("a100-sxm4-80gb", 1)
    assert chosen_node(parse_gpu_choice("a100-sxm4-80gb:4"), shipped).node.num_gpus == 4


def test_cpu_shares_this_machines_ram_among_its_ranks(shipped: Catalog):
    chosen = chosen_node(parse_gpu_choice("cpu:3"), shipped)
    ram = local_host.host_ram_bytes()
    assert chosen.node.gpu.is_cpu
    assert chosen.node.num_gpus == 3
    assert chosen.node.host_ram_bytes == ram
    assert chosen.node.gpu.usable_bytes == ram // 3
    assert chosen.node.gpu.peak_flops_per_second.bf16 is None
    assert "whose speed is not known" in chosen.notes[0]


def test_cpu_needs_a_rank():
    with pytest.raises(InputError, match="cpu:0"):
        cpu_gpu(0)


def test_ram_of_a_container_is_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local_host, "_posix_ram_bytes", lambda: 64 * GIB)
    monkeypatch.setattr(local_host.sys, "platform", "linux")
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(local_host, "_CGROUP_LIMITS", (str(limit),))
    assert local_host.host_ram_bytes() == 64 * GIB
    limit.write_text("max\n", encoding="ascii")
    assert local_host.host_ram_bytes() == 64 * GIB
    limit.write_text(f"{6 * GIB}\n", encoding="ascii")
    assert local_host.host_ram_bytes() == 6 * GIB


# The user's own files


def test_one_field_changes_and_the_others_stay(tmp_path: Path, shipped: Catalog):
    changed = with_file(tmp_path, "gpus: {a10g: {tdp_w: 150}}").gpu("a10g")
    before = shipped.gpu("a10g")
    assert changed.tdp_watts == 150
    assert dict(changed.sources)["tdp_w"].endswith("mine.yaml")
    assert replace(changed, tdp_watts=before.tdp_watts, sources=before.sources) == before


def test_nested_field_changes_alone(tmp_path: Path):
    gpu = with_file(tmp_path, "gpus: {t4: {tensor_tflops_dense: {bf16: 1.5}, pcie: {lanes: 8}}}").gpu("t4")
    assert (gpu.peak_flops_per_second.bf16, gpu.peak_flops_per_second.fp16) == (1.5e12, 65e12)
    assert (gpu.pcie_gen, gpu.pcie_lanes) == (3, 8)


def test_new_memory_does_not_keep_what_torch_saw_of_the_old(tmp_path: Path):
    gpu = with_file(tmp_path, "gpus: {rtx-4090: {memory_mib: 49140}}").gpu("rtx-4090")
    assert gpu.memory_bytes == 49140 * MIB
    assert gpu.cuda_visible_bytes is None


NEW_GPU = (
    "gpus: {rtx-4090-48gb: {name: RTX 4090 48 GB, vendor: nvidia, compute_capability: '8.9', memory_mib: 49140}}\n"
)
OWN_BOX = "offers: [{gpu: t4, num_gpus: 2, provider: our-lab, pricing: own, usd_per_hour: 0.21}]\n"


def test_new_gpu_has_what_was_said_and_nothing_more(tmp_path: Path):
    gpu = with_file(tmp_path, NEW_GPU).gpu("rtx 4090 48 gb")
    assert gpu.id == "rtx-4090-48gb"
    assert gpu.supports_bf16
    assert gpu.memory_bandwidth_bytes_per_second is None
    assert gpu.peak_flops_per_second.bf16 is None


def test_own_machine_is_an_offer_that_is_always_current(tmp_path: Path):
    mine = [offer for offer in with_file(tmp_path, OWN_BOX).offers_for("t4") if offer.provider == "our-lab"]
    assert [(offer.usd_per_hour, offer.pricing) for offer in mine] == [(0.21, Pricing.OWN)]
    assert mine[0].is_current(date(2099, 1, 1))


OVERRIDE = (
    "offers: [{gpu: h100-sxm, num_gpus: 8, provider: aws, sku: p5.48xlarge, region: us-east-1, pricing: on_demand, %s}]"
)


def p5(catalog: Catalog):
    return next(offer for offer in catalog.offers if offer.sku == "p5.48xlarge")


def test_new_price_of_a_known_offer_drops_the_date_and_source_of_the_old(tmp_path: Path, shipped: Catalog):
    before, after = p5(shipped), p5(with_file(tmp_path, OVERRIDE % "usd_per_hour: 31.5"))
    assert after.usd_per_hour == 31.5
    assert (after.as_of, after.source, after.license) == (None, None, None)
    assert after.host_ram_bytes == before.host_ram_bytes
    assert (after.stated_in or "").endswith("mine.yaml")


def test_other_field_of_a_known_offer_leaves_its_price_and_date(tmp_path: Path, shipped: Catalog):
    before, after = p5(shipped), p5(with_file(tmp_path, OVERRIDE % "vcpus: 96"))
    assert after == replace(before, num_vcpus=96, stated_in=after.stated_in)


def test_hidden_gpu_takes_its_offers_along(tmp_path: Path):
    catalog = with_file(tmp_path, "hide: [t4, {gpu: 'rtx-20*'}]")
    assert not {"t4", "rtx-2080"} & set(catalog.gpu_ids)
    assert not {"t4", "rtx-2080"} & {offer.gpu_id for offer in catalog.offers}
    assert "rtx-3090" in catalog.gpu_ids


def test_hidden_provider_leaves_its_gpus(tmp_path: Path, shipped: Catalog):
    catalog = with_file(tmp_path, "hide: salad")
    assert catalog.gpu_ids == shipped.gpu_ids
    assert "salad" not in {offer.provider for offer in catalog.offers}
    assert "runpod" in {offer.provider for offer in catalog.offers}


def test_hidden_offers_must_fit_every_word_of_the_selector(tmp_path: Path, shipped: Catalog):
    catalog = with_file(tmp_path, "hide: {provider: runpod, pricing: community}")
    gone = set(shipped.offers) - set(catalog.offers)
    assert len(gone) == 40
    assert {(offer.provider, offer.pricing) for offer in gone} == {("runpod", Pricing.COMMUNITY)}


def test_file_changes_what_came_before_and_then_adds_its_own(tmp_path: Path):
    text = "hide: [t4]\ndiscounts: {provider: '*', fraction: 0.5}\ngpus: {t4: {tdp_w: 75}}\n" + OWN_BOX
    catalog = with_file(tmp_path, text)
    assert catalog.gpu("t4").tdp_watts == 75
    assert [offer.usd_per_hour for offer in catalog.offers_for("t4")] == [0.21]


def test_discount_takes_its_fraction_off_every_price_of_the_provider(tmp_path: Path, shipped: Catalog):
    catalog = with_file(tmp_path, "discounts: {provider: lambda, fraction: 0.1}")
    for before, after in zip(shipped.offers, catalog.offers, strict=True):
        rate = 0.9 if before.provider == "lambda" else 1.0
        assert after.usd_per_hour == pytest.approx(before.usd_per_hour * rate)
    assert {o.discount_fraction for o in catalog.offers if o.provider == "lambda"} == {0.1}


def test_files_apply_in_order_user_project_command_line(tmp_path: Path):
    user = user_catalog_path()
    assert user is not None
    user.parent.mkdir(parents=True)
    user.write_text("gpus: {t4: {tdp_w: 71, note: user, launch_year: 2011}}", encoding="utf-8")
    (tmp_path / "vlmplan_catalog.yaml").write_text("gpus: {t4: {tdp_w: 72, note: project}}", encoding="utf-8")
    catalog = with_file(tmp_path, "gpus: {t4: {tdp_w: 73}}")
    gpu = catalog.gpu("t4")
    assert (gpu.launch_year, gpu.notes, gpu.tdp_watts) == (2011, ("project",), 73)
    assert [Path(name).name for name in catalog.file_names] == [
        "gpu_catalog.yaml",
        "vlmplan_catalog.yaml",
        "mine.yaml",
    ]


def test_file_both_found_and_named_applies_once(tmp_path: Path, shipped: Catalog):
    path = tmp_path / "vlmplan_catalog.yaml"
    path.write_text("discounts: {provider: lambda, fraction: 0.5}", encoding="utf-8")
    catalog = load_catalog([path])
    ratio = {
        after.usd_per_hour / before.usd_per_hour
        for before, after in zip(shipped.offers, catalog.offers, strict=True)
        if before.provider == "lambda"
    }
    assert ratio == {0.5}


def test_relative_config_home_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("vlmplan.files.user_config.sys.platform", "linux")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert user_catalog_path() == tmp_path / ".config" / "vlmplan" / "gpu_catalog.yaml"


def test_empty_file_found_by_itself_changes_nothing(tmp_path: Path, shipped: Catalog):
    (tmp_path / "vlmplan_catalog.yaml").write_text("# nothing yet\n", encoding="utf-8")
    catalog = load_catalog()
    assert catalog.gpus == shipped.gpus
    assert catalog.offers == shipped.offers


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n---\n"])
def test_empty_file_on_the_command_line_is_an_error(tmp_path: Path, text: str):
    with pytest.raises(InputError, match=r"mine\.yaml is empty"):
        with_file(tmp_path, text)


BAD_FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "unknown section": ("gpu: {}", ("'gpu'", "'gpus'")),
    "unknown key": ("gpus: {t4: {memory_mb: 1}}", ("gpus.t4", "'memory_mb'", "memory_mib")),
    "unknown nested key": ("gpus: {t4: {pcie: {generation: 4}}}", ("gpus.t4.pcie", "'generation'", "gen")),
    "wrong type": ("gpus: {t4: {memory_mib: lots}}", ("gpus.t4.memory_mib", '"lots"', "at least 1024")),
    "GiB for MiB": ("gpus: {t4: {memory_mib: 24}}", ("gpus.t4.memory_mib", "24", "at least 1024")),
    "negative": ("gpus: {t4: {tdp_w: -70}}", ("gpus.t4.tdp_w", "-70", "above 0")),
    "boolean for number": ("gpus: {t4: {tdp_w: yes}}", ("gpus.t4.tdp_w", "true", "number")),
    "infinite": ("gpus: {t4: {tdp_w: .inf}}", ("gpus.t4.tdp_w", "Infinity", "number")),
    "number for text": ("gpus: {t4: {compute_capability: 7.5}}", ("compute_capability", "7.5", "quotes")),
    "unquoted PCI id": ("gpus: {t4: {pci_device_ids: [2204]}}", ("pci_device_ids", "2204", "quotes")),
    "unknown vendor": ("gpus: {t4: {vendor: matrox}}", ("vendor", '"matrox"', "nvidia, amd")),
    "list for mapping": ("gpus: [t4]", ("gpus", '["t4"]', "an object")),
    "list at the top": ("[t4]", ('["t4"]', "an object")),
    "number as id": ("gpus: {4090: {}}", ("4090", "quotes")),
    "colon in id": ("gpus: {'a:b': {}}", ("'a:b'",)),
    "reserved id": ("gpus: {local: {}}", ("'local'",)),
    "incomplete GPU": ("gpus: {mine: {name: Mine}}", ("mine", "vendor", "memory_mib")),
    "GPU of unknown bf16": (
        "gpus: {mine: {name: M, vendor: amd, memory_mib: 8192}}",
        ("mine", "supports_bf16"),
    ),
    "torch sees too much": ("gpus: {t4: {cuda_visible_mib: 99999}}", ("t4", "torch")),
    "incomplete offer": ("offers: [{gpu: t4}]", ("offers[0]", "num_gpus")),
    "negative price": (
        OWN_BOX.replace("0.21", "-1"),
        ("offers[0].usd_per_hour", "-1", "at least 0"),
    ),
    "no GPUs": (OWN_BOX.replace("num_gpus: 2", "num_gpus: 0"), ("offers[0].num_gpus", "0", "at least 1")),
    "unknown pricing": (OWN_BOX.replace("own,", "free,"), ("offers[0].pricing", '"free"', "on_demand")),
    "offer of unknown GPU": (OWN_BOX.replace("t4", "rtx-4091"), ("offers[0].gpu", "'rtx-4091'", "rtx-4090")),
    "unknown price list": ("offers: [{price_list: awz}]", ("offers[0].price_list", '"awz"')),
    "bad date": (OWN_BOX.replace("}]", ", as_of: 2026-13}]"), ("as_of", '"2026-13"', "2026-05")),
    "hide unknown": ("hide: [salat]", ("hide[0]", "'salat'", "salad")),
    "hide unknown provider": ("hide: {provider: awz}", ("hide[0].provider", "'awz'", "aws")),
    "hide nothing": ("hide: [{}]", ("hide[0]", "gpu")),
    "hide by unknown key": ("hide: {vendor: amd}", ("hide[0]", "'vendor'")),
    "discount without fraction": ("discounts: {provider: aws}", ("discounts[0]", "fraction")),
    "discount in percent": ("discounts: {provider: aws, fraction: 10}", ("fraction", "10", "0 to 1")),
    "discount for nobody": ("discounts: {provider: awz, fraction: 0.1}", ("discounts[0].provider", "aws")),
    "other schema": ("schema: vlmplan.catalog/9", ("schema", "vlmplan.catalog/9", "vlmplan.catalog/1")),
    "not YAML": ("gpus: {t4: [", ("not YAML", "line")),
    "tag that would run code": ("gpus: !!python/object/apply:os.getcwd []", ("not YAML", "line 1")),
    "key twice": ("gpus: {t4: {tdp_w: 1, tdp_w: 2}}", ("tdp_w", "twice")),
    "section twice": ("hide: t4\n---\nhide: a10", ("'hide'", "two sections")),
    "too deep for libyaml": ("gpus: " + "[" * 100_000, ("nested too deeply",)),
    "too deep without brackets": ("gpus: " + "- " * 100_000, ("mine.yaml",)),
    "aliases of aliases": ("a: &a [x, x]\ngpus: &b [*a, *a]\nhide: [*b, *b]", ("'a'",)),
    "date that is none": ("offers: [{as_of: 2026-02-31}]", ("not YAML",)),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file_gets_one_sentence_with_file_key_value_and_what_is_allowed(tmp_path: Path, case: str):
    text, words = BAD_FILES[case]
    with pytest.raises(InputError) as caught:
        with_file(tmp_path, text)
    message = str(caught.value)
    assert "mine.yaml" in message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_missing_file_is_named(tmp_path: Path):
    with pytest.raises(UnavailableError, match=r"gone\.yaml does not exist"):
        load_catalog([tmp_path / "gone.yaml"])


def test_folder_and_binary_file_are_no_catalogs(tmp_path: Path):
    with pytest.raises(UnavailableError, match="cannot be read"):
        load_catalog([tmp_path])
    binary = tmp_path / "model.bin"
    binary.write_bytes(b"\xff\xfe\x00\x80" * 8)
    with pytest.raises(InputError, match=r"model\.bin is not text in UTF-8"):
        load_catalog([binary])


@pytest.mark.skipif(os.name == "nt", reason="permissions differ")
def test_byte_order_mark_is_no_error(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xef\xbb\xbfgpus: {t4: {tdp_w: 71}}")
    assert load_catalog([path]).gpu("t4").tdp_watts == 71


# Laws of layering

FIELDS = st.dictionaries(
    st.sampled_from(["tdp_w", "launch_year", "memory_bandwidth_gb_s", "boost_mhz"]), st.integers(2000, 3000)
)
GPU_IDS = ("one", "two", "three")
PROVIDERS = ("north", "south", "east")


def file_of(**sections: object) -> CatalogFile:
    empty: dict[str, object] = {"sources": {}, "gpus": {}, "offers": [], "hide": [], "discounts": []}
    return CatalogFile(name="law.yaml", **{**empty, **sections})  # type: ignore[arg-type]


OFFERS = st.builds(
    lambda gpu, provider, num_gpus, usd: {
        "gpu": gpu,
        "provider": provider,
        "num_gpus": num_gpus,
        "pricing": "on_demand",
        "usd_per_hour": usd,
        "spot_usd_per_hour": usd / 2,
    },
    st.sampled_from(GPU_IDS),
    st.sampled_from(PROVIDERS),
    st.integers(1, 8),
    st.floats(min_value=0, max_value=100),
)
SELECTORS = st.dictionaries(st.just("gpu"), st.sampled_from(GPU_IDS), min_size=1) | st.dictionaries(
    st.just("provider"), st.sampled_from([*PROVIDERS, "*th"]), min_size=1
)
HIDE = st.lists(SELECTORS | st.sampled_from([*GPU_IDS, "t*"]))
DISCOUNTS = st.lists(
    st.builds(lambda selector, f: {**selector, "fraction": f}, SELECTORS, st.floats(min_value=0, max_value=1))
)
ALL_OFFERS = st.lists(OFFERS).map(
    # Every provider exists, so that selectors always name something known.
    lambda offers: [
        *({"gpu": "one", "provider": p, "num_gpus": 9, "pricing": "own", "usd_per_hour": 1} for p in PROVIDERS),
        *offers,
    ]
)


@given(
    st.dictionaries(st.sampled_from(GPU_IDS), FIELDS),
    st.lists(st.dictionaries(st.sampled_from(GPU_IDS), FIELDS)),
)
def test_later_file_wins_field_by_field(base: dict[str, dict[str, int]], changes: list[dict[str, dict[str, int]]]):
    merged = layered_gpus(base, [file_of(gpus=change) for change in changes])
    expected: dict[str, dict[str, int]] = {}
    for layer in (base, *changes):
        for gpu_id, fields in layer.items():
            expected.setdefault(gpu_id, {}).update(fields)
    assert {i: {k: v for k, v in f.items() if k != "sources"} for i, f in merged.items()} == {
        i: {k: v for k, v in f.items() if k != "sources"} for i, f in expected.items()
    }


@given(HIDE, ALL_OFFERS)
def test_hiding_twice_is_hiding_once(hide: list[str | dict[str, str]], offers: list[dict[str, object]]):
    gpus: Mapping[str, Mapping[str, object]] = {gpu_id: {} for gpu_id in GPU_IDS}
    once, twice = [file_of(hide=hide)], [file_of(hide=hide)] * 2
    assert layered_gpus(gpus, once) == layered_gpus(gpus, twice)
    assert layered_offers(offers, gpus, once) == layered_offers(offers, gpus, twice)


@given(HIDE, ALL_OFFERS)
def test_hiding_only_takes_away(hide: list[str | dict[str, str]], offers: list[dict[str, object]]):
    before = layered_offers(offers, GPU_IDS, [])
    after = layered_offers(offers, GPU_IDS, [file_of(hide=hide)])
    assert [offer for offer in before if offer in after] == after


@given(DISCOUNTS, ALL_OFFERS)
def test_discounts_never_raise_a_price(discounts: list[dict[str, object]], offers: list[dict[str, object]]):
    before = map(offer_from_fields, layered_offers(offers, GPU_IDS, []))
    after = map(offer_from_fields, layered_offers(offers, GPU_IDS, [file_of(discounts=discounts)]))
    for old, new in zip(before, after, strict=True):
        assert 0 <= new.usd_per_hour <= old.usd_per_hour
        assert (new.spot_usd_per_hour or 0) <= (old.spot_usd_per_hour or 0)


@given(DISCOUNTS, ALL_OFFERS)
def test_order_of_discounts_does_not_matter(discounts: list[dict[str, object]], offers: list[dict[str, object]]):
    forth = layered_offers(offers, GPU_IDS, [file_of(discounts=discounts)])
    back = layered_offers(offers, GPU_IDS, [file_of(discounts=discounts[::-1])])
    for one, other in zip(map(offer_from_fields, forth), map(offer_from_fields, back), strict=True):
        assert one.usd_per_hour == pytest.approx(other.usd_per_hour, abs=1e-9)


@given(ALL_OFFERS)
def test_own_price_for_the_same_instance_replaces_the_shipped_one(offers: list[dict[str, object]]):
    mine = {**offers[-1], "usd_per_hour": 1234.5}
    layered = layered_offers(offers, GPU_IDS, [file_of(offers=[mine])])
    identity = ("gpu", "num_gpus", "provider", "pricing")
    same = [offer for offer in layered if all(offer[key] == mine[key] for key in identity)]
    assert [offer["usd_per_hour"] for offer in same] == [1234.5]


# -- the compiled form -----------------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a checkout keeps the compiled catalog; no wheel has brought one."""
    monkeypatch.setattr(compiled_catalog, "COMPILED_CATALOG", tmp_path / "no wheel")
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    return tmp_path / "cache" / "vlmplan" / "catalog" / "gpu_catalog.jsonl"


TEXT = "gpus: {t4: {launch: 2018-09-12, tdp_w: 70}}\n---\noffers: [{gpu: t4}]\n"
DOCUMENTS = [{"gpus": {"t4": {"launch": "2018-09-12", "tdp_w": 70}}}, {"offers": [{"gpu": "t4"}]}]


def test_a_checkout_reads_the_yaml_once_and_keeps_it(kept: Path, monkeypatch: pytest.MonkeyPatch):
    assert list(compiled_catalog.compiled_documents(TEXT)) == DOCUMENTS
    assert kept.is_file()
    monkeypatch.setattr(yaml_reader, "yaml_documents", None)
    assert list(compiled_catalog.compiled_documents(TEXT)) == DOCUMENTS


@pytest.mark.parametrize("broken", ["", "not json", "{}\n{}\n", "null\n", "\udce9"])
def test_what_is_kept_of_another_text_does_not_count(kept: Path, broken: str):
    kept.parent.mkdir(parents=True)
    kept.write_text(broken, encoding="utf-8", errors="surrogateescape")
    assert list(compiled_catalog.compiled_documents(TEXT)) == DOCUMENTS
    assert list(compiled_catalog.compiled_documents(TEXT.replace("70", "71"))) != DOCUMENTS


def test_where_nothing_can_be_kept_the_yaml_is_read(kept: Path, tmp_path: Path):
    (tmp_path / "cache").touch()
    assert list(compiled_catalog.compiled_documents(TEXT)) == DOCUMENTS


def test_a_file_that_came_with_the_wheel_serves_its_own_text_only(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    came = tmp_path / "came.jsonl"
    came.write_text(compiled_catalog.compiled(TEXT, DOCUMENTS), encoding="ascii")
    monkeypatch.setattr(compiled_catalog, "COMPILED_CATALOG", came)
    assert list(compiled_catalog.compiled_documents(TEXT)) == DOCUMENTS
    assert not kept.exists()
    assert list(compiled_catalog.compiled_documents("gpus: {}\n")) == [{"gpus": {}}]


@pytest.mark.sweep
def test_compiled_and_yaml_give_the_same_cards_and_offers(kept: Path, tmp_path: Path):
    path = shipped_catalog_path(Path(compiled_catalog.__file__).parent)
    mapping, compiled = yaml.safe_load_all(path.read_text(encoding="utf-8")), ShippedCatalog(path)
    read = {key: section for document in mapping for key, section in document.items()}
    assert (compiled.gpus, compiled.sources) == (read["gpus"], read["sources"])
    rows = offers_with_price_lists("x", read["offers"], read["price_lists"])
    assert list(map(offer_from_fields, compiled.offers)) == list(map(offer_from_fields, rows))


@pytest.mark.sweep
def test_a_wheel_is_built_with_the_compiled_catalog(tmp_path: Path):
    hatch = pytest.importorskip("hatchling.builders.wheel")
    root = Path(compiled_catalog.__file__).parents[2]
    if not (root / "hatch_build.py").is_file():
        pytest.skip("not a checkout")
    (built,) = hatch.WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(built) as wheel:
        text = wheel.read("vlmplan/gpu_catalog.yaml").decode()
        content = wheel.read("vlmplan/data/gpu_catalog.jsonl").decode("ascii")
    assert content == compiled_catalog.compiled(text, yaml.safe_load_all(text))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("gpus: {rtx-4090: {memory_mib: 1.0e+308}}", "gpus.rtx-4090.memory_mib"),
        ("gpus: {rtx-4090: {max_gpus_per_node: 100000}}", "gpus.rtx-4090.max_gpus_per_node"),
        ("offers: [{gpu: rtx-4090, num_gpus: 100000}]", "offers[0].num_gpus"),
        ("offers: [{gpu: rtx-4090, usd_per_hour: 1.0e+300}]", "offers[0].usd_per_hour"),
    ],
)
def test_numbers_that_nothing_comes_near_are_refused(tmp_path: Path, text: str, key: str):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InputError, match=re.escape(f"mine.yaml: {key} is ") + ".* and at most "):
        load_catalog([tmp_path / "mine.yaml"])


def test_many_patterns_are_refused_before_they_are_tried(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("hide:\n" + "- a*b?c\n" * 1001)
    with pytest.raises(InputError, match=r"mine.yaml: hide has 1,001 entries; at most 1,000 can be"):
        load_catalog([tmp_path / "mine.yaml"])


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (r'gpus: {rtx-4090: {name: "a\e[2Jb"}}', "gpus.rtx-4090.name"),
        (r'gpus: {rtx-4090: {aliases: ["a\u202eb"]}}', "gpus.rtx-4090.aliases"),
        (r'gpus: {rtx-4090: {note: "a\ab"}}', "gpus.rtx-4090.note"),
        (r'offers: [{provider: "a\nb"}]', "offers[0].provider"),
        (r'offers: [{sku: "a\rb"}]', "offers[0].sku"),
        (r'sources: {"a": "b\0"}', "sources.a"),
    ],
)
def test_names_that_steer_a_terminal_are_refused(tmp_path: Path, text: str, key: str):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InputError, match=re.escape(f"mine.yaml: {key} is ") + ".*printable|a list of texts"):
        load_catalog([tmp_path / "mine.yaml"])


@pytest.mark.parametrize("decides", ["supports_bf16: true", 'compute_capability: "8.9"'])
def test_a_gpu_needs_what_the_documentation_says_for_bytes_and_no_more(tmp_path: Path, decides: str):
    page = Path(__file__).parents[2] / "docs" / "tasks" / "models-and-gpus.md"
    said = " ".join(page.read_text(encoding="utf-8").split())
    assert (
        "Only `name`, `vendor`, `memory_mib` and one of `compute_capability` and `supports_bf16`, which decides the "
        "precision, are needed for bytes" in said
    )
    least = "gpus: {mine: {name: Mine, vendor: nvidia, memory_mib: 24000%s}}\n"
    gpu = with_file(tmp_path, least % f", {decides}").gpu("mine")
    assert gpu.usable_bytes
    assert gpu.supports_bf16
    assert gpu.peak_flops_per_second.bf16 is None
    with pytest.raises(InputError, match="neither compute_capability nor supports_bf16"):
        with_file(tmp_path, least % "").gpu("mine")
