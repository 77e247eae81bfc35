"""Which frames of a video a model is given, and what its processor writes between them: by the video's header alone.

Source: ``sample_frames`` in transformers 5.23 models/*/video_processing_*.py of ``qwen2_vl``, ``qwen3_vl``, ``glm4v``,
``glm46v``, ``glmga``, ``internvl``, ``smolvlm`` and ``minicpmv4_6``, and in video_processing_utils.py for
``llava_next_video``, ``llava_onevision`` and ``gemma4``. The planner counts by these rules, and the trainer decodes
those frames.
"""

from collections.abc import Sequence
from math import ceil, floor
from typing import NamedTuple

from vlmplan.chats.frame_places import even, evenly, in_spans, linear, once_and_even, spread, steps
from vlmplan.chats.samplers import (
    BY_LENGTH,
    CLIP_SAMPLERS,
    FIXED_SAMPLERS,
    GEMMA4_SAMPLERS,
    GLM_SAMPLERS,
    LLAVA_SAMPLERS,
    MINICPMV_SAMPLERS,
    Sampler,
)
from vlmplan.chats.video_files import VideoHeader
from vlmplan.errors import InputError
from vlmplan.units import counted

MAX_DECODED_PIXELS = 768 * 1920 * 1080
"""Of all frames that are decoded of a video: as many as Qwen's processors take, of full HD, 4.8 GB. A choice."""
GLM46V_RATES = ((30, 3.0), (300, 1.0), (2400, 0.5))
"""``DYNAMIC_FPS_THRES``: up to so many seconds, pairs of frames a second. The last is ``MAX_DURATION`` too."""
FRAMES_PER_SECOND = 2.0
"""``fps`` of the classes ``Qwen3VLVideoProcessor`` and ``Glm4vVideoProcessor``, and ``FPS`` of qwen-vl-utils, which
samples for Qwen2-VL and Qwen2.5-VL, and of qwen-omni-utils, which does so for the Omni models."""
QWEN_LEAST_FRAMES, QWEN_MOST_FRAMES = 4, 768
"""``min_frames`` and ``max_frames`` of Qwen's classes."""
GLM_MOST_SECONDS = 300
"""``max_duration`` of ``Glm4vVideoProcessor``."""
SKIPPED_SECONDS = 1
"""``skip_secs`` of ``SmolVLMVideoProcessor.sample_frames``: at both ends of a long video."""
GEMMA4_FRAMES = 32
"""``num_frames`` of ``Gemma4VideoProcessor``."""
MINICPMV_MOST_FRAMES = 128
"""``max_num_frames`` of ``MiniCPMV4_6VideoProcessor``."""
GLM_MOST_FRAMES, GLM46V_MOST_FRAMES = 600, 640
"""So many seconds at 2 frames a second, and ``MAX_FRAME_COUNT_DYNAMIC`` of ``sample_frames``."""


class FrameSettings(NamedTuple):
    """What a video processor's file says, None where it says nothing: ``max_seconds`` is ``max_duration`` there, and
    ``merged_frames`` ``temporal_patch_size``, ``max_frames`` MiniCPM-V's ``max_num_frames``, and ``stacked_frames`` its
    ``stack_frames``."""

    fps: float | None = None
    num_frames: int | None = None
    min_frames: int | None = None
    max_frames: int | None = None
    max_seconds: int | None = None
    merged_frames: int | None = None
    stacked_frames: int = 1


class FrameRule(NamedTuple):
    """How many frames are taken: ``fps`` in each second, ``min_frames`` to ``max_frames``, ``merged_frames`` of which
    become one row of patches. ``num_frames`` are taken of any video, where that is said. Videos of more than
    ``max_seconds`` are sampled as thinly as it takes. ``most_frames`` are what the user allows, and ``max_pixels`` of
    a frame, of which larger ones are made smaller before the processor has them.
    """

    sampler: Sampler
    fps: float | None
    merged_frames: int = 1
    num_frames: int | None = None
    min_frames: int = 1
    max_frames: int = 768
    max_seconds: int = 0
    most_frames: int | None = None
    max_pixels: int | None = None

    def wanted_frames(self, seconds: float) -> int:
        """Frames of a video of ``seconds`` that has as many. Raises InputError where nothing says how many."""
        match self.sampler:
            case Sampler.QWEN2_VL:
                merged = self.merged_frames
                most = self._max_frames // merged * merged
                return floor(min(max(seconds * self._rate, self.min_frames), most) / merged) * merged
            case Sampler.QWEN3_VL:
                return min(max(int(seconds * self._rate), self.min_frames), self._max_frames)
            case Sampler.GLM4V:
                return even(max(1, floor(min(seconds, self.max_seconds) * self._rate)))
            case Sampler.GLM46V:
                return even(self._glm46v_frames(seconds))
            case Sampler.GLMGA:
                return even(self._glmga_frames(seconds))
            case Sampler.INTERNVL:
                return self.num_frames or max(1, int(seconds * self._rate))
            case Sampler.SMOLVLM:
                return max(1, min(round(self._rate * seconds), self._number))
            case Sampler.MINICPM_OCR | Sampler.MINICPMV:
                return min(ceil(seconds), self._max_frames)
            case _:  # of FIXED_SAMPLERS
                return self._number

    def indices(self, header: VideoHeader) -> list[int]:
        """The frames that are taken of a video, counted from 0. Raises InputError for one that the processor refuses,
        and for more pixels than are decoded."""
        found = self._limited(self._indices(header))
        if len(found) < self.merged_frames or not found:
            raise InputError(
                f"it has {counted(header.num_frames, 'frame')} in {header.seconds:g} s, of which the model's processor "
                f"takes {len(found)}; {self.merged_frames} or more are needed"
            )
        seen = header.within(self.max_pixels)
        pixels = len(set(found)) * seen.width * seen.height
        if pixels > MAX_DECODED_PIXELS:
            raise InputError(
                f"{len(set(found))} frames of {seen.width}x{seen.height} are {pixels:,} pixels, and at most "
                f"{MAX_DECODED_PIXELS:,} of a video are decoded; a smaller or shorter one is needed"
            )
        return found

    @property
    def _rate(self) -> float:
        if not self.fps or self.fps <= 0:
            raise InputError("its video processor says no frames a second; give --video-fps")
        return self.fps

    @property
    def _number(self) -> int:
        if self.num_frames is None:
            raise InputError("its video processor says no number of frames; give --video-frames")
        return self.num_frames

    @property
    def _max_frames(self) -> int:
        return self.max_frames if self.most_frames is None else min(self.max_frames, self.most_frames)

    def _of_list(self, header: VideoHeader) -> list[int]:
        """All of a list of frames, as processors take frames that were chosen before, or evenly as many as are allowed:
        no more than are taken of a video; one that is alone stands there often enough for a row of patches."""
        if self.sampler in LLAVA_SAMPLERS:
            return self._of_as_many(header)
        most = {Sampler.INTERNVL: self.most_frames, **dict.fromkeys(CLIP_SAMPLERS, self.num_frames)}
        found = evenly([*range(header.num_frames)], most.get(self.sampler, self._max_frames))
        return found + found[-1:] * (self.merged_frames - len(found))

    def _limited(self, indices: list[int]) -> list[int]:
        """As many of the frames as the user allows, evenly, where the processor has no limit of its own."""
        return evenly(indices, self.most_frames)

    def _indices(self, header: VideoHeader) -> list[int]:
        if header.is_listed:
            return self._of_list(header)
        match self.sampler:
            case Sampler.QWEN2_VL:
                return self._of_qwen2_vl(header)
            case Sampler.QWEN3_VL:
                wanted = int(header.num_frames / header.fps * self._rate)
                return linear(header.num_frames, min(max(wanted, self.min_frames), self._max_frames, header.num_frames))
            case Sampler.GLM4V:
                return self._of_glm4v(header)
            case Sampler.GLM46V:
                return once_and_even(self._of_glm46v(header))
            case Sampler.GLMGA:
                return once_and_even(self._of_glmga(header))
            case Sampler.INTERNVL:
                wanted = min(self.wanted_frames(header.num_frames / header.fps), header.num_frames)
                return steps(header.num_frames, wanted, first=header.num_frames / wanted / 2)
            case Sampler.SMOLVLM:
                return self._of_smolvlm(header)
            case Sampler.MINICPM_OCR | Sampler.MINICPMV:
                return self._of_minicpmv(header)
            case _:  # of FIXED_SAMPLERS
                return self._of_as_many(header)

    def _of_qwen2_vl(self, header: VideoHeader) -> list[int]:
        merged, total = self.merged_frames, header.num_frames
        most = min(self._max_frames, total) // merged * merged
        wanted = min(max(total / header.fps * self._rate, self.min_frames), most)
        return steps(total, floor(wanted / merged) * merged)

    def _of_glm4v(self, header: VideoHeader) -> list[int]:
        last = header.num_frames - 1
        if header.seconds <= self.max_seconds:
            number = max(1, floor(header.seconds * self._rate))
            return once_and_even([min(last, ceil(place * header.fps / self._rate)) for place in range(number)])
        number = int(self.max_seconds * self._rate)
        if number >= header.num_frames:
            return once_and_even([*range(header.num_frames)])
        step = header.seconds / (number - 1)
        return once_and_even([min(last, ceil(place * step * header.fps)) for place in range(number)])

    def _glm46v_frames(self, seconds: float) -> int:
        rate = next((rate for most, rate in GLM46V_RATES if seconds <= most), GLM46V_RATES[-1][1])
        return min(int(min(seconds, GLM46V_RATES[-1][0]) * rate * self.merged_frames), self.max_frames)

    def _glmga_frames(self, seconds: float) -> int:
        return min(int(seconds * self._rate), self.max_frames)

    def _of_glm46v(self, header: VideoHeader) -> list[int]:
        """One frame in each of equal spans of time, spread anew where that makes too many or too few."""
        total, wanted = header.num_frames, self._glm46v_frames(header.seconds)
        if total < wanted:
            return spread(0, total - 1, wanted)
        rate = next((rate for most, rate in GLM46V_RATES if header.seconds <= most), GLM46V_RATES[-1][1])
        span = 1 / (self.merged_frames * rate)
        return in_spans(total, wanted, header.fps, span=span, end=int(header.seconds))

    def _of_glmga(self, header: VideoHeader) -> list[int]:
        total, wanted, span = header.num_frames, self._glmga_frames(header.seconds), 1 / self._rate
        if total < wanted:
            return [floor(place * total / wanted) for place in range(wanted)]
        return in_spans(total, wanted, header.fps, span=span, end=header.seconds - span)

    def _of_smolvlm(self, header: VideoHeader) -> list[int]:
        """Evenly from the first frame to the last, or without a second at both ends."""
        first, last = 0, header.num_frames - 1
        if header.seconds - 2 * SKIPPED_SECONDS > self._number * self._rate:
            skipped = SKIPPED_SECONDS * header.fps
            first, last = int(skipped), min(int(header.num_frames - skipped), last)
        if first >= last:
            first, last = 0, header.num_frames - 1
        return sorted({*spread(first, last, self.wanted_frames(header.seconds))})

    def _of_minicpmv(self, header: VideoHeader) -> list[int]:
        """The first frame of each second; of a video with more seconds than frames are taken, evenly of its tenths of a
        second."""
        last, most = header.num_frames - 1, self._max_frames
        if header.seconds <= most:
            return [min(int(second * header.fps), last) for second in range(ceil(header.seconds))]
        times = [round(place * 0.1, 1) for place in range(int(header.seconds / 0.1))]
        places = range(len(times)) if len(times) <= most else spread(0, len(times) - 1, most)
        return [min(int(times[place] * header.fps), last) for place in places]

    def _of_as_many(self, header: VideoHeader) -> list[int]:
        """The same number of frames of every video."""
        if header.num_frames < self._number:
            raise InputError(
                f"it has {counted(header.num_frames, 'frame')}, and {self._number} of every video are taken; fewer "
                f"(--video-frames) or a longer one is needed"
            )
        return [place * header.num_frames // self._number for place in range(self._number)]


def frame_rule(
    sampler: Sampler,
    settings: FrameSettings,
    *,
    fps: float | None = None,
    most_frames: int | None = None,
    max_pixels: int | None = None,
) -> FrameRule:
    """The rule of a processor of this class; ``fps`` of each second, ``most_frames`` and ``max_pixels`` of a frame
    where the user says so. Raises InputError for what it has no use for."""
    if max_pixels is not None and sampler in (Sampler.INTERNVL, *CLIP_SAMPLERS):
        raise InputError(
            "--video-size with --data limits the pixels of frames, whose size the model's processor chooses itself; "
            "leave it off"
        )
    if sampler is Sampler.INTERNVL:
        fixed = settings.num_frames if fps is None else None
        return FrameRule(sampler=sampler, fps=fps or settings.fps, num_frames=fixed, most_frames=most_frames)
    if sampler in CLIP_SAMPLERS:
        return _clip_rule(sampler, settings, fps, most_frames)
    if sampler in BY_LENGTH and fps is not None:
        raise InputError(
            f"--video-fps is {fps:g}, but the processor of {BY_LENGTH[sampler]} goes by a video's length; leave it off"
        )
    if sampler in MINICPMV_SAMPLERS:
        return _minicpmv_rule(sampler, settings, most_frames, max_pixels)
    is_glm = sampler in GLM_SAMPLERS
    fixed_frames = {Sampler.GLM4V: GLM_MOST_FRAMES, Sampler.GLM46V: GLM46V_MOST_FRAMES}.get(sampler)
    default_frames = GLM46V_MOST_FRAMES if is_glm else QWEN_MOST_FRAMES
    return FrameRule(
        sampler=sampler,
        fps=fps or settings.fps or FRAMES_PER_SECOND,
        merged_frames=settings.merged_frames or 2,
        min_frames=1 if is_glm else settings.min_frames or QWEN_LEAST_FRAMES,
        max_frames=fixed_frames or settings.max_frames or default_frames,
        max_seconds=settings.max_seconds or GLM_MOST_SECONDS,
        most_frames=most_frames,
        max_pixels=max_pixels,
    )


def _clip_rule(sampler: Sampler, settings: FrameSettings, fps: float | None, most_frames: int | None) -> FrameRule:
    if sampler in FIXED_SAMPLERS and fps is not None:
        raise InputError(
            f"--video-fps is {fps:g}, but {FIXED_SAMPLERS[sampler]} takes videos of as many frames each; give "
            f"--video-frames"
        )
    own = settings.num_frames or (GEMMA4_FRAMES if sampler in GEMMA4_SAMPLERS else None)
    numbers = [number for number in (own, most_frames) if number is not None]
    return FrameRule(sampler=sampler, fps=fps or settings.fps, num_frames=min(numbers, default=None))


def _minicpmv_rule(
    sampler: Sampler, settings: FrameSettings, most_frames: int | None, max_pixels: int | None
) -> FrameRule:
    """Raises InputError where frames are put together into pictures of each second."""
    if settings.stacked_frames > 1:
        raise InputError(
            f"the model's video processor has stack_frames {settings.stacked_frames}: pictures put together of the "
            f"frames of a second are not planned; 1 is needed"
        )
    most = settings.max_frames or MINICPMV_MOST_FRAMES
    return FrameRule(sampler, None, max_frames=most, most_frames=most_frames, max_pixels=max_pixels)


def refuse_together(rule: FrameRule, headers: Sequence[VideoHeader], *, has_images: bool) -> None:
    """Raise InputError for what the processor does not take in one sample: InternVL's puts the videos into one tensor,
    SmolVLM's writes the pixels of videos over those of images."""
    if rule.sampler is Sampler.SMOLVLM and headers and has_images:
        raise InputError(
            "the sample shows images and videos, of which the model's processor keeps the videos alone; either have to "
            "go to another sample"
        )
    counts = {len(rule.indices(header)) for header in headers} if rule.sampler is Sampler.INTERNVL else set[int]()
    if len(counts) > 1:
        raise InputError(
            f"the sample's videos have {' and '.join(map(str, sorted(counts)))} frames, and the model's processor "
            f"takes several only where they have as many each"
        )
