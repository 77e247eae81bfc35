"""``vlmplan recommend``: the contract of ``--json``, objectives and limits, and the files that ``--out`` writes."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cli_calls import DOES_NOT_FIT, DONE, Call, call, options_of, refusal, says
from documented_json import documented_keys
from picture_checks import brings_everything, is_a_report
from vlmplan.catalog import load_catalog
from vlmplan.deepspeed_config import deepspeed_config, merged_recipe, settings_from_ds_config
from vlmplan.emit.wheel import wheel_name
from vlmplan.hardware import Pricing
from vlmplan.plan import read_plan
from vlmplan.recipe import Recipe
from vlmplan.recipe.from_json import recipe_from_json
from vlmplan.units import GIB, gib_text, usd_text

MODEL, VISION_MODEL = "smollm2-135m", "qwen2-vl-2b"
CONTRACT = {"schema", "workload", "plans", "rejected"}
"""What the first version of schema ``vlmplan.recommendation/1`` promised."""
PLAN = {"rank", "gpu", "num_gpus", "num_nodes", "offer", "recipe", "estimate", "hours", "usd", "usd_per_hour"}
PLAN |= {"billed_hours", "cost", "price", "hours_range", "usd_range"}
SEARCHES = [
    (MODEL,),
    (VISION_MODEL, "--freeze-vision"),
    (VISION_MODEL, "--method", "full", "--gpu", "rtx-4090:4"),
    pytest.param(("llama-3.1-8b", "--method", "lora", "--objective", "time"), marks=pytest.mark.sweep),
    pytest.param(("qwen2-vl-72b", "--gpu", "h100-sxm:8", "--objective", "vram"), marks=pytest.mark.sweep),
    (VISION_MODEL, "--gpu", "t4", "--num-nodes", "2"),
]


TWO_CARDS = ("--gpu", "t4:1", "--gpu", "rtx-4090:1")
FEW_CARDS = ("--gpu", "t4", "--gpu", "rtx-4090", "--gpu", "l4:4", "--gpu", "a100-sxm4-80gb")
"""A search over few machines, as right as one over all that are on offer."""


@pytest.fixture(autouse=True)
def _place(isolated: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlmplan.commands.recommend.today", lambda: date(2026, 11, 21))


@cache
def recommended(model: str, *words: str) -> Call:
    """A search that depends on nothing but its words."""
    found = call("recommend", "--model", model, *words, "--json")
    assert found.err == ""
    return found


def plans_of(model: str, *words: str) -> list[dict[str, Any]]:
    found = recommended(model, *words)
    assert found.code == DONE
    return found.document["plans"]


def device_bytes(plan: dict[str, Any]) -> int:
    return plan["estimate"]["peak_device_bytes"]


# -- the schema ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", SEARCHES)
def test_json_keeps_the_contract(search: Sequence[str]):
    values = recommended(*search).document
    assert values.keys() > CONTRACT
    assert values.keys() - {"schema"} == documented_keys("vlmplan.recommendation/1")
    assert values["schema"] == "vlmplan.recommendation/1"
    assert (values["workload"]["model"], values["date"]) == (search[0], "2026-11-21")
    assert [set(plan) for plan in values["plans"]] == [PLAN] * len(values["plans"])
    assert [plan["rank"] for plan in values["plans"]] == list(range(1, len(values["plans"]) + 1))
    for rejection in values["rejected"]:
        assert set(rejection) == {"gpu", "num_gpus", "num_nodes", "reason", "smallest_change"}
        assert rejection["reason"]


@pytest.mark.parametrize("search", SEARCHES)
def test_every_plan_fits_and_its_numbers_agree(search: Sequence[str]):
    plans = plans_of(*search)
    assert plans
    for plan in plans:
        estimate = plan["estimate"]
        assert (estimate["schema"], estimate["verdict"]) == ("vlmplan.estimate/1", "fits")
        assert estimate["recipe"] == plan["recipe"]
        places = (estimate["gpu"]["id"], estimate["gpu"]["count"], estimate["gpu"]["num_nodes"])
        assert places == (plan["gpu"], plan["num_gpus"], plan["num_nodes"])
        assert sum(estimate["components_at_peak"].values()) == estimate["peak_allocated_bytes"]
        num_samples, per_step = plan["recipe"]["num_samples"], plan["recipe"]["global_batch"]
        num_steps = -(-num_samples // per_step)
        assert plan["hours"] == pytest.approx(num_steps * estimate["step_seconds"] / 3600)
        ends = [num_steps * seconds / 3600 for seconds in estimate["step_seconds_range"]]
        assert plan["hours_range"] == pytest.approx(ends)
        if plan["offer"] is None:
            assert plan["usd"] is plan["usd_per_hour"] is plan["usd_range"] is None
            continue
        assert plan["usd_range"][0] < plan["usd"] < plan["usd_range"][1]
        assert (plan["offer"]["gpu_id"], plan["offer"]["num_gpus"]) == (plan["gpu"], plan["num_gpus"])
        assert plan["usd_per_hour"] == pytest.approx(plan["offer"]["usd_per_hour"] * plan["num_nodes"])
        parts = [usd for name, usd in plan["cost"].items() if name.endswith("_usd")]
        assert plan["usd"] == pytest.approx(sum(parts))
        assert plan["cost"]["training_usd"] == pytest.approx(plan["hours"] * plan["usd_per_hour"])
        hourly = plan["usd"] - plan["cost"]["storage_usd"]
        assert plan["billed_hours"] * plan["usd_per_hour"] == pytest.approx(hourly)


def test_two_searches_print_the_same():
    words = ("recommend", "--model", MODEL, "--json")
    assert call(*words).out == recommended(MODEL).out


# -- estimate agrees -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("search", SEARCHES)
def test_a_plan_estimated_again_has_the_same_peak(search: Sequence[str]):
    for plan in plans_of(*search)[:3]:
        words = list(options_of(plan))
        recipe = recipe_from_json({name: plan["recipe"][name] for name in Recipe().as_json()})
        config = deepspeed_config(recipe, num_gpus=plan["num_gpus"] * plan["num_nodes"])
        if config is not None:  # what --out writes: the sizes of ZeRO's buckets have no options of their own
            Path("ds_config.json").write_text(json.dumps(config))
            words += ["--ds-config", "ds_config.json"]
        again = call("estimate", *words, "--json")
        assert again.err == ""
        for name in ("peak_allocated_bytes", "peak_device_bytes", "host_bytes_per_node"):
            assert again.document[name] == pytest.approx(plan["estimate"][name], rel=0.01)
        assert again.document["step_seconds"] == pytest.approx(plan["estimate"]["step_seconds"], rel=0.01)


# -- objectives and limits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "search",
    [
        (MODEL, *FEW_CARDS),
        pytest.param((MODEL,), marks=pytest.mark.sweep),
        pytest.param((VISION_MODEL, "--provider", "runpod"), marks=pytest.mark.sweep),
    ],
)
def test_each_objective_returns_the_best_of_what_it_names(search: Sequence[str]):
    cheapest, fastest, smallest = (plans_of(*search, "--objective", name) for name in ("cost", "time", "vram"))
    assert [plan["usd"] for plan in cheapest] == sorted(plan["usd"] for plan in cheapest)
    assert [plan["hours"] for plan in fastest] == sorted(plan["hours"] for plan in fastest)
    assert [device_bytes(plan) for plan in smallest] == sorted(device_bytes(plan) for plan in smallest)
    everything = [*cheapest, *fastest, *smallest]
    assert cheapest[0]["usd"] == min(plan["usd"] for plan in everything)
    assert fastest[0]["hours"] == min(plan["hours"] for plan in everything)
    assert device_bytes(smallest[0]) == min(device_bytes(plan) for plan in everything)


def test_cost_is_what_is_looked_for_without_an_objective():
    assert recommended(MODEL).document == recommended(MODEL, "--objective", "cost").document


@pytest.mark.sweep
@pytest.mark.parametrize("cards", [FEW_CARDS, pytest.param((), marks=pytest.mark.sweep)], ids=["few", "all"])
@pytest.mark.parametrize(
    ("option", "key", "objective"), [("--max-usd", "usd", "cost"), ("--max-hours", "hours", "time")]
)
def test_a_limit_on_the_run_is_kept_up_to_the_last_cent(option: str, key: str, objective: str, cards: tuple[str, ...]):
    best = plans_of(MODEL, *cards, "--objective", objective)[0]
    limit = best[key] * 1.5
    found = plans_of(MODEL, *cards, "--objective", objective, option, repr(limit))
    assert found[0] == best
    assert all(plan[key] <= limit for plan in found)
    other = "time" if objective == "cost" else "cost"
    assert all(plan[key] <= limit for plan in plans_of(MODEL, *cards, "--objective", other, option, repr(limit)))
    none = recommended(MODEL, *cards, "--objective", objective, option, repr(best[key] * 0.5))
    assert (none.code, none.document["plans"]) == (DOES_NOT_FIT, [])
    assert all("over the limits" in rejection["reason"] for rejection in none.document["rejected"])


@pytest.mark.parametrize(
    "gpu",
    [
        ("--gpu", "a100-sxm4-80gb"),
        ("--gpu", "t4", "--num-nodes", "2"),
        pytest.param((), marks=pytest.mark.sweep),
    ],
)
def test_a_limit_on_the_price_is_for_all_machines_together(gpu: Sequence[str]):
    prices = sorted(plan["usd_per_hour"] for plan in plans_of(MODEL, "--objective", "time", *gpu) if plan["offer"])
    limit = prices[0]
    found = plans_of(MODEL, "--objective", "time", *gpu, "--max-usd-per-hour", repr(limit))
    assert found
    assert all(plan["usd_per_hour"] <= limit for plan in found)
    words = ("--model", MODEL, *gpu, "--max-usd-per-hour", "0.00001", "--json")
    said = refusal("recommend", *words, code=DOES_NOT_FIT)
    assert "no offer of the catalog is left" in said
    assert "--max-usd-per-hour" in said.partition(";")[2]


@pytest.mark.sweep
def test_providers_are_honoured():
    found = plans_of(MODEL, "--provider", "runpod", "--provider", "aws")
    assert {plan["offer"]["provider"] for plan in found} <= {"runpod", "aws"}
    one = plans_of(MODEL, "--provider", "aws")
    assert {plan["offer"]["provider"] for plan in one} == {"aws"}
    assert found[0]["usd"] <= one[0]["usd"]


@pytest.mark.parametrize(
    "pricing", [("interruptible",), pytest.param(("reserved", "marketplace"), marks=pytest.mark.sweep)]
)
def test_terms_of_payment_are_honoured(pricing: tuple[str, ...]):
    words = [word for name in pricing for word in ("--pricing", name)]
    assert {plan["offer"]["pricing"] for plan in plans_of(MODEL, *words)} <= set(pricing)


def test_without_terms_of_payment_a_machine_cannot_be_taken_away():
    assert {plan["offer"]["pricing"] for plan in plans_of(MODEL)} <= {"on_demand", "own"}


def test_named_gpus_are_the_only_ones_in_the_counts_that_are_named():
    found = plans_of(VISION_MODEL, "--gpu", "rtx-4090", "--gpu", "l4:2", "--gpu", "l4:4", "--method", "lora")
    assert {(plan["gpu"], plan["num_gpus"]) for plan in found} == {("rtx-4090", 1), ("l4", 2), ("l4", 4)}


@pytest.mark.parametrize("gpu", ["rtx-4060", "rtx-3090", "h100-sxm", "t4"])
def test_a_gpu_without_a_count_is_planned_for_as_it_is_estimated(gpu: str):
    estimate = call("estimate", "--model", MODEL, "--gpu", gpu, "--json").document["gpu"]
    for plan in plans_of(MODEL, "--gpu", gpu):
        assert (plan["gpu"], plan["num_gpus"], plan["num_nodes"]) == (gpu, 1, 1)
        assert plan["estimate"]["gpu"] == estimate


@pytest.mark.sweep
def test_host_memory_of_ones_own_machine_is_what_a_plan_may_take():
    words = ("--gpu", "rtx-4090", "--method", "full", "--offload-optimizer", "cpu", "--zero-stage", "2")
    needed = plans_of(MODEL, *words)[0]["estimate"]["host_bytes_per_node"] / GIB
    (plan,) = plans_of(MODEL, *words, "--host-ram", repr(needed))
    assert plan["offer"] is None
    assert plan["estimate"]["host_bytes_per_node"] / GIB <= needed
    said = recommended(MODEL, *words, "--host-ram", "0.5")
    assert said.code == DOES_NOT_FIT
    assert "--host-ram says 0.50 GiB" in said.document["rejected"][0]["reason"]


def test_host_memory_is_of_a_machine_that_is_named_and_not_rented():
    for words, reason in (
        ((), "name its GPUs with --gpu"),
        (("--gpu", "t4", "--provider", "aws"), "--provider asks for one to rent"),
        (("--gpu", "t4", "--pricing", "interruptible"), "--pricing asks for one to rent"),
        (("--gpu", "t4", "--max-usd-per-hour", "2"), "--max-usd-per-hour asks for one to rent"),
    ):
        assert reason in refusal("recommend", "--model", MODEL, *words, "--host-ram", "64")
    for amount in ("0", "-3", "nan", "inf"):
        assert "--host-ram is" in refusal("recommend", "--model", MODEL, "--gpu", "t4", "--host-ram", amount)


@pytest.mark.sweep
def test_the_host_of_somebodys_offer_that_is_too_small_is_named_with_whose_it_is():
    found = recommended("llama-3.1-8b", "--gpu", "rtx-4090:1", "--method", "full", "--zero-stage", "3")
    assert found.code == DOES_NOT_FIT
    ladder = [offer for offer in load_catalog().offers_for("rtx-4090") if offer.num_gpus == 1]
    largest = max(offer.host_ram_bytes or 0 for offer in ladder if offer.pricing is Pricing.ON_DEMAND)
    owners = {offer.label for offer in ladder if offer.host_ram_bytes == largest}
    (rejection,) = found.document["rejected"]
    assert any(f"{owner} has {gib_text(largest)}" in rejection["reason"] for owner in owners)


def test_a_gpu_that_nobody_offers_is_planned_for_without_a_price():
    catalog = load_catalog()
    unsold = next(gpu for gpu in catalog.gpus if gpu.has_known_memory and not catalog.offers_for(gpu.id))
    (plan, *_) = plans_of(MODEL, "--gpu", f"{unsold.id}:1")
    assert (plan["offer"], plan["usd"], plan["usd_per_hour"]) == (None, None, None)


def test_an_offer_of_ones_own_wins_where_it_is_cheapest():
    offer = "{gpu: rtx-4090, num_gpus: 1, provider: the-lab, pricing: own, usd_per_hour: 0.0001}"
    Path("mine.yaml").write_text("offers:\n  - " + offer + "\n")
    found = call("recommend", "--model", MODEL, "--catalog", "mine.yaml", "--json").document["plans"]
    assert (found[0]["offer"]["provider"], found[0]["usd_per_hour"]) == ("the-lab", 0.0001)
    assert found[0]["usd"] < plans_of(MODEL)[0]["usd"]


# -- nothing fits ----------------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        pytest.param(("llama-3.1-70b", "--gpu", "t4:1", "--method", "full"), "GiB", marks=pytest.mark.sweep),
        ((MODEL, "--gpu", "t4:1", "--seq-len", "2000000"), "GiB"),
        pytest.param((MODEL, "--gpu", "t4:1", "--seq-len", "10000000"), "GiB", marks=pytest.mark.sweep),
    ],
)
def test_when_nothing_fits_every_machine_has_a_reason(words: Sequence[str], reason: str):
    found = recommended(*words)
    assert (found.code, found.document["plans"]) == (DOES_NOT_FIT, [])
    (rejection,) = found.document["rejected"]
    assert reason in rejection["reason"]
    shown = call("recommend", "--model", *words)
    assert (shown.code, shown.err) == (DOES_NOT_FIT, "")
    assert "nothing fits" in shown.out
    assert reason in shown.out


@pytest.mark.parametrize(
    "words",
    [
        ("--method", "full", "--lora-rank", "64"),
        ("--method", "full", "--use-dora"),
        ("--offload-params", "cpu", "--zero-stage", "2"),
        ("--hpz", "2", "--zero-stage", "1"),
        ("--linear-attention", "fla"),
    ],
    ids=" ".join,
)
def test_what_cannot_run_is_refused_by_a_search_as_by_an_estimate(words: Sequence[str]):
    asked = ("--model", MODEL, "--gpu", "t4:2", *words)
    assert refusal("recommend", *asked) == refusal("advise", *asked) == refusal("estimate", *asked)


def test_of_what_stands_in_the_way_that_is_said_which_the_user_asked_for():
    asked = ("--model", MODEL, "--gpu", "t4:2", "--offload-params", "cpu", "--hpz", "2")
    assert "keeps a second copy of the weights" in refusal("recommend", *asked)  # and not what stage 0 has no use for
    asked = ("--model", MODEL, "--gpu", "t4:2", "--offload-optimizer", "cpu", "--adapter-dtype", "float32")
    assert "--zero-stage none" not in call("recommend", *asked, "--method", "full").err


def test_what_no_machine_can_run_is_refused_with_what_stands_in_the_way_on_each():
    cards = [word for name in ("t4", "v100-sxm2-16gb", "rtx-2080-ti") for word in ("--gpu", name)]
    sentence = refusal("recommend", "--model", MODEL, *cards, "--precision", "bf16")
    assert sentence.startswith("vlmplan: none of the 3 machines can run it; ")
    assert sentence.count("--precision fp16") == 3


def test_where_one_machine_can_run_it_the_others_are_told_with_what_fits():
    shown = call("recommend", "--model", MODEL, "--gpu", "t4", "--gpu", "l4", "--precision", "bf16")
    assert shown.code == DONE
    assert "1 x t4: --precision bf16" in shown.out


@pytest.mark.sweep
def test_of_machines_over_the_limits_the_nearest_comes_first():
    cheapest = min(plans_of(MODEL, *FEW_CARDS), key=lambda plan: plan["usd"])
    limit = cheapest["usd"] * 0.9
    shown = call("recommend", "--model", MODEL, *FEW_CARDS, "--max-usd", f"{limit:g}")
    assert "nothing within the limits" in shown.out
    first = shown.out.split("not possible:")[1].strip().splitlines()[0]
    assert f"{cheapest['num_gpus']} x {cheapest['gpu']}" in first
    assert f"--max-usd is {limit:g}" in " ".join(shown.out.split())


def test_a_limit_that_nothing_can_be_held_against_says_so():
    words = (MODEL, "--gpu", "rtx-4090:2", "--host-ram", "64", "--max-usd", "0.5")
    (rejection,) = recommended(*words).document["rejected"]
    assert "no price is known" in rejection["reason"]
    assert "max-hours" not in rejection["reason"]
    (rejection,) = recommended(*words[:-2], "--max-hours", "0.0001").document["rejected"]
    assert "--max-hours is 0.0001" in rejection["reason"]
    assert "price" not in rejection["reason"]


@pytest.mark.parametrize(
    "batch",
    [
        ("--micro-batch", "16"),
        ("--micro-batch", "3"),
        ("--grad-accum", "3"),
        ("--micro-batch", "3", "--grad-accum", "5"),
    ],
)
def test_a_micro_batch_that_cannot_make_the_global_batch_is_refused_as_an_estimate_refuses_it(batch: Sequence[str]):
    words = (MODEL, "--gpu", "t4:2", *batch, "--global-batch", "16")
    searched, estimated = (call(command, "--model", *words) for command in ("recommend", "estimate"))
    assert "--global-batch is 16" in searched.err
    assert (searched.code, searched.err) == (estimated.code, estimated.err)


def test_a_machine_that_cannot_make_the_global_batch_is_refused_alone():
    batch = ("--micro-batch", "16", "--global-batch", "16")
    found = recommended(MODEL, "--gpu", "a100-sxm4-80gb:1", "--gpu", "a100-sxm4-80gb:2", *batch).document
    assert {one["num_gpus"] for one in found["plans"]} == {1}
    (rejection,) = found["rejected"]
    assert (rejection["num_gpus"], rejection["reason"].split(",")[0]) == (2, "--global-batch is 16")


@pytest.mark.sweep
def test_a_global_batch_that_the_gpus_cannot_share_is_said_with_what_is_planned():
    words = (MODEL, "--gpu", "t4:3", "--global-batch", "16")
    found = recommended(*words, "--out", "three").document
    (caveat,) = (one for one in found["caveats"] if "--global-batch" in one)
    assert "--global-batch is 16" in caveat
    assert "18 samples a step" in caveat
    assert caveat in " ".join(call("recommend", "--model", *words).out.split())
    assert json.loads(Path("three/plan.json").read_text(encoding="utf-8"))["workload"]["global_batch"] == 18
    shared = recommended(*words[:-1], "18").document
    assert not any("--global-batch" in one for one in shared["notes"])


# -- files -----------------------------------------------------------------------------------------------------------

RENTED = {"job.slurm", "launch.sh", "plan.json", "sky.yaml", wheel_name()}
WRITTEN = [
    ((VISION_MODEL, "--gpu", "rtx-4090:1", "--zero-stage", "none"), RENTED),
    ((VISION_MODEL, "--gpu", "rtx-4090:4", "--method", "full"), RENTED | {"ds_config.json"}),
    ((MODEL, "--gpu", "t4:2", "--num-nodes", "2"), RENTED | {"ds_config.json", "hostfile"}),
    (
        (MODEL, "--gpu", "h100-sxm:2", "--zero-stage", "3", "--offload-params", "nvme", "--nvme-path", "/nvme"),
        RENTED | {"ds_config.json"},
    ),
]


class Written(NamedTuple):
    folder: Path
    document: dict[str, Any]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Written]:
    """What a search prints, and writes with ``--out`` into a new folder whose name a shell would take for a command."""

    @cache
    def answer(words: tuple[str, ...]) -> Written:
        folder = tmp_path_factory.mktemp("written") / "new" / "plans; rm *"
        found = call("recommend", "--model", *words, "--out", str(folder), "--json")
        assert (found.code, found.err) == (DONE, "")
        return Written(folder, found.document)

    return answer


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("words", "names"), WRITTEN)
def test_out_writes_the_winner(written: Callable[..., Written], words: tuple[str, ...], names: set[str]):
    folder, document = written(words)
    assert document == recommended(*words).document
    assert {path.name for path in folder.iterdir()} == names
    winner = document["plans"][0]
    plan = read_plan(folder / "plan.json")
    assert plan.recipe.as_json() == {name: winner["recipe"][name] for name in Recipe().as_json()}
    assert plan.expected.peak_allocated_bytes == winner["estimate"]["peak_allocated_bytes"]
    hardware = plan.hardware
    assert (hardware.gpu_id, hardware.gpus_per_node, hardware.num_nodes) == tuple(
        winner[name] for name in ("gpu", "num_gpus", "num_nodes")
    )
    assert (plan.offer is None) == (winner["offer"] is None)


@pytest.mark.sweep
@pytest.mark.parametrize(("generation", "is_proposed"), [("transformers", True), ("vllm", False), ("server", False)])
def test_out_is_proposed_where_it_writes(generation: str, is_proposed: bool):
    words = ("--model", "smollm2-135m", "--gpu", "t4", "--task", "grpo", "--method", "lora", "--generation", generation)
    shown = call("recommend", *words)
    assert shown.code == DONE
    assert ("add --out DIR" in shown.out) is is_proposed
    assert (call("recommend", *words, "--out", "plans").code == DONE) is is_proposed


def test_what_skypilot_cannot_do_is_said_and_not_written():
    for words, reason in (
        (("--gpu", "rtx-4090:2", "--num-nodes", "2", "--provider", "runpod"), "one machine at a time on runpod"),
        (("--gpu", "v100-sxm2-16gb:4", "--provider", "verda", "--pricing", "interruptible"), "no bucket on verda"),
    ):
        found = call("recommend", "--model", MODEL, *words, "--out", words[1])
        assert found.code == DONE
        assert reason in " ".join(found.out.partition("no sky.yaml: ")[2].split())
        assert not [path for path in Path(words[1]).iterdir() if path.suffix in (".yaml", ".whl")]


@pytest.mark.sweep
def test_a_machine_that_may_be_taken_away_saves_as_often_as_its_price_assumes():
    words = ("--model", MODEL, "--gpu", "l4:1", "--provider", "gcp", "--pricing", "interruptible", "--json")
    winner = call("recommend", *words, "--out", "spot").document["plans"][0]
    assert f"--save-every {winner['cost']['save_every_steps']} --resume" in Path("spot/sky.yaml").read_text()


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from leaves(item)
    else:
        yield value


@pytest.mark.parametrize(("words", "names"), WRITTEN[1:])
def test_the_written_ds_config_is_the_recipe_in_numbers(
    written: Callable[..., Written], words: tuple[str, ...], names: set[str]
):
    folder, document = written(words)
    winner = document["plans"][0]
    values = json.loads((folder / "ds_config.json").read_text())
    assert "auto" not in list(leaves(values))
    config = settings_from_ds_config(folder / "ds_config.json")
    recipe = recipe_from_json({name: winner["recipe"][name] for name in Recipe().as_json()})
    num_gpus = winner["num_gpus"] * winner["num_nodes"]
    assert values["train_batch_size"] == recipe.micro_batch * recipe.grad_accum * num_gpus
    assert merged_recipe(config, recipe, num_gpus=num_gpus) == recipe


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "is_named"), [("adamw-8bit", True), ("lion", True), ("sgd", True), ("muon", False)])
def test_a_file_that_cannot_name_its_optimizer_says_so_and_whoever_reads_it_asks(name: str, is_named: bool):
    words = (MODEL, "--gpu", "rtx-4090:2", "--zero-stage", "2", "--method", "full")
    call("recommend", "--model", *words, "--optimizer", name, "--out", "plan")
    text = Path("plan/ds_config.json").read_text()
    assert (f"--optimizer {name}" in text) is is_named
    read = ("estimate", "--model", *words, "--ds-config", "plan/ds_config.json")
    question = "AdamW is planned unless --optimizer names another"
    assert (question in call(*read).out) is is_named
    answered = call(*read, "--optimizer", name)
    assert answered.code == DONE
    assert question not in answered.out
    assert "_comment" not in answered.out


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(("words", "names"), WRITTEN)
def test_the_written_script_is_shell_and_may_be_run(
    written: Callable[..., Written], words: tuple[str, ...], names: set[str]
):
    script = written(words).folder / "launch.sh"
    checked = subprocess.run(["bash", "-n", script], capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, b"")
    assert os.access(script, os.X_OK)


@pytest.mark.sweep
def test_the_command_that_is_shown_is_quoted_and_names_what_was_written():
    shown = call("recommend", "--model", MODEL, "--gpu", "t4:1", "--out", "my plans")
    assert (shown.code, shown.err) == (DONE, "")
    assert "my plans/plan.json" in shown.out
    assert "bash 'my plans/launch.sh'" in shown.out


def test_what_has_no_price_is_not_called_cheapest():
    shown = call("recommend", "--model", "smollm2-135m", "--gpu", "rtx-3060-12gb", "--method", "lora")
    says(shown.out, "Fewest GPU hours: ", "no price is known")


@pytest.mark.parametrize(("gpu", "is_idle"), [("rtx-3060-12gb", True), ("l4:1", False)])
def test_what_a_download_costs_is_told_to_change_nothing_where_nothing_has_a_price(gpu: str, is_idle: bool):
    words = ("--model", "smollm2-135m", "--gpu", gpu, "--method", "lora", "--download-gbit", "0.5")
    for command in ("recommend", "advise"):
        notes = call(command, *words, "--json").document["notes"]
        assert any("--download-gbit 0.5 changes nothing here" in note for note in notes) == is_idle


def test_the_table_shows_the_winner_of_the_json():
    shown, winner = call("recommend", "--model", MODEL), plans_of(MODEL)[0]
    assert (shown.code, shown.err) == (DONE, "")
    (headline,) = [line for line in shown.out.splitlines() if line.startswith("Cheapest: ")]
    assert winner["offer"]["provider"] in headline
    assert f"{winner['usd_per_hour']:.2f}" in headline
    first = next(line for line in shown.out.splitlines() if line.startswith("best"))
    assert f"{winner['num_gpus']} x {winner['gpu']}" in first


# -- cost against time -----------------------------------------------------------------------------------------------

POINT = {"gpu", "num_gpus", "num_nodes", "offer", "recipe", "hours", "usd", "exact"}


@pytest.mark.parametrize("search", SEARCHES)
def test_the_front_is_exact_rises_in_hours_and_falls_in_usd(search: Sequence[str]):
    document = recommended(*search).document
    front = document["pareto"]
    assert [set(point) for point in front] == [POINT] * len(front)
    assert [point["hours"] for point in front] == sorted({point["hours"] for point in front})
    assert [point["usd"] for point in front] == sorted({point["usd"] for point in front}, reverse=True)
    assert all(point["exact"] for point in front)
    for plan in document["plans"]:
        if plan["usd"] is not None:
            assert any(one["hours"] <= plan["hours"] and one["usd"] <= plan["usd"] for one in front)


def test_the_ends_of_the_front_are_the_winners_of_cost_and_of_time():
    front = recommended(MODEL).document["pareto"]
    assert front[-1]["usd"] == plans_of(MODEL)[0]["usd"]
    assert front[0]["hours"] == plans_of(MODEL, "--objective", "time")[0]["hours"]


@pytest.mark.parametrize("place", [1, 4, -4, -1])
def test_limits_cut_the_front_and_leave_what_costs_just_as_much(place: int):
    front = recommended(MODEL).document["pareto"]
    limit = front[place]["usd"]
    within = recommended(MODEL, "--max-usd", repr(limit)).document["pareto"]
    assert within == [point for point in front if point["usd"] <= limit]


def test_no_plan_is_over_a_limit_of_time():
    fastest = plans_of(MODEL, "--objective", "time")[0]["hours"]
    plans = plans_of(MODEL, "--max-hours", repr(fastest))
    assert [plan["hours"] for plan in plans] == [fastest] * len(plans) != []


def test_why_the_winner_is_first_is_one_sentence_of_two_machines():
    document = recommended(MODEL).document
    first, *others = document["plans"]
    assert document["explanation"].startswith(f"{first['num_gpus']} x {first['gpu']} ({first['recipe']['method']}): ")
    assert "$" in document["explanation"]
    second = others[0]
    assert f" {second['num_gpus']} x {second['gpu']} ({second['recipe']['method']})" in document["explanation"]


@pytest.mark.sweep
def test_pareto_shows_plot_and_table():
    shown, plain = call("recommend", "--model", MODEL, "--pareto"), call("recommend", "--model", MODEL)
    assert (shown.code, shown.err) == (DONE, "")
    assert "cost against time on" in shown.out
    assert "cost against time on" not in plain.out
    assert "faster for more money: " in plain.out


def test_pictures_are_written_and_named():
    shown = call("recommend", "--model", MODEL, *TWO_CARDS, "--html", "new/front.html", "--svg", "front.svg")
    assert (shown.code, shown.err) == (DONE, "")
    assert "written: new/front.html" in shown.out
    is_a_report(Path("new/front.html").read_text())
    brings_everything(Path("front.svg").read_text())


def test_pictures_overwrite_nothing_unless_they_are_forced():
    words = ("recommend", "--model", MODEL, *TWO_CARDS)
    Path("front.svg").write_text("mine")
    says(refusal(*words, "--svg", "front.svg"), "front.svg exists already", "--force")
    assert Path("front.svg").read_text() == "mine"
    assert call(*words, "--svg", "front.svg", "--force").code == DONE
    brings_everything(Path("front.svg").read_text())
    says(refusal(*words, "--svg", "x", "--html", "./x"), "--html and --svg need a file each")


def test_regions_are_honoured():
    found = plans_of(MODEL, "--region", "us-east-1")
    assert {plan["offer"]["region"] for plan in found} == {"us-east-1"}
    sentence = refusal("recommend", "--model", MODEL, "--region", "us-east")
    says(sentence, "unknown region 'us-east'", "us-east-1", "northeurope")


# Samples


@pytest.mark.parametrize("command", ["recommend", "advise"])
def test_samples_shorter_than_the_longest_cost_less_than_the_plan_of_the_longest(command: str, tmp_path):
    said = ["word " * length for length in (*(40,) * 60, 900)]
    lines = [
        json.dumps({"messages": [{"role": name, "content": one} for name in ("user", "assistant")]}) for one in said
    ]
    samples = tmp_path / "samples.jsonl"
    samples.write_text("\n".join(lines))
    words = (command, "--model", MODEL, "--gpu", "rtx-4090", "--data", str(samples), "--global-batch", "1")
    document = json.loads(call(*words, "--json").out)
    plan, run = document["base"] if command == "advise" else document["plans"][0], document["data"]
    assert run["run_seconds"] < plan["hours"] * 3600
    if plan["offer"] is None:
        assert run["run_usd"] is None
        return
    saved_hours = plan["hours"] - run["run_seconds"] / 3600
    assert plan["usd"] - run["run_usd"] == pytest.approx(saved_hours * plan["usd_per_hour"], rel=0.05)
    assert f" in all for {usd_text(run['run_usd'])}; " in call(*words).out
