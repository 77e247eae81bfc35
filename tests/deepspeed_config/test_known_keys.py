"""The tables of keys against DeepSpeed itself: which it reads, under which names, with which defaults."""

import copy
import math

import pytest

from ds_files import nested
from vlmplan.deepspeed_config import KEYS, Effect, settings_from_ds_config
from vlmplan.deepspeed_config.content import SECTIONS
from vlmplan.deepspeed_config.keys import Key, Kind
from vlmplan.deepspeed_config.run_keys import REMOVED_TOP_KEYS, UNREAD_KEYS
from vlmplan.deepspeed_config.zero_keys import (
    DEPRECATED_OFFLOADS,
    DEPRECATED_WITHOUT_EFFECT,
    REMOVED_ZERO_KEYS,
    ZERO_ALIASES,
)
from vlmplan.errors import InputError

pytest.importorskip("deepspeed")

ASKED_FOR_BY_NAME = """activation_checkpointing flops_profiler autotuning checkpoint data_types torch_autocast
    data_efficiency aio timers pipeline""".split()
"""Sections that DeepSpeed reads key by key, where it has no class that lists them."""


class Asked(dict):
    """A dictionary that remembers which keys it was asked for."""

    def __init__(self, values: dict, path: str = "", names: set[str] | None = None) -> None:
        super().__init__(values)
        self.path, self.names = path, set() if names is None else names

    def __copy__(self) -> "Asked":
        return Asked(self, self.path, self.names)

    def __contains__(self, key: object) -> bool:
        self.names.add(f"{self.path}{key}")
        return super().__contains__(key)

    def keys(self) -> "Asked":  # "x" in values.keys() asks too
        return self

    def get(self, key: str, default: object = None) -> object:
        self.names.add(f"{self.path}{key}")
        return super().get(key, default)

    def __getitem__(self, key: str) -> object:
        self.names.add(f"{self.path}{key}")
        return super().__getitem__(key)


@pytest.fixture(scope="module")
def asked_for(deepspeed_reads) -> set[str]:
    """Every key, by its path, that DeepSpeedConfig asks a file for."""
    file = Asked({"train_batch_size": 1})
    for name in ASKED_FOR_BY_NAME:
        dict.__setitem__(file, name, Asked({}, f"{name}.", file.names))
    deepspeed_reads.untouched(file)
    deepspeed_reads.untouched(Asked({"train_batch_size": 1, "zero_optimization": True}, "", file.names))
    return file.names


def children(section: str) -> set[str]:
    return {path.removeprefix(f"{section}.") for path in KEYS if path.rpartition(".")[0] == section}


def test_every_top_level_key_that_deepspeed_asks_for_is_known_and_no_other(asked_for):
    ours = {path for path in KEYS if "." not in path} | REMOVED_TOP_KEYS
    theirs = {name for name in asked_for if "." not in name} | {"sequence_parallel_size"}
    assert ours == theirs


def test_deepspeed_takes_the_number_of_sequence_parallel_ranks_from_the_file():
    import inspect

    from deepspeed.runtime.config import DeepSpeedConfig

    assert '"sequence_parallel_size" in config' in inspect.getsource(DeepSpeedConfig.__init__)


@pytest.mark.parametrize("section", sorted(set(ASKED_FOR_BY_NAME) - {"pipeline", "timers"}))
def test_every_key_of_a_section_that_deepspeed_asks_for_is_known_and_no_other(asked_for, section):
    assert children(section) == {
        name.removeprefix(f"{section}.") for name in asked_for if name.startswith(f"{section}.")
    }


def test_what_deepspeed_has_removed_and_does_not_read_is_told_apart(asked_for):
    from deepspeed.runtime.config import _REMOVED_TOP_LEVEL_CONFIG_KEYS, _REMOVED_ZERO_CONFIG_KEYS

    assert set(_REMOVED_TOP_LEVEL_CONFIG_KEYS) == REMOVED_TOP_KEYS
    assert set(_REMOVED_ZERO_CONFIG_KEYS) == set(REMOVED_ZERO_KEYS)
    assert not set(UNREAD_KEYS) & asked_for


def classes():
    """DeepSpeed's class of each section that has one."""
    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.compile.config import CompileConfig
    from deepspeed.inference.config import WeightQuantConfig
    from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
    from deepspeed.runtime.config import HybridEngineConfig
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )
    from deepspeed.utils.config import DeepSpeedThroughputTimerConfig

    return {
        "zero_optimization": DeepSpeedZeroConfig,
        "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
        "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
        "bf16": DeepSpeedBF16Config,
        "fp16": DeepSpeedFP16Config,
        "tensorboard": TensorBoardConfig,
        "wandb": WandbConfig,
        "csv_monitor": CSVConfig,
        "comet": CometConfig,
        "comms_logger": CommsLoggerConfig,
        "compile": CompileConfig,
        "weight_quantization": WeightQuantConfig,
        "hybrid_engine": HybridEngineConfig,
        "tensor_parallel": TPTrainingConfig,
        "timers.throughput": DeepSpeedThroughputTimerConfig,
    }


SECTION_NAMES = """zero_optimization zero_optimization.offload_param zero_optimization.offload_optimizer bf16 fp16
    tensorboard wandb csv_monitor comet comms_logger compile weight_quantization hybrid_engine tensor_parallel
    timers.throughput""".split()
SPECIAL = set(ZERO_ALIASES) | set(DEPRECATED_OFFLOADS) | {DEPRECATED_WITHOUT_EFFECT}


@pytest.mark.parametrize("section", SECTION_NAMES)
def test_every_key_of_a_section_with_a_class_is_known_and_no_other(section):
    names = {name for key, field in classes()[section].model_fields.items() for name in (key, field.alias) if name}
    assert children(section) == names - SPECIAL


def test_former_names_of_zero_keys_are_those_that_deepspeed_takes():
    fields = classes()["zero_optimization"].model_fields
    deprecated = {name for name, field in fields.items() if (field.json_schema_extra or {}).get("deprecated")}
    renamed = {name for name, field in fields.items() if field.alias not in (None, name)}
    assert deprecated | renamed == SPECIAL


@pytest.mark.parametrize("section", SECTION_NAMES)
def test_defaults_are_deepspeeds(section):
    for name, field in classes()[section].model_fields.items():
        key = KEYS.get(f"{section}.{field.alias or name}")
        if key is None or key.kind is Kind.OBJECT or (key.effect is Effect.REFUSED and not key.only):
            continue
        default = field.default_factory() if field.default_factory else field.default
        assert key.default == getattr(default, "value", default), name


@pytest.mark.parametrize("path", [path for path, key in KEYS.items() if key.effect is Effect.REFUSED and key.only])
def test_what_is_not_modelled_is_accepted_only_as_deepspeed_has_it_by_default(path):
    assert KEYS[path].default in KEYS[path].only


def other_value(key: Key) -> object:
    """A value that turns on what cannot be planned."""
    if key.kind is Kind.FLAG:
        return not key.only[0]
    if key.kind is Kind.COUNT:
        return max(key.only) + 1
    return {Kind.NUMBER: 0.5, Kind.TEXT: "sum", Kind.OBJECT: {"x": 1}}.get(key.kind, "bf16")


REFUSED = [key for key in KEYS.values() if key.effect is Effect.REFUSED]


@pytest.mark.parametrize("key", REFUSED, ids=lambda key: key.path)
def test_what_matters_and_is_not_modelled_is_refused_by_its_path(key):
    with pytest.raises(InputError) as caught:
        settings_from_ds_config(nested(key.path, other_value(key)), name="my.json")
    assert key.path in str(caught.value)
    assert "my.json" in str(caught.value)


@pytest.mark.parametrize("key", [key for key in REFUSED if key.only and key.only != (None,)], ids=lambda key: key.path)
def test_what_is_off_is_accepted(deepspeed_reads, key):
    file = nested(key.path, key.only[0])
    settings_from_ds_config(file)
    deepspeed_reads(file | {"train_batch_size": 1})


@pytest.mark.parametrize("section", sorted(SECTIONS - {"expert_parallel"}))
def test_an_unknown_key_is_refused_in_every_section(section):
    file = {"train_batch_size": 1} | nested(f"{section}.no_such_key_at_all", 1)
    with pytest.raises(InputError, match="no_such_key_at_all"):
        settings_from_ds_config(file)


OBJECTS = [key.path for key in KEYS.values() if key.kind is Kind.OBJECT and key.path != "zero_optimization.zenflow"]


@pytest.mark.parametrize("section", OBJECTS)
def test_an_empty_section_is_accepted(deepspeed_reads, section):
    file = nested(section, {})
    settings_from_ds_config(copy.deepcopy(file))
    deepspeed_reads(file | {"train_batch_size": 1})


def test_every_key_says_what_it_does_and_where():
    for key in KEYS.values():
        assert key.about.endswith("."), key.path
        assert len(key.about) > 10, key.path
        assert math.isfinite(key.least)


def test_every_key_is_used_where_the_table_says():
    from pathlib import Path

    import deepspeed

    folder = Path(deepspeed.__file__).parent
    for key in KEYS.values():
        for source in key.source.split(", "):
            assert (folder / source).exists(), key.path
