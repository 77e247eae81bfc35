"""What transformers' and TRL's parsers make of a command, written into a program in place of their call.

``model_args, training_args = parser.parse_args_into_dataclasses()`` becomes a call of each class with the options that
are its own, so that both are known as if the program had made them itself. An option is of the class that has a field
of its name (transformers 5.23 ``hf_argparser.py``, TRL 1.16 ``scripts/utils.py``); those of no class of the program's
own are the trainer's arguments.
"""

import ast
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from vlmplan.other_trainers.programs.options import given_value, last_name, of_field
from vlmplan.other_trainers.record import Unwritten

PARSERS: Final = ("HfArgumentParser", "TrlParser")
"""The classes by which programs take their arguments from a command."""
INTO_OBJECTS: Final = ("parse_args_into_dataclasses", "parse_args_and_config", "parse_json_file", "parse_yaml_file")
OF_HANDBOOK: Final = "parse"
"""Of alignment-handbook's parser, which makes of one class the object itself."""
PLAIN_ARGUMENTS: Final = ("TrainingArguments", "Seq2SeqTrainingArguments")
"""Of transformers, whose defaults stay."""
ARGUMENTS: Final = (
    *("SFTConfig", "DPOConfig", "GRPOConfig", "RewardConfig", "KTOConfig", *PLAIN_ARGUMENTS),
    *("UnslothTrainingArguments", "UnslothGRPOConfig"),
)
OF_DATA: Final[Mapping[str, tuple[str, ...]]] = dict.fromkeys(
    ("ScriptArguments", "SFTScriptArguments", "DPOScriptArguments", "RewardScriptArguments", "GRPOScriptArguments"),
    ("dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split", "dataset_streaming"),
)
"""TRL's own classes of what a script reads, and their fields."""
OF_MODELS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(
        """model_name_or_path attn_implementation lora_target_modules lora_target_parameters
        lora_modules_to_save""".split()
    ),
    **dict.fromkeys(
        """trust_remote_code use_peft use_rslora use_dora load_in_8bit load_in_4bit use_bnb_nested_quant""".split(),
        False,
    ),
    "model_revision": "main",
    "dtype": "float32",
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "lora_task_type": "CAUSAL_LM",
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_quant_storage": None,
}
"""Fields of TRL's ``ModelConfig``, which says what is trained, and their defaults (``trainer/model_config.py``)."""
MODEL_CONFIG: Final = "ModelConfig"
PLAIN_DEFAULTS: Final[Mapping[str, bool | None]] = {
    **dict.fromkeys(("do_train", "do_eval", "do_predict", "fp16", "bf16", "gradient_checkpointing"), False),
    **dict.fromkeys(("deepspeed", "fsdp_config", "resume_from_checkpoint"), None),
}
"""Of ``TrainingArguments``, as programs ask for them where they load a model."""
OF_TRL: Final[Mapping[str, bool]] = {"gradient_checkpointing": True}
"""Of ``SFTConfig`` and its like; whether they compute in bf16 depends on what else is said."""
UNKNOWN_REST: Final = "return_remaining_strings"


def with_parsed_arguments(tree: ast.Module, given: Mapping[str, object] | None) -> None:
    """Write into a program what its parser makes of the options that are ``given``. Of a program alone (None) they are
    known where the trainer's arguments are not among them: those have to be said."""
    parsers = _parsers(tree)
    if any(isinstance(node, ast.Call) and last_name(node.func) in parsers for node in ast.walk(tree)):
        _Writer(tree, given, parsers).visit(tree)


def fields_of(tree: ast.AST, name: str) -> dict[str, ast.expr | None]:
    """The fields of a class of the program's own, those of classes before it too, and what each is by itself."""
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    found: dict[str, ast.expr | None] = {}
    pending, seen = [name], set[str]()
    while pending:
        holder = classes.get(own := pending.pop())
        if holder is None or own in seen:
            continue
        seen.add(own)
        pending += [last_name(base) for base in holder.bases]
        own_fields = [node for node in holder.body if isinstance(node, ast.AnnAssign)]
        found = {node.target.id: node.value for node in own_fields if isinstance(node.target, ast.Name)} | found
    return found


def arguments_class(tree: ast.AST, name: str) -> str | None:
    """Which class of the trainer's arguments a class is, or is made of; None for another."""
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for _ in range(len(classes) + 1):
        holder = classes.get(name)
        bases = [] if holder is None else [last_name(base) for base in holder.bases]
        found = next((base for base in bases if base in ARGUMENTS), None)
        if found is not None or holder is None:
            return found or (name if name in ARGUMENTS else None)
        if len(bases) != 1:
            return None
        (name,) = bases
    return None


def _parsers(tree: ast.AST) -> frozenset[str]:
    own = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return frozenset(PARSERS) | {node.name for node in own if any(last_name(base) in PARSERS for base in node.bases)}


class _Writer(ast.NodeTransformer):
    def __init__(self, tree: ast.Module, given: Mapping[str, object] | None, parsers: frozenset[str]) -> None:
        self._tree, self._given, self._parsers = tree, given, parsers
        self._classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and len(node.targets) == 1]
        self._bound = {last_name(node.targets[0]): node.value for node in assigned}
        self._made: set[int] = set()

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        name = last_name(node.func)
        if not isinstance(node.func, ast.Attribute) or name not in (*INTO_OBJECTS, OF_HANDBOOK):
            return node
        classes = self._classes_of(node.func.value)
        if not classes:
            return node
        made = [self._object(one, classes, node) for one in classes]
        if name == OF_HANDBOOK and len(made) == 1:
            return made[0]
        if any(one.arg == UNKNOWN_REST for one in node.keywords):
            made.append(ast.copy_location(ast.Name(UNKNOWN_REST, ast.Load()), node))
        written = ast.copy_location(ast.Tuple(made, ast.Load()), node)
        self._made.add(id(written))
        return written

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """``parser.parse_args_into_dataclasses()[0]``."""
        self.generic_visit(node)
        place = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if id(node.value) in self._made and isinstance(node.value, ast.Tuple) and isinstance(place, int):
            return node.value.elts[place] if -len(node.value.elts) <= place < len(node.value.elts) else node
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        """``if sys.argv[1].endswith(".json")``: from a file or the command, the objects are the same."""
        self.generic_visit(node)
        if len(node.body) == len(node.orelse) == 1:
            first, other = node.body[0], node.orelse[0]
            if self._is_parse(first) and self._is_parse(other) and ast.dump(first) == ast.dump(other):
                return first
        return node

    def _is_parse(self, node: ast.stmt) -> bool:
        return isinstance(node, ast.Assign) and id(node.value) in self._made

    def _classes_of(self, holder: ast.expr) -> Sequence[ast.expr]:
        """The classes of the parser that an expression is; none where not all of them are known."""
        call = self._bound.get(holder.id) if isinstance(holder, ast.Name) else holder
        if not isinstance(call, ast.Call) or last_name(call.func) not in self._parsers:
            return ()
        types = call.args[0] if call.args else {one.arg: one.value for one in call.keywords}.get("dataclass_types")
        types = self._bound.get(types.id, types) if isinstance(types, ast.Name) else types
        classes = types.elts if isinstance(types, (ast.Tuple, ast.List)) else [] if types is None else [types]
        names = [last_name(one) for one in classes]
        are_arguments = [arguments_class(self._tree, name) is not None for name in names]
        are_known = all(
            is_one or name in self._classes or name in OF_DATA or name == MODEL_CONFIG
            for name, is_one in zip(names, are_arguments, strict=True)
        )
        if not are_known or (self._given is None and any(are_arguments)):
            return ()
        return classes

    def _object(self, kind: ast.expr, classes: Sequence[ast.expr], node: ast.Call) -> ast.expr:
        """A call of a class with the options that are its own."""
        name, given = last_name(kind), self._given or {}
        own = self._fields(name)
        keys = [key for key in given if key in own]
        if arguments_class(self._tree, name) is not None:
            others = {key for one in classes if last_name(one) != name for key in self._fields(last_name(one))}
            keys = [key for key in given if key not in others]
        keywords = [ast.keyword(key, _value(given[key], node)) for key in keys]
        if arguments_class(self._tree, name) is not None:
            keywords += [
                ast.keyword(key, value) for key, one in own.items() if key not in keys and (value := of_field(one))
            ]
        elif self._is_of_models(name):
            keywords += [ast.keyword(key, _value(one, node)) for key, one in OF_MODELS.items() if key not in keys]
        for one in keywords:
            ast.copy_location(one, node)
        return ast.copy_location(ast.Call(kind, [], keywords), node)

    def _fields(self, name: str) -> dict[str, ast.expr | None]:
        models = OF_MODELS if self._is_of_models(name) else ()
        return {**dict.fromkeys(OF_DATA.get(name, ())), **dict.fromkeys(models), **fields_of(self._tree, name)}

    def _is_of_models(self, name: str) -> bool:
        """Whether a class is TRL's own for models, or made of that."""
        own = [node for node in ast.walk(self._tree) if isinstance(node, ast.ClassDef) and node.name == name]
        return name == MODEL_CONFIG or any(last_name(base) == MODEL_CONFIG for one in own for base in one.bases)


def _value(value: object, node: ast.expr) -> ast.expr:
    """What a command says of an option; what only the shell knows stays as it is."""
    if value is None or isinstance(value, dict):
        return ast.copy_location(ast.Constant(cast(Any, value)), node)
    found = given_value(value, node)
    return ast.copy_location(ast.Constant(cast(Any, Unwritten(str(value)))), node) if found is None else found


def arguments_default(tree: ast.AST, name: str, node: ast.Attribute) -> ast.expr | None:
    """What an attribute of a trainer's arguments is where nothing is said; None for what is not known here."""
    kind = arguments_class(tree, name)
    is_plain = kind in PLAIN_ARGUMENTS
    if kind is None or node.attr not in PLAIN_DEFAULTS or (node.attr == "bf16" and not is_plain):
        return None
    value = PLAIN_DEFAULTS[node.attr] if is_plain else OF_TRL.get(node.attr, PLAIN_DEFAULTS[node.attr])
    return ast.copy_location(ast.Constant(value), node)
