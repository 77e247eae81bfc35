import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli_calls import refusal
from documented_json import undocumented
from vlmplan.catalog import load_catalog
from vlmplan.cli.gpus import gpus
from vlmplan.errors import UnavailableError, UnknownNameError
from vlmplan.hardware import ON_DEMAND_SUFFIX
from vlmplan.machine.nvml import NvmlCard, NvmlMachine
from vlmplan.render import tables
from vlmplan.render.tables import Table, plain_lines
from vlmplan.units import GIB, MIB

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("APPDATA", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vlmplan.cli.gpus.today", lambda: date(2026, 11, 21))

    def invoke(*args: str) -> Result:
        result = CliRunner().invoke(gpus, args)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


def document(run: Run, *args: str) -> dict[str, Any]:
    result = run(*args, "--json")
    assert result.exit_code == 0
    return json.loads(result.output)


def ids(run: Run, *args: str) -> list[str]:
    return [gpu["id"] for gpu in document(run, *args)["gpus"]]


def test_without_filters_every_gpu_is_listed(run: Run):
    found = document(run)
    assert found["schema"] == "vlmplan.gpus/1"
    assert len(found["gpus"]) == 85


def test_memory_bounds_are_gib_as_the_driver_counts_them(run: Run):
    found = document(run, "--min-memory", "79", "--max-memory", "81")["gpus"]
    assert {"h100-sxm", "a100-sxm4-80gb"} <= {gpu["id"] for gpu in found}
    assert all(79 * GIB <= gpu["memory_bytes"] <= 81 * GIB for gpu in found)


def test_card_of_unknown_memory_meets_no_bound(run: Run):
    assert "rtx-pro-5000-blackwell-72gb" in ids(run)
    assert "rtx-pro-5000-blackwell-72gb" not in ids(run, "--min-memory", "0")


def test_words_architecture_and_bf16_narrow_the_list(run: Run):
    assert ids(run, "a100", "SXM4") == ["a100-sxm4-40gb", "a100-sxm4-80gb"]
    assert "t4" in ids(run, "--architecture", "turing")
    assert "t4" not in ids(run, "--bf16")
    assert set(ids(run, "--bf16")) | set(ids(run, "--no-bf16")) == set(ids(run))


@pytest.mark.parametrize("command", ["gpus", "prices"])
def test_words_that_no_gpu_has_are_refused(command: str):
    assert "unknown GPU 'rtx 4099'" in refusal(command, "rtx", "4099")


def test_price_bound_is_for_the_whole_instance(run: Run):
    found = document(run, "--max-usd-per-hour", "2", "--offers")
    assert found["offers"]
    assert all(offer["usd_per_hour"] <= 2 for offer in found["offers"])
    assert all(gpu["cheapest_offer"] for gpu in found["gpus"])


def test_provider_and_pricing_narrow_offers_and_leave_out_gpus_without(run: Run):
    found = document(run, "--provider", "RunPod", "--pricing", "community", "--offers")
    assert len(found["offers"]) == 40
    assert {(o["provider"], o["pricing"]) for o in found["offers"]} == {("runpod", "community")}
    assert {o["gpu_id"] for o in found["offers"]} == {gpu["id"] for gpu in found["gpus"]}


def test_cheapest_offer_is_the_cheapest_per_gpu_and_has_its_age(run: Run):
    (gpu,) = document(run, "h100-sxm", "--offers")["gpus"]
    offers = document(run, "h100-sxm", "--offers")["offers"]
    cheapest = gpu["cheapest_offer"]
    assert cheapest["usd_per_gpu_hour"] == min(offer["usd_per_gpu_hour"] for offer in offers)
    assert cheapest["age_days"] == (date(2026, 11, 21) - date.fromisoformat(cheapest["as_of"])).days


@pytest.mark.parametrize(
    ("sort", "key"),
    [
        ("memory", lambda gpu: gpu["memory_bytes"] or float("inf")),
        ("name", lambda gpu: gpu["id"]),
        ("price", lambda gpu: (gpu["cheapest_offer"] or {"usd_per_gpu_hour": 1e9})["usd_per_gpu_hour"]),
        ("speed", lambda gpu: -(gpu["peak_flops_per_second"]["bf16"] or 0)),
    ],
)
def test_list_is_sorted_as_asked(run: Run, sort: str, key: Callable[[dict[str, Any]], Any]):
    found = document(run, "--sort", sort, "--bf16")["gpus"]
    assert found == sorted(found, key=key)


def test_table_and_json_show_the_same_prices(run: Run):
    lines = run().output.splitlines()
    for gpu in document(run)["gpus"]:
        (line,) = [line for line in lines if line.startswith(gpu["id"] + " ")]
        offer = gpu["cheapest_offer"]
        shown = [cell for cell in line.split("  ") if cell]
        price = next((cell for cell in shown if "$" in cell), None)
        assert (price is None) == (offer is None)
        if offer is not None:
            assert float(price.strip(" $")) == pytest.approx(offer["usd_per_gpu_hour"], abs=0.005)
            assert f"{offer['age_days']} d" in line


def test_piped_table_is_plain_and_cuts_nothing(run: Run):
    output = run("--offers").output
    assert output.isascii() or not set("─│┌┐└┘━┃…") & set(output)
    assert max(map(len, output.splitlines())) > 120, "wider than any terminal rich assumes"
    skus = [offer["sku"] for offer in document(run, "--offers")["offers"]]
    assert all(sku.removesuffix(ON_DEMAND_SUFFIX) in output for sku in skus), "terms have a column of their own"


def test_old_prices_are_marked(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("vlmplan.cli.gpus.today", lambda: date(2026, 6, 1))
    assert "!" not in run("t4").output
    monkeypatch.setattr("vlmplan.cli.gpus.today", lambda: date(2028, 1, 1))
    output = run("t4").output
    assert " d !" in output
    assert "older than" in output


def test_own_catalogs_count_and_are_named(run: Run, tmp_path: Path):
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "offers: [{gpu: t4, num_gpus: 1, provider: our-lab, pricing: own, usd_per_hour: 0}]", encoding="utf-8"
    )
    assert "mine.yaml" in run("t4", "--catalog", str(mine)).output
    found = document(run, "t4", "--catalog", str(mine))
    assert found["gpus"][0]["cheapest_offer"]["provider"] == "our-lab"
    assert found["catalog_files"] == [str(mine)]


def test_bad_catalog_and_unknown_names_are_the_users_errors(run: Run, tmp_path: Path):
    with pytest.raises(UnavailableError, match=r"gone\.yaml"):
        run("--catalog", str(tmp_path / "gone.yaml"))
    with pytest.raises(UnknownNameError, match="lambda"):
        run("--provider", "lamda")
    with pytest.raises(UnknownNameError, match="Hopper"):
        run("--architecture", "hoper")


@pytest.mark.parametrize("args", [("--pricing", "free"), ("--min-memory", "-1"), ("--sort", "luck"), ("--gpu", "t4")])
def test_usage_errors_exit_with_2(run: Run, args: tuple[str, ...]):
    assert run(*args).exit_code == 2


def test_detect_shows_driver_and_match(run: Run, monkeypatch: pytest.MonkeyPatch):
    card = NvmlCard(
        index=0,
        name="NVIDIA GeForce RTX 4090",
        total_bytes=24564 * MIB,
        free_bytes=20000 * MIB,
        pci_device_id="2684",
        compute_capability=(8, 9),
    )
    machine = NvmlMachine(driver_version="580.95.05", cuda_driver_version=(13, 0), cards=(card,))
    monkeypatch.setattr("vlmplan.machine.gpus.read_machine", lambda: machine)
    found = document(run, "--detect")
    assert undocumented(found) == set()
    (device,) = found["detected"]
    assert device["matched_by"] == "name and memory"
    assert device["gpu"]["id"] == "rtx-4090"
    assert device["gpu"]["usable_bytes"] == 24081 * MIB
    output = run("--detect").output
    assert "driver 580.95.05, CUDA 13.0" in output
    assert "other processes hold" in output


def test_detect_without_a_driver_is_the_users_error(run: Run, monkeypatch: pytest.MonkeyPatch):
    def no_driver() -> NvmlMachine:
        raise UnavailableError("this machine has no NVIDIA driver")

    monkeypatch.setattr("vlmplan.machine.gpus.read_machine", no_driver)
    with pytest.raises(UnavailableError, match="no NVIDIA driver"):
        run("--detect")


def test_what_narrows_the_list_is_refused_beside_the_machine_s_own_cards(run: Run):
    list_words = (
        ("4090",),
        ("--min-memory", "9"),
        ("--no-bf16",),
        ("--provider", "aws"),
        ("--sort", "name"),
        ("--offers",),
    )
    for words in list_words:
        result = run("--detect", *words)
        assert (result.exit_code, words[0] in result.output) == (2, True), words


def test_columns_line_up():
    table = Table(titles=("a", "n"), rows=[("xyz", "1"), ("x", "20")], number_columns=frozenset("n"))
    assert plain_lines(table) == ["a     n", "xyz   1", "x    20"]


def test_terminal_gets_ruled_table_with_brackets_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(tables.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    tables.print_table(Table(titles=("sku",), rows=[("1x T4 [spot only]",)]))
    output = capsys.readouterr().out
    assert "1x T4 [spot only]" in output
    assert "─" in output


@pytest.mark.parametrize("columns", range(10, 60, 7))
def test_terminal_of_any_width_cuts_no_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
):
    monkeypatch.setattr(tables.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    titles = ("name of the card", "dollars per hour", "count")
    row = ("rtx-pro-6000-blackwell-server", "$12345.6789", "1234567")
    tables.print_table(Table(titles=titles, rows=[row], number_columns=frozenset(titles[1:])))
    output = capsys.readouterr().out
    assert row[1] in output
    assert row[2] in output


def test_command_lists_what_the_catalog_holds(run: Run):
    assert sorted(ids(run)) == sorted(load_catalog().gpu_ids)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["gpus", "--min-memory", "90", "--max-memory", "10"], "--min-memory 90 is more than --max-memory 10"),
        (
            ["models", "--min-params", "9B", "--max-params", "1B"],
            "--min-params 9,000,000,000 is more than",
        ),
    ],
)
def test_limits_between_which_nothing_is_are_refused(words: list[str], sentence: str):
    assert sentence in refusal(*words)
