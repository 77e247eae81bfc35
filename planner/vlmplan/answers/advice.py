"""Advice: its document, and for people each single change with what it buys, and the best of them in a sentence."""

from collections.abc import Callable, Iterator

import click

from vlmplan.answers.estimate import calibration_lines, caveat_lines, setup_text, workload_text
from vlmplan.answers.front import recipe_essentials
from vlmplan.answers.offers import machine_json, money_line
from vlmplan.answers.recommendation import plan_json
from vlmplan.answers.setups import engine_text
from vlmplan.files.json_reader import JsonDict
from vlmplan.notes import caveats, footnotes
from vlmplan.proposals.advice import Advice, Outcome, binding
from vlmplan.render.lines import say
from vlmplan.render.tables import Table, print_table
from vlmplan.request import Options
from vlmplan.search import Objective, RankedPlan
from vlmplan.units import SECONDS_PER_HOUR, duration_text, usd_text

SCHEMA = "vlmplan.advice/1"
Words = Callable[[Options], str]
"""Options as words of the command line."""
TITLES = ("change", "fits", "time", "", "usd", "", "trains", "engine", "batch", "ckpt", "bound by")
NUMBERS = frozenset(("time", "", "usd"))
LEAST_FIRST = ("batch", "ckpt", "trains", "engine", "bound by")
CUT = frozenset(("engine", "bound by"))
UNKNOWN = "-"


def document(found: Advice, words: Words) -> JsonDict:
    """Schema ``vlmplan.advice/1``; ``words`` makes options those of the command line."""
    return {
        "schema": SCHEMA,
        "workload": found.workload.as_json(),
        "objective": found.objective.value,
        "date": found.as_of.isoformat(),
        "max_usd": found.limits.max_usd,
        "max_hours": found.limits.max_hours,
        "base": None if found.base is None else plan_json(1, found.base, found.as_of, found.spreads),
        "base_within_limits": found.base_is_within_limits,
        "reason": found.reason,
        "changes": [_outcome_json(found, outcome, words) for outcome in found.outcomes],
        "best": None if found.best is None else found.best.change.name,
        "advice": sentence(found, words),
        "caveats": caveats(found.notes),
        "notes": list(found.notes),
    }


def _outcome_json(found: Advice, outcome: Outcome, words: Words) -> JsonDict:
    """A change; what is null of one with which something fits is not known."""
    plan, change = outcome.plan, outcome.change
    machine = (None, None) if plan is None else (plan.estimate.cluster, plan.offer)
    return {
        "change": change.name,
        "options": words(change.options),
        "keeps_results": change.keeps_results,
        "fits": plan is not None,
        "within_limits": outcome.is_within_limits,
        **machine_json(*machine, found.as_of),
        "recipe": None if plan is None else recipe_essentials(plan.estimate.recipe),
        "hours": None if plan is None else plan.hours,
        "usd": None if plan is None else plan.usd,
        "hours_change": outcome.hours_change,
        "usd_change": outcome.usd_change,
        "bound_by": outcome.binding,
        "reason": outcome.reason,
    }


def print_advice(found: Advice, words: Words) -> None:
    """Print the whole answer to standard output."""
    say(f"{found.workload.model.id}: {asked_text(found)}")
    click.echo()
    for line in base_lines(found):
        say(line)
    click.echo()
    print_table(changes_table(found))
    for line in reason_lines(found):
        say(line)
    click.echo()
    say(click.style("Best change: " if found.best is not None else "", bold=True) + sentence(found, words))
    for line in ("", *assumed) if (assumed := list(note_lines(found))) else ():
        say(line)


def changes_table(found: Advice) -> Table:
    """The plan as it is, and what it is with each change."""
    rows = [_row(found, outcome) for outcome in found.outcomes]
    if found.base is not None:
        rows.insert(0, _base_row(found, found.base))
    return Table(titles=TITLES, rows=rows, number_columns=NUMBERS, least_first=LEAST_FIRST, cut_columns=CUT)


def sentence(found: Advice, words: Words) -> str:
    """The change that buys most, what it buys, and the options that make it; or that there is none."""
    best = found.best
    if best is None:
        return _no_change(found)
    text = f"{best.change.name} ({words(best.change.options)}): {_bought(found, best)}"
    if not found.base_is_within_limits and found.base is not None:
        text += f", within {_limits(found)}"
    same = found.best_with_same_results
    if same is not None and same is not best:
        text += f"; of what trains the same, {same.change.name} ({words(same.change.options)}): {_bought(found, same)}"
    return text


def _no_change(found: Advice) -> str:
    if found.base is None:
        fitting = any(outcome.plan is not None for outcome in found.outcomes)
        return f"what fits is over {_limits(found)}" if fitting else "no change that was tried makes it fit"
    if not found.base_is_within_limits:
        return f"no single change brings it within {_limits(found)}"
    if found.base.hours is None:
        return "no speed is known of it as it is, so no change can be said to make it faster"
    better = "cheaper" if found.objective is Objective.COST else "faster"
    where = f" within {_limits(found)}" if _limits(found) else ""
    return f"no single change makes it {better}{where}"


def _bought(found: Advice, outcome: Outcome) -> str:
    """``$1.20 less (40%) for 3.2 h more (80%)``; the whole price and time where there is nothing to compare with."""
    plan, base = outcome.plan, found.base
    assert plan is not None
    if base is None:
        return " and ".join(_whole(plan))
    money = _difference(plan.usd, base.usd, outcome.usd_change, usd_text)
    time = _difference(_seconds(plan), _seconds(base), outcome.hours_change, duration_text)
    parts = [money, time]
    if found.objective is Objective.TIME:
        parts.reverse()
    return " and ".join(part for part in parts if part) or "nothing else is known of it"


def _seconds(plan: RankedPlan) -> float | None:
    return None if plan.hours is None else plan.hours * SECONDS_PER_HOUR


def _whole(plan: RankedPlan) -> Iterator[str]:
    yield "no price is known" if plan.usd is None else usd_text(plan.usd)
    seconds = _seconds(plan)
    yield "no speed is known" if seconds is None else duration_text(seconds)


def _difference(
    value: float | None, base: float | None, fraction: float | None, text: Callable[[float], str]
) -> str | None:
    if value is None or base is None or fraction is None:
        return None
    if round(100 * abs(fraction)) == 0:
        return f"{text(value)} as before"
    return f"{text(abs(value - base))} {'less' if value < base else 'more'} ({100 * fraction:+.0f}%)"


def asked_text(found: Advice) -> str:
    """What is looked for, and within which limits."""
    limits = _limits(found)
    if found.base is None:
        return f"what makes it fit{' within ' if limits else ''}{limits}"
    goal = "cheaper" if found.objective is Objective.COST else "faster"
    return f"what one change makes it {goal}{' within ' if limits else ''}{limits}"


def _limits(found: Advice) -> str:
    """``$20 and 5.0 h``; empty without limits."""
    usd, hours = found.limits.max_usd, found.limits.max_hours
    parts = [] if usd is None else [usd_text(usd)]
    parts += [] if hours is None else [duration_text(hours * SECONDS_PER_HOUR)]
    return " and ".join(parts)


def base_lines(found: Advice) -> Iterator[str]:
    """The plan without a change, or why there is none."""
    if found.base is None:
        yield f"Nothing fits: {found.reason}"
        return
    over = "" if found.base_is_within_limits else f"; over {binding(found.base, found.limits)}"
    yield click.style("Now: ", bold=True) + money_line(found.base, found.as_of) + over
    yield f"  {setup_text(found.base.estimate)}"
    yield from (f"  {line}" for line in (*calibration_lines(found.base.estimate), *caveat_lines(found.notes)))


def _base_row(found: Advice, base: RankedPlan) -> tuple[str, ...]:
    return (
        "now",
        "yes",
        _time(base),
        "",
        _usd(base),
        "",
        "",
        *_setup_cells(base),
        binding(base, found.limits) or UNKNOWN,
    )


def _row(found: Advice, outcome: Outcome) -> tuple[str, ...]:
    plan, results = outcome.plan, "the same" if outcome.change.keeps_results else "otherwise"
    if plan is None:
        return (outcome.change.name, "no", UNKNOWN, "", UNKNOWN, "", results, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)
    return (
        outcome.change.name,
        "yes",
        _time(plan),
        _percent(outcome.hours_change),
        _usd(plan),
        _percent(outcome.usd_change),
        results,
        *_setup_cells(plan),
        outcome.binding or UNKNOWN,
    )


def _setup_cells(plan: RankedPlan) -> tuple[str, str, str]:
    recipe = plan.estimate.recipe
    checkpoints = "yes" if recipe.activation_checkpointing else "no"
    return (
        engine_text(recipe, plan.estimate.cluster.num_gpus),
        f"{recipe.micro_batch} x {recipe.grad_accum}",
        checkpoints,
    )


def _time(plan: RankedPlan) -> str:
    seconds = _seconds(plan)
    return UNKNOWN if seconds is None else duration_text(seconds)


def _usd(plan: RankedPlan) -> str:
    return UNKNOWN if plan.usd is None else f"{plan.usd:.2f}" if plan.usd >= 0.1 else f"{plan.usd:.3f}"


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:+.0f}%"


def reason_lines(found: Advice) -> Iterator[str]:
    """Why nothing fits with a change, one line each."""
    refused = [outcome for outcome in found.outcomes if outcome.plan is None]
    if refused:
        yield ""
        yield "not possible:"
    for outcome in refused:
        yield f"  {outcome.change.name}: {outcome.reason}"


def note_lines(found: Advice) -> Iterator[str]:
    """What the numbers are of, and notes."""
    if found.base is not None:
        yield f"assumed: {workload_text(found.base.estimate)}"
    for note in footnotes(found.notes):
        yield f"note: {note}"
