"""The report of variants of one setup side by side."""

from collections.abc import Sequence

from vlmplan.answers.comparison import footnotes, heading
from vlmplan.answers.comparison import table as variants_table
from vlmplan.proposals.comparison import Variant
from vlmplan.reports.elements import section, table
from vlmplan.reports.estimate import command_section, said
from vlmplan.reports.page import page
from vlmplan.reports.plans import NamedPlan, drawn_plans, plans_section


def comparison_report(variants: Sequence[Variant], *, command_text: str) -> str:
    """The file. At least one of ``variants`` can be trained."""
    plans = [NamedPlan(name=one.name, estimate=one.estimate) for one in variants if one.estimate is not None]
    sections = [
        section("variants", "Variants", table(variants_table(variants), "Variants")),
        plans_section(plans),
        said("details", "In words", footnotes(variants)),
        command_section(command_text),
    ]
    model = plans[0].estimate.workload.model.id
    return page(f"{model}: variants", heading(variants), filter(None, sections), {"plans": drawn_plans(plans)})
