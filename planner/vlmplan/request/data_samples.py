"""What samples of ``--data`` say in place of a request: lengths, images and sounds, and how many they are."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vlmplan.errors import InputError, UnavailableError
from vlmplan.recipe.choices import Batching
from vlmplan.request.parts import WorkloadRequest
from vlmplan.request.record import ConfiguredRequest, FromData, Request

if TYPE_CHECKING:
    from vlmplan.data_plan import DataSource, DataSources, Limits
    from vlmplan.data_rules import DataRules


def with_data(whole: Request, own: Request, path: Path, image_folder: Path | None) -> Request:
    """``whole``, of which ``own`` is the user's part, with the samples of ``path``."""
    from vlmplan.data_plan import DataSources

    task = whole.task.task()
    if task is not None and task.is_grpo:
        raise InputError(
            f"--data {path} does not say how long the answers are that --task {task.kind.value} trains on, which the "
            f"model writes itself; leave it off, and say with --seq-len how many tokens a prompt and its answer are "
            f"together (launch trains on --train-data)"
        )
    rules = _data_rules(whole)
    if image_folder is not None and not image_folder.is_dir():
        raise UnavailableError(f"--image-folder {image_folder} is no folder")
    images = image_folder or _own_image_folder(rules, whole.configured)
    sources = DataSources(path, whole.model_files, rules, image_folder=images)
    return with_samples(whole, own, sources, image_folder)


def _data_rules(whole: Request) -> "DataRules":
    from vlmplan.data_rules import rules_of
    from vlmplan.request.videos import with_frame_limits

    tool = None if whole.made_for is None else whole.made_for.value
    rules = rules_of(tool) if whole.configured is None else whole.configured.config.data_rules
    rules = with_frame_limits(rules, whole.videos)
    task = whole.task.task()
    rules = rules if task is None else replace(rules, prefers=task.has_pairs, has_labels=task.is_kto)
    batching = whole.recipe.batching
    if batching is None:
        return rules
    packs = batching is Batching.PACKED or (rules.packs and batching is Batching.PADDED)
    pads = not batching.is_flat or (packs and rules.fills_rows)
    return replace(rules, packs=packs, pads=pads, pads_to=1 if batching.is_flat else rules.pads_to)


def with_samples(whole: Request, own: Request, sources: "DataSources", image_folder: Path | None = None) -> Request:
    """``whole``, of which ``own`` is the user's part, with the samples' lengths, images and sounds in place of its own,
    which are limits then. A number of samples that is said stays."""
    from vlmplan.data_rules import FOR_LARGEST, FOR_LONGEST, OF_EVERY_IMAGE

    configured = whole.configured
    rules = _data_rules(whole)
    if sources.has_videos and own.workload.images_per_sample is not None and rules.is_bundled:
        raise InputError(
            f"--images-per-sample is {own.workload.images_per_sample}, but the samples have videos, whose frames are "
            f"many images; --video-frames limits them"
        )
    source = sources.source(rules, _limits(whole, own))
    alone = _workload_of_samples(whole, own, source)
    workload = replace(_as_samples_are(whole.workload, alone), num_samples=_num_samples(whole, own, source, rules))
    if configured is not None:  # what it says of samples that nobody has seen
        configured = configured.without_notes(OF_EVERY_IMAGE, FOR_LONGEST, FOR_LARGEST)
    from_data = FromData(source=source, alone=alone, own=own.workload, image_folder=image_folder)
    return replace(whole, workload=workload, configured=configured, from_data=from_data)


def _limits(whole: Request, own: Request) -> "Limits":
    """The most that a sample may have, and who says so."""
    from vlmplan.data_plan import Limits, MostShown

    asked, configured = own.workload, whole.configured
    return Limits(
        limit=whole.workload.seq_len,
        source="--seq-len" if configured is None or asked.seq_len is not None else str(configured.path),
        planned_size=asked.image_size,
        most=MostShown(
            images=asked.images_per_sample,
            sounds=asked.audios_per_sample,
            seconds=asked.audio_seconds,
            answer_tokens=asked.target_len,
        ),
    )


def _as_samples_are(said: WorkloadRequest, alone: WorkloadRequest) -> WorkloadRequest:
    """``said`` with what samples are like as ``alone`` has it, whose packed length and image size may be missing."""
    return replace(
        said,
        seq_len=alone.seq_len,
        target_len=alone.target_len,
        sample_len=said.sample_len or alone.sample_len,
        images_per_sample=alone.images_per_sample,
        image_size=alone.image_size or said.image_size,
        video_fps=alone.video_fps,
        video_frames=alone.video_frames,
        video_pixels=alone.video_pixels,
        clip_frames=alone.clip_frames,
        audios_per_sample=alone.audios_per_sample,
        audio_seconds=alone.audio_seconds,
    )


def _workload_of_samples(whole: Request, own: Request, source: "DataSource") -> WorkloadRequest:
    """The workload as the samples themselves say it: lengths, images and sounds that no sample has more of, and the
    frames that are asked for of their videos."""
    covers, videos = source.covering, whole.videos
    return WorkloadRequest(
        seq_len=covers.seq_len,
        target_len=covers.target_len or None,
        images_per_sample=covers.images_per_sample,
        image_size=covers.image_size,
        sample_len=source.packed_sample_len if whole.recipe.batching is Batching.PACKED else None,
        num_samples=source.num_rows if own.workload.num_samples is None else None,
        video_fps=videos.fps,
        video_frames=videos.frames,
        video_pixels=videos.max_pixels,
        clip_frames=covers.clip_frames,
        audios_per_sample=covers.audios_per_sample or None,
        audio_seconds=covers.audio_seconds or None,
    )


def _num_samples(whole: Request, own: Request, source: "DataSource", rules: "DataRules") -> int | None:
    """The number of samples: that which is said, or that of the data's rows. All of them where there are fewer than a
    configuration's most; of rows that hold several samples as large a part as is taken of the samples."""
    said, total = whole.workload.num_samples, len(source.found.shapes)
    if own.workload.num_samples is not None or said is None or said != rules.most_samples:
        return said or source.num_rows
    return source.num_rows if total <= said else max(1, round(source.num_rows * said / total))


def _own_image_folder(rules: "DataRules", configured: ConfiguredRequest | None) -> Path | None:
    """The folder in which a configuration says that images are."""
    if configured is None or rules.image_folder is None:
        return None
    from vlmplan.other_trainers import found_folder

    path = configured.path
    return found_folder(rules.image_folder, path.parent, str(path), "the folder of images")
