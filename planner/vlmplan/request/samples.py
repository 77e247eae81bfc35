"""The samples that a request means: what each has, and how long it is where nobody says so."""

from dataclasses import replace

from vlmplan.architecture.audio import heard_seconds
from vlmplan.errors import InputError
from vlmplan.models import context_length, qformer_positions, sees_nothing, takes_images
from vlmplan.request.parts import WorkloadRequest
from vlmplan.run.saving import Saving
from vlmplan.sample_audio import audio_tokens, encoded_kinds, encoded_tokens, sample_audio
from vlmplan.units import MAX_COUNT, counted
from vlmplan.workload import (
    DEFAULT_EPOCHS,
    DEFAULT_IMAGE_SIZE,
    DEFAULT_NUM_SAMPLES,
    DEFAULT_SEQ_LEN,
    ModelFiles,
    Workload,
    seq_len_with_text,
)


def workload_of(
    model: ModelFiles, asked: WorkloadRequest, saving: Saving | None = None, loader_workers: int = 0
) -> Workload:
    """The workload; a model that takes images gets one per sample unless the user says otherwise.

    Where the user says nothing of length and images, and the default image takes more than the default length, or where
    sounds do and he says nothing of length, the length leaves room for text beside them.
    """
    images = asked.images_per_sample
    if images is None:
        images = 1 if takes_images(model) or model.encodes_one_image else 0
    elif images == 0:  # the user's samples have none, so nothing of theirs is left out
        model = replace(model, not_counted=tuple(kind for kind in model.not_counted if kind != "images"))
    if asked.image_size is not None and sees_nothing(model):
        width, height = asked.image_size
        raise InputError(f"--image-size is {width}x{height}, but {model.id} takes no images; leave it off")
    width, height = asked.image_size or DEFAULT_IMAGE_SIZE
    workload = Workload(
        model=model,
        seq_len=_default_seq_len(model) if asked.seq_len is None else asked.seq_len,
        sample_len=asked.sample_len,
        target_len=asked.target_len,
        images_per_sample=images,
        image_width=width,
        image_height=height,
        num_samples=DEFAULT_NUM_SAMPLES if asked.num_samples is None else asked.num_samples,
        epochs=DEFAULT_EPOCHS if asked.epochs is None else asked.epochs,
        global_batch=asked.global_batch,
        saving=saving or Saving(),
        loader_workers=loader_workers,
        video_fps=asked.video_fps,
        video_frames=asked.video_frames,
        video_pixels=asked.video_pixels,
        audios_per_sample=asked.num_audios,
        audio_seconds=asked.audio_seconds or 0.0,
        clip_frames=asked.clip_frames,
    )
    if model.hears_prompt:
        return _with_sound(workload, asked)
    if model.is_encoder_decoder:
        return _with_lengths_of_both(workload, asked)
    return _with_room_for_text(workload, asked)


def _with_room_for_text(workload: Workload, asked: WorkloadRequest) -> Workload:
    """Samples as long as the model takes, and longer than by default where images or sounds leave no room for text."""
    are_images_decided = asked.images_per_sample is not None or asked.image_size is not None
    is_decided = asked.seq_len is not None or (are_images_decided and not asked.num_audios)
    if asked.seq_len is None and (longest := _longest_sample(workload)) is not None:
        return replace(workload, seq_len=min(workload.seq_len, longest))
    if is_decided or encoded_tokens(workload) <= DEFAULT_SEQ_LEN:
        return workload
    return replace(workload, seq_len=seq_len_with_text(encoded_tokens(workload)))


def _default_seq_len(model: ModelFiles) -> int:
    """Tokens of a sample where nobody says how many; of a prompt that is an image alone, none."""
    return 0 if model.encodes_images_alone else DEFAULT_SEQ_LEN


def _with_lengths_of_both(workload: Workload, asked: WorkloadRequest) -> Workload:
    """Prompts and answers no longer than there are positions for, where nobody says how long they are."""
    longest, target_len = context_length(workload.model) or MAX_COUNT, _target_len(workload, asked)
    return replace(workload, seq_len=asked.seq_len or min(workload.seq_len, longest), target_len=target_len)


def _target_len(workload: Workload, asked: WorkloadRequest) -> int:
    longest = context_length(workload.model) or MAX_COUNT
    return min(workload.target_tokens, longest) if asked.target_len is None else asked.target_len


def _with_sound(workload: Workload, asked: WorkloadRequest) -> Workload:
    """One sound a sample, as long as the model hears where nobody says how long it is; its places are the prompt's."""
    model = workload.model
    if asked.audios_per_sample is None and asked.audio_seconds is None:
        workload = replace(workload, audios_per_sample=1, audio_seconds=float(heard_seconds(model.preprocessor)))
    places = max(1, audio_tokens(workload))
    if asked.seq_len not in (None, places):
        raise InputError(
            f"--seq-len is {asked.seq_len}, but {model.id} reads no prompt: its encoder hears a sound in "
            f"{places:,} places, however long it is; leave it off, and say with --target-len how long what is said is"
        )
    return replace(workload, seq_len=places, target_len=_target_len(workload, asked))


def _longest_sample(workload: Workload) -> int | None:
    """Tokens of the longest sample whose text a Q-Former has positions for; None where none reads it."""
    positions = qformer_positions(workload.model)
    return None if positions is None or not workload.images_per_sample else positions + encoded_tokens(workload)


def length_notes(workload: Workload, asked: WorkloadRequest) -> list[str]:
    """What the user should know of ``--seq-len``, a default that was raised, positions the model was not made for, and
    of what sounds become."""
    if workload.model.hears_prompt:
        return _notes_on_sound(workload)
    if workload.model.encodes_images_alone:
        return []
    notes: list[str] = []
    positions = qformer_positions(workload.model)
    if asked.seq_len is None and workload.seq_len < DEFAULT_SEQ_LEN and positions is not None:
        notes.append(
            f"--seq-len is taken as {workload.seq_len:,}: the Q-Former, which reads the text too, has learned "
            f"positions for {positions:,} tokens"
        )
    elif asked.seq_len is None and workload.target_tokens and workload.seq_len != DEFAULT_SEQ_LEN:
        notes.append(f"--seq-len is taken as {workload.seq_len:,}: the model has positions for no more")
    elif asked.seq_len is None and workload.seq_len != DEFAULT_SEQ_LEN:
        notes.append(
            f"--seq-len is taken as {workload.seq_len:,}: the {encoded_kinds(workload)} of a sample take "
            f"{encoded_tokens(workload):,} tokens"
        )
    audio = sample_audio(workload)
    if audio is not None:
        notes.append(
            f"a sound of {workload.audio_seconds:g} s is {counted(audio.num_frames, 'frame')} of a spectrogram and "
            f"{counted(audio.num_tokens, 'token')}"
        )
    longest = context_length(workload.model)
    if longest is not None and workload.seq_len > longest:
        notes.append(f"--seq-len is {workload.seq_len:,}, more than the {longest:,} tokens the model is configured for")
    return notes


def _notes_on_sound(workload: Workload) -> list[str]:
    """What becomes of the sound that a model hears in the place of a prompt."""
    audio = sample_audio(workload)
    assert audio is not None
    return [
        f"a sound of {workload.audio_seconds:g} s is padded to {audio.num_padded_frames:,} frames of a spectrogram, "
        f"which the encoder hears in {audio.num_tokens:,} places"
    ]
