"""The report of a search: the first plan, cost against time of everything that fits, and plans side by side."""

from collections.abc import Sequence

from vlmplan.answers.estimate import caveat_lines
from vlmplan.answers.front import drawn_points, front_table, wins_by
from vlmplan.answers.front_picture import front_picture
from vlmplan.answers.offers import cost_lines, money_line, range_lines
from vlmplan.answers.recommendation import assumed_lines, plans_table, rejection_lines
from vlmplan.files.json_reader import JsonDict
from vlmplan.render.tables import Table
from vlmplan.reports.elements import chart, folded, lines, paragraphs, section, table
from vlmplan.reports.estimate import besides, command_section, drawn_estimate, said, setup_sections
from vlmplan.reports.page import page
from vlmplan.reports.plans import drawn_plans, named_plan, plans_section
from vlmplan.search import Recommendation
from vlmplan.search.explanation import explanation
from vlmplan.units import counted


def recommendation_report(found: Recommendation, *, hints: Sequence[str], command_text: str, more: str = "") -> str:
    """The file; ``found`` was asked to compare all setups that fit. Arguments are as of ``estimate_report``."""
    model = found.workload.model.id
    if not found.plans:
        sections = [
            section("verdict", "Nothing fits", lines([*rejection_lines(found.rejected), *hints])),
            said("notes", "Notes", found.notes),
            command_section(command_text),
        ]
        return page(
            f"{model}: nothing fits", f"on {counted(found.num_clusters, 'machine')}", filter(None, sections), {}
        )
    winner = found.plans[0]
    why = explanation(found.plans, found.objective)
    first = f"{wins_by(found)}: {money_line(winner, found.as_of)}"
    answer = drawn_estimate(winner.estimate, ())
    plans = [named_plan(f"plan {place}", plan) for place, plan in enumerate(found.plans, start=1)]
    sections = [
        section(
            "first",
            "The first plan",
            paragraphs(
                [
                    first,
                    *caveat_lines(found.notes),
                    *cost_lines(winner),
                    *range_lines(winner),
                    *([] if why is None else [why]),
                ]
            ),
        ),
        cost_section(found),
        section("all", "Plans", table(plans_table(found), "Plans, the best first")),
        plans_section(plans),
        *setup_sections(answer, winner.estimate, hints),
        said("rejected", "What does not fit", list(rejection_lines(found.rejected))),
        said("assumed", "What is assumed", list(assumed_lines(found))),
        besides(more),
        command_section(command_text),
    ]
    data: JsonDict = {"estimate": answer, "plans": drawn_plans(plans)}
    if found.scored:
        points = drawn_points(found.scored, found.pareto)
        data["offers"] = {"points": points, "document": {"plans": [_winner_json(found)]}}
    return page(f"{model}: recommendation", answer["heading"], filter(None, sections), data)


def cost_section(found: Recommendation) -> str:
    """Cost against time, and its front as a table."""
    shown: Table = front_table(found)
    return section(
        "offers",
        "Cost against time of every setup that fits",
        chart("offers", front_picture(found)),
        folded("What nothing else beats in both", table(shown, "Setups than which none is both faster and cheaper")),
    )


def _winner_json(found: Recommendation) -> JsonDict:
    """What is marked of the first plan."""
    winner = found.plans[0]
    node = winner.estimate.cluster.node
    return {"usd": winner.usd, "hours": winner.hours, "gpu": node.gpu.id, "num_gpus": node.num_gpus}
