"""The merged model of a run that has ended: ``--resume --merge-adapters``, for which nothing is trained."""

import json
import sys

from vlmplan.files import write_atomically
from vlmplan.files.json_reader import read_json_object
from vlmplan.launch.rank_locks import rank_lock
from vlmplan.plan import Plan
from vlmplan.run.training import REPORT_FILE
from vlmplan_trainer.data.language import with_language
from vlmplan_trainer.models.load import load_processing
from vlmplan_trainer.options import Options
from vlmplan_trainer.phases import is_first, rank_here, say_building, say_phase
from vlmplan_trainer.reporting.result import about_result, result_folder
from vlmplan_trainer.saving.export import write_merged


def merge_afterwards(plan: Plan, options: Options) -> int:
    """Write the model with the run's adapter merged in, and where it is into the report; the first rank does it."""
    if not is_first():
        return 0
    with rank_lock(options.output_dir, rank_here()):
        processing = with_language(load_processing(plan), plan, options)
        say_building(plan.model_source, random_weights=False)
        write_merged(plan, processing, options.output_dir)
        say_phase("the adapter is merged in")
        folder = result_folder(plan, options.output_dir, is_merged=True)
        report = options.output_dir / REPORT_FILE
        content = read_json_object(report) | {"result": str(folder)}
        write_atomically(report, json.dumps(content, indent=1) + "\n", force=True)
        sys.stdout.writelines(f"{line}\n" for line in about_result(plan, folder, processing, has_random_base=False))
    return 0
