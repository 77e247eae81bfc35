"""Videos as the processor takes them: the frames that are planned, decoded, and how many tokens they become.

Which frames they are is the planner's rule (``vlmplan.chats.frame_rules``), of what the processor's own part for videos
says.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vlmplan.chats.downscaling import Downscaling, Size
from vlmplan.chats.frame_rules import FrameRule, FrameSettings, frame_rule, refuse_together
from vlmplan.chats.samplers import CLIP_SAMPLERS, GEMMA4_SAMPLERS, GLM_SAMPLERS, MINICPMV_SAMPLERS, Sampler
from vlmplan.chats.samples import Sample, VideoPart
from vlmplan.chats.video_files import VideoHeader
from vlmplan.errors import InputError, MissingPackageError
from vlmplan.files import open_regular
from vlmplan_trainer.data.downscaling import downscaled_image
from vlmplan_trainer.data.images import opened

VIDEO_PIXELS = "pixel_values_videos"
"""What models call the pixels of their videos."""
OMNI_SECONDS = "video_second_per_grid"
SECONDS_OF_ROWS = ("second_per_grid_ts", OMNI_SECONDS)
"""How long a row of a video's patches lasts, of which Qwen2.5-VL's and the Omni thinkers' positions in time are made.
"""
CONTAINERS = {b"RIFF": "avi"}
"""By how a file begins; every other one whose header is read is of MP4's kind. Named, so that no playlist is tried,
which could lead to other files."""
MISSING_SHARE = 0.1
"""Of a video's frames, that may be missing at its end: a container may count frames that an edit hides. A choice."""
KEPT_VIDEOS = 4096
NEEDED = ("av", "torchvision")
"""Packages that videos need beside those of images."""
NEEDED_BY = {"smolvlm": ("num2words",)}
"""... and those of one type of model more: its processor writes numbers out."""


def refuse_videos_without_packages(samples: Sequence[Sample], model_type: str) -> None:
    """Raise MissingPackageError where samples show videos, and what reads those is not installed."""
    needed = (*NEEDED, *NEEDED_BY.get(model_type, ()))
    missing = [package for package in needed if importlib.util.find_spec(package) is None]
    shown = next((sample for sample in samples if sample.videos), None)
    if shown is not None and missing:
        raise MissingPackageError(
            f"{shown.source}: samples with videos need {' and '.join(missing)}, not installed here: "
            f"pip install 'vlmplan[video]'"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoLimits:
    """What is taken of a video at the most: ``fps`` frames of each second, ``most_frames`` in all, of ``max_pixels``
    each; None: as the processor has it."""

    fps: float | None = None
    most_frames: int | None = None
    max_pixels: int | None = None


class _Sequences(NamedTuple):
    """What a frame becomes: a ``grid`` (rows, columns) of slices, and the ``sizes`` (rows, columns of patches) of the
    whole frame and of each slice."""

    grid: list[int]
    sizes: list[list[int]]

    @property
    def patches(self) -> list[int]:
        return [rows * columns for rows, columns in self.sizes]


class VideoMeter:
    """What a processor makes of a video, by its header alone."""

    def __init__(self, processor: Any, limits: VideoLimits | None = None) -> None:
        self._processor = processor
        self.rule = frame_rule_of(processor, limits or VideoLimits())
        if getattr(processor.video_processor, "cap_pixels_per_frame", False) is None:
            processor.video_processor.cap_pixels_per_frame = False  # which None means, with a warning
        self.num_tokens = lru_cache(KEPT_VIDEOS)(self._num_tokens)
        self.makes_clips = self.rule.sampler in CLIP_SAMPLERS
        self.makes_images = self.rule.sampler in GLM_SAMPLERS
        self.writes_videos = self.rule.sampler is Sampler.SMOLVLM
        """In the text, where no token of their own stands for them: their words are tokens together with those around.
        """
        self.needs_tensors = self.writes_videos or self.rule.sampler in GEMMA4_SAMPLERS
        """Whether numbers beside the pixels of videos have to be asked for as tensors."""
        self.frames_of_image = self._frames_of_image() if self.rule.sampler in GEMMA4_SAMPLERS else None
        """As many frames as an image has patches, whatever its size; None: that goes by its tiles."""

    def _frames_of_image(self) -> int:
        """Gemma 4 fills up the patches of an image, and of a frame, to the most that it has."""
        of_image, of_frame = self._processor.image_processor, self._processor.video_processor
        return -(-int(of_image.max_soft_tokens) // int(of_frame.max_soft_tokens))

    def num_patches(self, header: VideoHeader) -> int:
        """Patches of all frames in the vision tower; frames, for models that make a tile of each. Raises InputError for
        a video that the processor refuses."""
        if self.rule.sampler in MINICPMV_SAMPLERS:
            return len(self.rule.indices(header)) * sum(self._sequences(header).patches)
        rows, height, width = self._grid(header)
        return rows * height * width

    def num_patches_of(self, num_frames: int, size: Size) -> int:
        """Patches of so many frames of this (width, height), or of that which they are resized to."""
        whole = {"width": size[0], "height": size[1], "num_frames": num_frames, "seconds": 1.0, "is_listed": True}
        if self.rule.sampler in MINICPMV_SAMPLERS:
            return num_frames * sum(self._sequences(VideoHeader(**whole)).patches)
        part = self._processor.video_processor
        rows = -(-num_frames // part.temporal_patch_size)
        return rows * (size[0] // part.patch_size) * (size[1] // part.patch_size)

    def _sequences(self, header: VideoHeader) -> "_Sequences":
        """What MiniCPM-V's processor makes of a frame, by its own methods."""
        part, size = self._processor.video_processor, header.within(self.rule.max_pixels).shown_size[::-1]
        grid = part.get_sliced_grid(size, part.max_slice_nums, part.scale_resolution) if part.slice_mode else None
        ways = {name: getattr(part, name) for name in ("scale_resolution", "patch_size", "downsample_mode")}
        sizes = [part.find_best_resize(size, **ways, allow_upscale=grid is None)]
        if grid is not None:
            height, width = part.get_refine_size(size, grid, **ways, allow_upscale=True)
            sizes += [(height // grid[0], width // grid[1])] * (grid[0] * grid[1])
        side = part.patch_size
        return _Sequences(grid or [0, 0], [[height // side, width // side] for height, width in sizes])

    def _grid(self, header: VideoHeader) -> tuple[int, int, int]:
        """Rows of patches in time, height and width, by the processor's own resizing of frames of nothing."""
        part, num_frames = self._processor.video_processor, len(self.rule.indices(header))
        if self.rule.sampler is Sampler.INTERNVL or self.makes_clips:
            return num_frames, 1, 1
        width, height = header.within(self.rule.max_pixels).shown_size
        frames = torch.empty(1, num_frames, 3, height, width, dtype=torch.uint8, device="meta")
        try:
            resized = part.resize(
                frames,
                self._size,
                part.resample,
                factor=part.patch_size * part.merge_size * getattr(part, "patch_expand_factor", 1),
                temporal_factor=part.temporal_patch_size,
                cap_pixels_per_frame=getattr(part, "cap_pixels_per_frame", False),
            )
        except ValueError as error:  # such as one 200 times as long as wide
            raise InputError(f"the model's processor refuses it: {' '.join(str(error).split())}") from None
        height, width = resized.shape[-2:]
        return -(-num_frames // part.temporal_patch_size), height // part.patch_size, width // part.patch_size

    @property
    def _size(self) -> Any:
        """Limits of a frame: of processors that give them to their part for videos, theirs (``_merge_kwargs``)."""
        from transformers.image_utils import SizeDict

        given = getattr(self._processor, "videos_kwargs", {}).get("size")
        return self._processor.video_processor.size if given is None else SizeDict(**given)

    def with_seconds(self, sample: Sample, tensors: dict[str, Any]) -> dict[str, Any]:
        """``tensors`` of a sample with the seconds of a row of each video's patches, where the model is told of them:
        the Omni models' processors take one rate for all videos, a default where none is said."""
        if OMNI_SECONDS not in tensors:
            return tensors
        seconds = [self._seconds_of_row(part.header) for part in sample.videos]
        return tensors | {OMNI_SECONDS: torch.tensor(seconds)}

    def _seconds_of_row(self, header: VideoHeader) -> float:
        """The seconds between two rows of frames, by ``VideoMetadata.sampled_fps``."""
        frames_per_second = len(self.rule.indices(header)) / header.num_frames * header.fps
        return self.rule.merged_frames / frames_per_second

    def refuse_together(self, sample: Sample) -> None:
        """Raises what ``frame_rules.refuse_together`` does."""
        headers = [part.header for part in sample.videos]
        refuse_together(self.rule, headers, has_images=bool(sample.images))

    def written(self, headers: Sequence[VideoHeader], text: str) -> tuple[str, list[tuple[int, int]]]:
        """``text`` with the videos of a sample as SmolVLM's processor writes them into it, and where each ends before
        and after."""
        most = max(len(self.rule.indices(header)) for header in headers)
        token, places = self._processor.video_token, list[tuple[int, int]]()
        pieces = text.split(token)
        parts, before, after = [pieces[0]], len(pieces[0]), len(pieces[0])
        for header, piece in zip(headers, pieces[1:], strict=True):
            words = self._text(header, most)
            before, after = before + len(token), after + len(words)
            places.append((before, after))
            parts += [words, piece]
            before, after = before + len(piece), after + len(piece)
        return "".join(parts), places

    def fitted(self, part: VideoPart) -> VideoPart:
        """The video with frames of the pixels that are allowed."""
        return replace(part, header=part.header.within(self.rule.max_pixels))

    def metadata(self, header: VideoHeader) -> dict[str, Any]:
        """What transformers calls the metadata of a video of which these frames are given."""
        width, height = header.within(self.rule.max_pixels).shown_size
        return {
            "total_num_frames": header.num_frames,
            "fps": header.fps,
            "width": width,
            "height": height,
            "duration": header.seconds,
            "frames_indices": self.rule.indices(header),
        }

    def _num_tokens(self, header: VideoHeader) -> int:
        """Tokens that stand in the text for a video, with what is written between its frames. Raises what
        ``num_patches`` does."""
        return len(self._processor.tokenizer(self._text(header), add_special_tokens=False, verbose=False)["input_ids"])

    def _text(self, header: VideoHeader, num_shown: int | None = None) -> str:
        """What the processor writes in place of a video's token, by its own method; ``num_shown`` frames have the
        tensor that a sample's videos are in."""
        from transformers.video_utils import VideoMetadata

        num_frames = len(self.rule.indices(header))
        if self.rule.sampler in MINICPMV_SAMPLERS:
            return self._text_of_minicpmv(header, num_frames)
        if self.rule.sampler in (Sampler.INTERNVL, Sampler.LLAVA_ONEVISION):
            return self._processor.replace_video_token({VIDEO_PIXELS: [torch.empty(num_frames, 0)]}, 0)
        if self.rule.sampler is Sampler.LLAVA_NEXT_VIDEO:
            tile = self._processor.video_processor.crop_size
            frames = torch.zeros(()).expand(num_frames, 3, tile.height, tile.width)
            return self._processor.replace_video_token({VIDEO_PIXELS: [frames]}, 0)
        metadata = [VideoMetadata(**self.metadata(header))]
        if self.rule.sampler in GEMMA4_SAMPLERS:
            made = {"num_soft_tokens_per_video": [self._frame_tokens(header)], "video_metadata": metadata}
            return self._processor.replace_video_token(made, 0)
        if self.rule.sampler is Sampler.SMOLVLM:
            pixels = torch.empty(1, num_shown or num_frames, 0)
            return self._processor.replace_video_token({"pixel_values": pixels, "video_metadata": metadata}, 0)
        grid = torch.tensor([self._grid(header)])
        made = {"video_grid_thw": grid, "video_metadata": metadata}
        return self._processor.replace_video_token(made, 0, load_audio_from_video=False)

    def _text_of_minicpmv(self, header: VideoHeader, num_frames: int) -> str:
        """With the number that stands before a video."""
        made, processor = self._sequences(header), self._processor
        frames = {
            "target_sizes_videos": torch.tensor(made.sizes * num_frames),
            "num_frames_per_video": [num_frames],
            "grids_videos": torch.tensor([made.grid] * num_frames),
        }
        text = processor.replace_video_token(frames, 0, video_token_divisor=processor.video_token_divisor)
        if not processor.image_processor.use_image_id:
            return text
        [numbered] = processor._prepend_local_ids([processor.video_token], [text], processor.video_token)
        return numbered

    def _frame_tokens(self, header: VideoHeader) -> int:
        """Tokens of each frame of Gemma 4, by the processor's own resizing of a frame of nothing."""
        part, (width, height) = self._processor.video_processor, header.shown_size
        frame = torch.empty(1, 3, height, width, dtype=torch.uint8, device="meta")
        kernel = part.pooling_kernel_size
        sizes = {"patch_size": part.patch_size, "max_patches": part.max_soft_tokens * kernel**2}
        try:
            resized = part.aspect_ratio_preserving_resize(
                frame, **sizes, pooling_kernel_size=kernel, resample=part.resample
            )
        except ValueError as error:  # such as one so thin that nothing is left of a side
            raise InputError(f"the model's processor refuses it: {' '.join(str(error).split())}") from None
        height, width = resized.shape[-2:]
        return height // part.patch_size * (width // part.patch_size) // kernel**2


def videos_as_images(made: dict[str, Tensor], are_videos: Sequence[bool]) -> dict[str, Tensor]:
    """Tensors of a sample of GLM-4V with each row of a video's patches as the image that it is to the model, in the
    order of the text; ``are_videos`` says of each that is shown whether it is a video.

    The model has one token for both, and cuts a video's grid into rows itself (``get_video_features`` and
    ``get_rope_index`` in transformers 5.23 models/glm4v/modeling_glm4v.py): given as images, both may be in one batch.
    """
    shown = [*_rows(made, "pixel_values", "image_grid_thw"), *_rows(made, VIDEO_PIXELS, "video_grid_thw")]
    order = sorted(range(len(are_videos)), key=lambda place: are_videos[place])
    in_text = [shown[order.index(place)] for place in range(len(are_videos))]
    others = {name: value for name, value in made.items() if name not in (VIDEO_PIXELS, "video_grid_thw")}
    grids = [torch.tensor([[1, *grid[1:].tolist()]]).repeat(int(grid[0]), 1) for _, grid in in_text]
    return {
        **others,
        "pixel_values": torch.cat([patches for patches, _ in in_text]),
        "image_grid_thw": torch.cat(grids),
        "mm_token_type_ids": made["mm_token_type_ids"].clamp(max=1),
    }


def _rows(made: dict[str, Tensor], pixels: str, grids: str) -> list[tuple[Tensor, Tensor]]:
    """The patches and the grid of each image, or of each video."""
    if pixels not in made:
        return []
    sizes = made[grids].prod(dim=1).tolist()
    return [*zip(made[pixels].split(sizes), made[grids], strict=True)]


def frame_rule_of(processor: Any, limits: VideoLimits) -> FrameRule:
    """The rule by which the processor's video part takes frames of a video. Raises InputError for a part of an unknown
    kind."""
    part = processor.video_processor
    name = type(part).__name__
    sampler = next((one for one in Sampler if one.value == name), None)
    if sampler is None:
        raise InputError(f"the model's videos are read by {name}, which is not known")
    settings = FrameSettings(
        fps=part.fps,
        num_frames=part.num_frames,
        min_frames=getattr(part, "min_frames", None),
        max_frames=getattr(part, "max_num_frames", None) or getattr(part, "max_frames", None),
        max_seconds=getattr(part, "max_duration", None),
        merged_frames=getattr(part, "temporal_patch_size", None),
        stacked_frames=getattr(part, "stack_frames", 1),
    )
    return frame_rule(sampler, settings, **asdict(limits))


def frames_of(part: VideoPart, indices: Sequence[int], *, name: str) -> Tensor:
    """The frames of these places, (frames, 3, height, width) in 8 bits, as large and turned as the header says.

    Raises InputError, naming ``name``, for a video that cannot be decoded.
    """
    if part.frames:
        return _listed_frames(part, indices, name=name)
    try:
        found = _decoded(part.source, part.header, indices)
    except InputError as error:
        raise InputError(f"{name}, {part.source}, {error}") from None
    except Exception as error:  # PyAV raises anything at all for a broken file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name}, {part.source}, cannot be read as a video ({reason})") from None
    frames = torch.stack([found[index] for index in indices])
    return torch.rot90(frames, -part.header.quarter_turns, dims=(2, 3)) if part.header.quarter_turns else frames


def _listed_frames(part: VideoPart, indices: Sequence[int], *, name: str) -> Tensor:
    """Frames of a video that is a list of images, upright and in RGB as images are."""
    found, size = dict[int, Tensor](), (part.header.width, part.header.height)
    for index in {*indices}:
        image = opened(part.frames[index], name=f"{name}, frame {index + 1}, {part.frames[index]},")
        image = downscaled_image(image, Downscaling(scaled=size, canvas=size))
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        found[index] = pixels.view(image.height, image.width, 3).permute(2, 0, 1)
    return torch.stack([found[index] for index in indices])


def _decoded(path: Path, header: VideoHeader, indices: Sequence[int]) -> dict[int, Tensor]:
    """The frames of these places by place."""
    av: Any = importlib.import_module("av")
    wanted, found, latest = {*indices}, dict[int, Tensor](), None
    last = max(wanted)
    with open_regular(path) as file:
        container_format = CONTAINERS.get(file.read(4), "mov")
        file.seek(0)
        with av.open(file, format=container_format) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            num_decoded = 0
            for frame in container.decode(stream):
                latest = frame
                if num_decoded in wanted:
                    found[num_decoded] = _pixels(frame, header)
                num_decoded += 1
                if num_decoded > last:
                    break
    if latest is None or num_decoded < (1 - MISSING_SHARE) * (last + 1):
        raise InputError(
            f"is cut off: the first {last + 1} of its {header.num_frames} frames are needed, and it has {num_decoded}"
        )
    end = _pixels(latest, header)
    return found | dict.fromkeys(wanted - found.keys(), end)


def _pixels(frame: Any, header: VideoHeader) -> Tensor:
    array = frame.to_ndarray(format="rgb24", width=header.width, height=header.height)
    return torch.from_numpy(array).permute(2, 0, 1).contiguous()
