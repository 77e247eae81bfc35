"""A prepared run of ``vlmplan launch``, started and followed to its end."""

from vlmplan.answers.launch import print_notes, starting_text
from vlmplan.cli.out_of_memory import tell_out_of_memory
from vlmplan.errors import VlmplanError
from vlmplan.files import remove_half_written
from vlmplan.launch.preflight import writes_report_here
from vlmplan.launch.prepared import PreparedRun
from vlmplan.launch.rank_locks import wait_for_old_ranks
from vlmplan.launch.run_folder import (
    COMMAND_FILE,
    LOG_FILE,
    has_checkpoint,
    locked_log,
    report_mark,
    write_run_files,
)
from vlmplan.launch.start import CUT_OFF, ending, follow
from vlmplan.render.lines import tell
from vlmplan.run.shortage import remove_shortages
from vlmplan.run.training import EXIT_OUT_OF_MEMORY


def start(prepared: PreparedRun) -> int:
    """Write the run's files, run it and return its exit code; 1 where a problem was found before the start, or the run
    did not finish."""
    print_notes(prepared)
    if prepared.findings.problems:
        return VlmplanError.exit_code
    folder = prepared.options.output_dir
    tell(f"{starting_text(prepared)}; {folder / LOG_FILE} keeps what it prints")
    is_seen, before = writes_report_here(prepared.plan, prepared.facts, prepared.hostfile), report_mark(folder)

    def is_finished() -> bool:
        return not is_seen or report_mark(folder) not in (None, before)

    with locked_log(folder, resumes=prepared.options.resume, command=prepared.texts[COMMAND_FILE]) as log:
        wait_for_old_ranks(folder, lambda sentence: tell(f"vlmplan: {sentence}"))
        remove_half_written(folder)
        write_run_files(folder, prepared.texts)
        remove_shortages(folder)
        shared = None if prepared.plan.hardware.num_nodes == 1 else folder
        code = follow(prepared.command, prepared.environment, log, shared_folder=shared, is_finished=is_finished)
    is_cut_off = code == 0 and not is_finished()
    if is_cut_off:
        code = VlmplanError.exit_code
    if code:
        how = CUT_OFF if is_cut_off else ending(code)
        goes_on = ", --resume goes on" if _can_go_on(prepared, code) else ""
        tell(f"vlmplan: {how}; {folder / LOG_FILE} has what it printed{goes_on}")
        tell_out_of_memory(prepared, code)
    return code


def _can_go_on(prepared: PreparedRun, code: int) -> bool:
    """Whether to suggest --resume: not where it has just been refused."""
    is_refused = prepared.options.resume and code == VlmplanError.exit_code
    return code != EXIT_OUT_OF_MEMORY and not is_refused and has_checkpoint(prepared.options.output_dir)
