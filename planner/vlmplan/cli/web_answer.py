"""What the page asks, answered: the documents of the command line, and what the page draws of them.

``answer`` is the one way in, for the server of ``vlmplan web`` and for a worker in a browser. Options have the keywords
of ``vlmplan.estimate`` and ``vlmplan.recommend``; they become the words of a command line and are parsed by the command
itself, so a number here is the number there. Nothing names a file: a model's configuration and a ds_config.json come as
the objects that they hold.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from vlmplan.cli.check import check_words
from vlmplan.cli.estimate import estimate as estimate_command
from vlmplan.cli.option_words import command_text, options_of
from vlmplan.cli.recommend import recommend as recommend_command
from vlmplan.cli.web_data import summary
from vlmplan.cli.web_files import asked_by_plan, configured, file_name
from vlmplan.cli.web_form import OBJECTS, allowed_options, form
from vlmplan.commands import estimate, recommend
from vlmplan.commands.document import document_text
from vlmplan.commands.other_trainer import for_trainer, trainer_texts
from vlmplan.errors import InputError, UnavailableError, UnknownNameError, VlmplanError
from vlmplan.files.json_reader import JsonDict, shown
from vlmplan.plain_text import one_line, printable_sentence

if TYPE_CHECKING:
    from vlmplan.estimation import Estimate
    from vlmplan.request import Request
    from vlmplan.workload import ModelFiles

LENGTHS = re.compile(r"vary|\d{1,9}-\d{1,9}")
"""What ``sample_lengths`` may be, beside a file."""
MAX_CHARACTERS = 4096
"""Of a text: a list of module names has some hundred."""


def answer(request: Mapping[str, Any]) -> JsonDict:
    """The answer to ``{"ask": ..., "options": {...}}``; ``{"error": SENTENCE}`` to what cannot be answered.

    ``ask`` is ``form`` (what can be chosen), ``estimate``, ``first look`` (an estimate without what would help where it
    does not fit), ``modules`` (what is inside of an estimate), ``recommend``, ``plan`` (the options that ask for a
    plan.json), or ``data`` (the options that say what samples are like).
    """
    try:
        return json.loads(document_text(_answered(request)))
    except VlmplanError as error:
        return {"error": _without_home(printable_sentence(str(error)))}
    except click.ClickException as error:
        return {"error": printable_sentence(one_line(error.format_message())).rstrip(".")}


def _without_home(sentence: str) -> str:
    """A sentence on a file of the user's own, such as his catalog, without the folder that names him."""
    return sentence.replace(str(Path.home()), "~")


def _answered(request: object) -> JsonDict:
    if not isinstance(request, Mapping):
        raise InputError(f"the question is {shown(request)}; an object with ask and options is needed")
    asked = cast(Mapping[str, Any], request)
    ask, options = asked.get("ask"), asked.get("options", {})
    if not isinstance(options, Mapping):
        raise InputError(f"options is {shown(options)}; an object is needed")
    if not isinstance(ask, str) or ask not in ASKED:
        raise InputError(f"ask is {shown(ask)}; one of {', '.join(ASKED)} is needed")
    return ASKED[ask](cast(Mapping[str, Any], options))


# -- the answers -----------------------------------------------------------------------------------------------------


def _estimated(options: Mapping[str, Any]) -> JsonDict:
    """An estimate with everything that ``vlmplan estimate --json`` says."""
    from vlmplan.answers import reading
    from vlmplan.answers.drawn import drawn

    request, given = _request(estimate_command, options)
    text_of = command_text(estimate_command, (), order=tuple(given), lengths=given["lengths"])
    found = estimate.answered(request, (), given["lengths"], scales=False)
    parts = drawn(found.estimate, found.hardware_notes)
    parts |= {"document": estimate.described(found, text_of), "command": text_of(request)}
    parts["hints"] = _hints(found)
    parts["reading"] = None if request.configured is None else reading.document(request.configured.config)
    parts["apply"] = _keywords(parts["document"]["to_fit"])
    return parts | _files(request, found.estimate)


def _first_look(options: Mapping[str, Any]) -> JsonDict:
    """An estimate by itself."""
    request, given = _request(estimate_command, options)
    found, lengths = estimate.only_estimated(request, ()), given["lengths"]
    result = found.estimate if lengths is None else estimate.of_sample_lengths(lengths)(found.estimate)
    from vlmplan.answers.drawn import drawn
    from vlmplan.answers.estimate import document

    return {**drawn(result, found.hardware_notes), "document": document(result, found.hardware_notes)}


def _by_module(options: Mapping[str, Any]) -> JsonDict:
    """What the estimate's modules take."""
    from vlmplan.answers.modules import document

    request, _ = _request(estimate_command, options)
    return document(estimate.only_estimated(request, ()).estimate)


def _recommended(options: Mapping[str, Any]) -> JsonDict:
    """What ``vlmplan recommend --json`` says, and every setup that fits by its hours and dollars."""
    from vlmplan.answers.front import drawn_points

    request, given = _request(recommend_command, options)
    text_of = command_text(recommend_command, (), order=tuple(given))
    compares = recommend.compared(has_picture=True)
    found = recommend.answered(request, (), compares=compares, shows_pareto=True, rehearse=None)
    return {
        "document": recommend.described(found, text_of),
        "command": text_of(request),
        "points": drawn_points(found.found.scored, found.found.pareto),
    }


ASKED: Mapping[str, Callable[[Mapping[str, Any]], JsonDict]] = {
    "form": lambda _: form(),
    "estimate": _estimated,
    "first look": _first_look,
    "modules": _by_module,
    "recommend": _recommended,
    "plan": lambda options: _planned(options),
    "data": lambda options: summary(options, _model_of),
}


def _hints(found: estimate.Answer) -> JsonDict:
    """Sentences on what would help, in the words of the command line."""
    from vlmplan.answers.estimate import freezing_hints
    from vlmplan.answers.to_fit import way_out_parts
    from vlmplan.commands.day import today

    ways = () if found.way_out is None else way_out_parts(found.way_out, today())
    return {
        "estimate": [*found.estimate.hints, *freezing_hints(found.freezing)],
        "way_out": [text for text, _, _ in ways],
    }


def _keywords(to_fit: Mapping[str, Any] | None) -> JsonDict | None:
    """The options that change so that it fits, by their keywords; null for one that is taken away."""
    return None if to_fit is None else _by_keyword(to_fit["options"])


def _by_keyword(values: Mapping[str, Any]) -> JsonDict:
    """Values of the command line's options by the keywords that the page has for them."""
    names = {option.name: keyword for keyword, option in options_of(estimate_command).items()}
    return {names[name]: value for name, value in values.items()}


def _planned(options: Mapping[str, Any]) -> JsonDict:
    """The options that ask for a plan.json that was dropped."""
    found = asked_by_plan(options.get("plan"), known_model)
    kept = {name: value for name, value in found["options"].items() if name not in OBJECTS or found["model"] is None}
    return {"options": _by_keyword(kept), "model": found["model"]}


def _files(request: "Request", found: "Estimate") -> JsonDict:
    """Texts of what starts a run, by the names of files; where there are none, why."""
    from vlmplan.emit.write import DS_CONFIG_FILE, ds_config_text
    from vlmplan.plan import plan_from_estimate, plan_text

    try:
        made = for_trainer(request, found, (), None, words=check_words, force=False)
        if made is not None:
            return {"files": trainer_texts(made, found), "no_files": None}
        plan = plan_from_estimate(found, base=request.ds_config)
    except InputError as error:
        return {"files": {}, "no_files": str(error)}
    files = {"plan.json": plan_text(plan)}
    if plan.ds_config is not None:
        files = {DS_CONFIG_FILE: ds_config_text(plan.ds_config, plan.recipe), **files}
    return {"files": files, "no_files": None}


# -- what is asked ---------------------------------------------------------------------------------------------------


def _request(command: click.Command, options: Mapping[str, Any]) -> "tuple[Request, dict[str, Any]]":
    """The request of these options, and what ``command`` is called with for them."""
    from vlmplan.request import own_request

    known = allowed_options(command)
    words: list[str] = []
    for name, value in options.items():
        if name not in known:
            raise UnknownNameError("option", name, known)
        words += _words(name, value, known[name])
    given = command.make_context(str(command.name), words).params
    model = _given_model(options)
    if isinstance(options.get("ds_config"), Mapping):
        given["ds_config"] = options["ds_config"]
    if command is estimate_command and not given["gpu"]:
        raise InputError("gpu is missing; a GPU of the catalog is needed, as in rtx-4090:2")
    own = own_request({name: value for name, value in given.items() if name not in NOT_OF_A_REQUEST}, model)
    if not isinstance(options.get("config"), Mapping):
        return own, given
    whole = configured(own, options["config"], known_model)
    if whole.given_model is None:
        assert whole.model is not None
        known_model(whole.model)  # a name that is in the file is no better than one that is typed
    return whole, given


NOT_OF_A_REQUEST = (
    *("as_json", "catalog_files", "scales", "compare", "lengths"),
    *("out", "html", "svg", "force", "rehearses", "shows_pareto", "refreshes"),
)
"""What the functions of the commands take by name, apart from what was asked for."""


def _words(name: str, value: Any, option: click.Option) -> list[str]:
    """The words of the command line that give ``value``."""
    if value is None:
        return []
    if name in OBJECTS and isinstance(value, Mapping):
        held = cast(Mapping[str, Any], value)
        return [f"{option.opts[0]}={file_name(name, held) if name == 'config' else f'{name}.json'}"]
    if name in OBJECTS and name != "model":
        raise InputError(f"{name} is {shown(value)}; an object with what the file holds is needed")
    if option.is_flag:
        if not isinstance(value, bool):
            raise InputError(f"{name} is {shown(value)}; true or false is needed")
        return [option.opts[0] if value else option.secondary_opts[0]]
    several = isinstance(value, list) and option.multiple
    texts = cast(list[Any], value) if several else [cast(Any, value)]
    return [f"{option.opts[0]}={_text(name, text)}" for text in texts]


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{name} is {shown(value)}; a number or a text is needed")
    try:
        text = str(value)
    except ValueError:  # Python writes no integer of more than 4300 digits
        text = "9" * (MAX_CHARACTERS + 1)
    if len(text) > MAX_CHARACTERS:
        raise InputError(f"{name} has more than {MAX_CHARACTERS:,} characters")
    if name == "sample_lengths" and not LENGTHS.fullmatch(text):
        raise InputError(f"sample_lengths is {shown(value)}; vary or SHORTEST-LONGEST is needed")
    return text


def _given_model(options: Mapping[str, Any]) -> "ModelFiles | None":
    """``given_model_of`` the model that is asked for, which a configuration of another trainer may name instead."""
    if options.get("model") is None and isinstance(options.get("config"), Mapping):
        return None
    return given_model_of(options.get("model"))


def _model_of(options: Mapping[str, Any]) -> "ModelFiles":
    """The model that is asked for, by its name or as the object that its file holds."""
    given = given_model_of(options.get("model"))
    return known_model(str(options["model"])) if given is None else given


def known_model(name: str) -> "ModelFiles":
    """The model of a name that the page takes. Raises as ``given_model_of`` does for any other."""
    from vlmplan.models import find_model

    given_model_of(name)
    return find_model(name)


def given_model_of(model: Any) -> "ModelFiles | None":
    """The model where its configuration is given; None where it has a name that needs no network.

    Raises UnknownNameError for a name that is neither an alias nor a Hugging Face id, so for every path, and
    UnavailableError for an id that is not on this machine.
    """
    from vlmplan.models import given_model, packaged_models
    from vlmplan.models.hub import is_on_this_machine
    from vlmplan.models.hub_names import hub_id
    from vlmplan.models.packaged import alias_by_hub_id, alias_by_repo_name

    if isinstance(model, Mapping):
        return given_model(cast(Mapping[str, Any], model))
    if model is None:
        raise InputError("model is missing; an alias, a Hugging Face id or a config.json is needed")
    name = _text("model", model).strip()
    if name.casefold() in packaged_models() or name.casefold() in alias_by_repo_name():
        return None
    wanted = hub_id(name)
    if wanted is None:
        raise UnknownNameError("model", name, packaged_models(), "an id is org/name; or drop a config.json")
    if str(wanted).casefold() in alias_by_hub_id():
        return None
    if Path(name).exists():
        raise InputError(f"{name} is also a folder where the page was started; drop its config.json here")
    if not is_on_this_machine(wanted):
        raise UnavailableError(
            f"{name} is in no cache of this machine, and the page fetches nothing; drop its config.json here, or ask "
            f"for it once in a terminal: vlmplan models {name}"
        )
    return None


__all__ = ["allowed_options", "answer", "given_model_of"]
