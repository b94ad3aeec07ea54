"""Models of the library ``diffusers``, and a denoising loop for each of its schedulers."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any
from typing import cast

import torch
from torch import nn

from pytest_torchlens.zoo.errors import ZooError
from pytest_torchlens.zoo.inputs import InputSpec
from pytest_torchlens.zoo.inputs import TensorSpec
from pytest_torchlens.zoo.own import MembersProvider

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Mapping
    from types import ModuleType

    Denoise = Callable[[torch.Tensor, Any], torch.Tensor]
    """Takes a sample and the time, and returns what a scheduler calls the model output."""


MODELS = (
    "AceStepTransformer1DModel AllegroTransformer3DModel AnimaTextConditioner AnyFlowFARTransformer3DModel "
    "AnyFlowTransformer3DModel AsymmetricAutoencoderKL AuraFlowTransformer2DModel AutoencoderDC AutoencoderKL "
    "AutoencoderKLAllegro AutoencoderKLCogVideoX AutoencoderKLCosmos AutoencoderKLFlux2 AutoencoderKLHunyuanImage "
    "AutoencoderKLHunyuanImageRefiner AutoencoderKLHunyuanVideo AutoencoderKLHunyuanVideo15 AutoencoderKLKVAE "
    "AutoencoderKLKVAEAudio AutoencoderKLKVAEVideo AutoencoderKLLTX2Audio AutoencoderKLLTX2Video "
    "AutoencoderKLLTXVideo AutoencoderKLMagvit AutoencoderKLMiniMaxH3 AutoencoderKLMiniMaxH3Audio AutoencoderKLMochi "
    "AutoencoderKLQwenImage AutoencoderKLQwenImage21 AutoencoderKLTemporalDecoder AutoencoderKLWan AutoencoderOobleck "
    "AutoencoderRAE AutoencoderSAME AutoencoderTiny AutoencoderVidTok BriaFibo2Transformer2DModel "
    "BriaFiboTransformer2DModel BriaTransformer2DModel ChromaTransformer2DModel ChronoEditTransformer3DModel "
    "CogVideoXTransformer3DModel CogView3PlusTransformer2DModel CogView4Transformer2DModel ConsisIDTransformer3DModel "
    "ConsistencyDecoderVAE ControlNetModel ControlNetUnionModel ControlNetXSAdapter Cosmos3AVAEAudioTokenizer "
    "Cosmos3OmniTransformer CosmosControlNetModel CosmosTransformer3DModel DiTTransformer2DModel "
    "DreamLiteTransformer2DModel DreamLiteUNetModel EasyAnimateTransformer3DModel ErnieImageTransformer2DModel "
    "Flux2Transformer2DModel Flux3Transformer2DModel FluxControlNetModel FluxMultiControlNetModel "
    "FluxTransformer2DModel GlmImageTransformer2DModel HeliosTransformer3DModel HiDreamImageTransformer2DModel "
    "HunyuanDiT2DControlNetModel HunyuanDiT2DModel HunyuanDiT2DMultiControlNetModel HunyuanImageTransformer2DModel "
    "HunyuanVideo15Transformer3DModel HunyuanVideoFramepackTransformer3DModel HunyuanVideoTransformer3DModel "
    "I2VGenXLUNet Ideogram4Transformer2DModel JoyImageEditPlusTransformer3DModel JoyImageEditTransformer3DModel "
    "Kandinsky3UNet Kandinsky5Transformer3DModel Kandinsky6SRLatentUpscalerBank Kandinsky6SRTransformer3DModel "
    "Kandinsky6SRVAE Kandinsky6Transformer3DModel Krea2Transformer2DModel LTX2VideoDiffusionDecoderModel "
    "LTX2VideoTransformer3DModel LTXVideoTransformer3DModel LatteTransformer3DModel LongCatAudioDiTTransformer "
    "LongCatAudioDiTVae LongCatImageTransformer2DModel Lumina2Transformer2DModel LuminaNextDiT2DModel MMAudioVAE "
    "MMAudioVocoder MiniMaxH3Transformer3DModel MiniMaxMusic3ConditionEncoder MiniMaxMusic3RVQDepthDecoder "
    "MiniMaxMusic3Transformer1DModel MiniMaxMusic3Vocoder MochiTransformer3DModel MotifVideoTransformer3DModel "
    "MotionAdapter MultiAdapter MultiControlNetModel NucleusMoEImageTransformer2DModel OmniGenTransformer2DModel "
    "OvisImageTransformer2DModel PRXTransformer2DModel PixArtTransformer2DModel PriorTransformer "
    "QwenImage21Transformer2DModel QwenImageControlNetModel QwenImageMultiControlNetModel QwenImageTransformer2DModel "
    "RFD4ProteinaAutoencoder RFD4ProteinaTransformer SD3ControlNetModel SD3MultiControlNetModel SD3Transformer2DModel "
    "SanaControlNetModel SanaTransformer2DModel SanaVideoTransformer3DModel SanaWMLTX2RefinerTransformer3DModel "
    "SanaWMTransformer3DModel SkyReelsV2Transformer3DModel SparseControlNetModel StableAudio3DiTModel "
    "StableAudioDiTModel StableCascadeUNet T2IAdapter T5FilmDecoder Transformer2DModel TransformerTemporalModel "
    "UNet1DModel UNet2DConditionModel UNet2DModel UNet3DConditionModel UNetControlNetXSModel UNetMotionModel "
    "UNetSpatioTemporalConditionModel UVit2DModel VQModel WanAnimate2Transformer3DModel WanAnimateTransformer3DModel "
    "WanTransformer3DModel WanVACETransformer3DModel ZImageControlNetModel ZImageTransformer2DModel"
).split()
"""Models of diffusers 0.42."""


VOCABULARY = 16
PIXELS = TensorSpec((1, 2, 8, 8), low=-1.0)
TOKENS = TensorSpec((1, 16), "int64", 0, VOCABULARY - 1)
"""The last token is the mask of those schedulers that have one."""


class DiffusersProvider(MembersProvider):
    """The models as they are, and for each scheduler the loop in which it calls a small denoiser."""

    def __init__(self, library: ModuleType) -> None:
        loops = [name for name in dir(library) if name.endswith("Scheduler") and not name.startswith("Flax")]
        super().__init__(library, MODELS + loops)

    def family(self, name: str) -> str:
        """Return the library's folder of the model, such as ``transformers``."""
        folder, *rest = getattr(self._module, name).__module__.split(".")[1:]
        return str(rest[0] if folder == "models" else folder)

    def build(self, name: str, kwargs: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
        """Return the model or the loop; `kwargs` are those of the model or scheduler.

        For a scheduler, ``kwargs`` may have the key ``set_timesteps``: arguments of that method.
        """
        if not name.endswith("Scheduler"):
            return super().build(name, kwargs, pretrained=pretrained)
        if pretrained:
            raise ZooError("a denoising loop has no pretrained weights: set 'weights: random' or 'weights: init'")
        arguments = dict(kwargs)
        timesteps = {"num_inference_steps": 4, **arguments.pop("set_timesteps", {})}
        scheduler = getattr(self._module, name)(**arguments)
        denoiser = TokenDenoiser() if name in OF_TOKENS else small_unet(self._module)
        return DenoisingLoop(denoiser, scheduler, timesteps)

    def default_input(self, model: nn.Module, kwargs: Mapping[str, Any]) -> InputSpec:
        """Return noise or tokens for a loop; raise for a model."""
        if not isinstance(model, DenoisingLoop):
            return super().default_input(model, kwargs)
        return TOKENS if isinstance(model.denoiser, TokenDenoiser) else PIXELS


class DenoisingLoop(nn.Module):
    """A model whose forward calls a denoiser in all steps of a scheduler.

    Parameters
    ----------
    denoiser
        Called with a sample and the time.
    scheduler
        A scheduler of diffusers.
    timesteps
        Arguments of its method ``set_timesteps``.
    """

    def __init__(self, denoiser: nn.Module, scheduler: Any, timesteps: Mapping[str, Any]) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.scheduler = scheduler
        self.timesteps = timesteps

    def forward(self, sample: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        """Return the sample after all steps; `more` are further arguments of each step."""
        self.scheduler.set_timesteps(**self.timesteps)
        loop: Callable[..., torch.Tensor] = LOOPS.get(type(self.scheduler).__name__, _loop)
        return loop(self._denoise, self.scheduler, sample, *more)

    def _denoise(self, sample: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        output = self.denoiser(sample, time)
        return cast("torch.Tensor", getattr(output, "sample", output))


class TokenDenoiser(nn.Module):
    """Returns the logits of each token of a text, by one layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, tokens: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return cast("torch.Tensor", self.head(self.layer(self.embedding(tokens) + torch.sin(time))))


def small_unet(library: ModuleType) -> nn.Module:
    """Return a UNet for images of two channels and eight pixels a side, with one level of attention."""
    unet = library.UNet2DModel(
        sample_size=8,
        in_channels=2,
        out_channels=2,
        block_out_channels=(8, 8),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return cast("nn.Module", unet)


def _loop(denoise: Denoise, scheduler: Any, sample: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
    """Run the loop that most schedulers share."""
    sample = sample * scheduler.init_noise_sigma if hasattr(scheduler, "init_noise_sigma") else sample
    for time in scheduler.timesteps:
        scaled = scheduler.scale_model_input(sample, time) if hasattr(scheduler, "scale_model_input") else sample
        sample = scheduler.step(denoise(scaled, time), time, sample, *more).prev_sample
    return sample


def _with_former_output(denoise: Denoise, scheduler: Any, sample: torch.Tensor) -> torch.Tensor:
    former = former_time = None
    for time in scheduler.timesteps:
        sample, former = scheduler.step(denoise(sample, time), former, time, former_time, sample, return_dict=False)
        former_time = time
    return sample


def _without_last_time(denoise: Denoise, scheduler: Any, sample: torch.Tensor) -> torch.Tensor:
    """Run the loop of a scheduler whose last time is the end, which has no step."""
    for time in scheduler.timesteps[:-1]:
        times = time.expand(len(sample))
        sample = scheduler.step(denoise(sample, times), times, sample).prev_sample
    return sample


def _with_noise_added_again(denoise: Denoise, scheduler: Any, sample: torch.Tensor) -> torch.Tensor:
    noise, times = sample, scheduler.timesteps
    known = {"dmd_noisy_tensor": noise, "dmd_sigmas": scheduler.sigmas, "dmd_timesteps": times, "all_timesteps": times}
    for index, time in enumerate(times):
        output = denoise(sample, time)
        video = scheduler.step(output, time, sample, cur_sampling_step=index, **known).prev_sample
        sample = video.reshape(noise.shape)
    return sample


def _with_two_evaluations(denoise: Denoise, scheduler: Any, sample: torch.Tensor) -> torch.Tensor:
    sample = sample * scheduler.init_noise_sigma
    for time in scheduler.timesteps:
        sigma, next_sigma = scheduler.schedule[time], scheduler.schedule[time - 1] if time > 0 else 0
        noisy, sigma = scheduler.add_noise_to_input(sample, sigma)
        output = (sigma / 2) * denoise((noisy + 1) / 2, sigma / 2)
        step = scheduler.step(output, sigma, next_sigma, noisy)
        if next_sigma != 0:
            output = (next_sigma / 2) * denoise((step.prev_sample + 1) / 2, next_sigma / 2)
            step = scheduler.step_correct(output, sigma, next_sigma, noisy, step.prev_sample, step.derivative)
        sample = step.prev_sample
    return sample


def _with_corrections(denoise: Denoise, scheduler: Any, sample: torch.Tensor) -> torch.Tensor:
    scheduler.set_sigmas(len(scheduler.timesteps))
    sample = sample * scheduler.init_noise_sigma
    for time, sigma in zip(scheduler.timesteps, scheduler.sigmas, strict=True):
        sample = scheduler.step_correct(denoise(sample, sigma), sample).prev_sample
        sample = scheduler.step_pred(denoise(sample, sigma), time, sample).prev_sample
    return sample


def _with_jumps_back(
    denoise: Denoise, scheduler: Any, sample: torch.Tensor, image: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    former_time = scheduler.timesteps[0] + 1
    for time in scheduler.timesteps:
        if time < former_time:
            sample = scheduler.step(denoise(sample, time), time, sample, image, mask).prev_sample
        else:
            sample = scheduler.undo_step(sample, former_time)
        former_time = time
    return sample


def _with_policies(denoise: Denoise, scheduler: Any, sample: torch.Tensor) -> torch.Tensor:
    """Run the loop of a scheduler that takes several outputs of each pixel, side by side in the last dimension."""
    for time in scheduler.timesteps:
        output = denoise(sample, time).repeat_interleave(scheduler.config.n_grid, -1)
        sample = scheduler.step(output, time, sample).prev_sample
    return sample


def _of_classes(denoise: Denoise, scheduler: Any, sample: torch.Tensor) -> torch.Tensor:
    """Run the loop of a scheduler that takes the probabilities of all tokens but the mask, in dimension 1."""
    for time in scheduler.timesteps:
        logits = denoise(sample, time)[..., : VOCABULARY - 1]
        sample = scheduler.step(logits.log_softmax(-1).transpose(1, 2), time, sample).prev_sample
    return sample


OF_TOKENS = (
    "AmusedScheduler BlockRefinementScheduler DiscreteDDIMScheduler EntropyBoundScheduler VQDiffusionScheduler"
).split()
LOOPS: dict[str, Callable[..., torch.Tensor]] = {
    "CogVideoXDPMScheduler": _with_former_output,
    "DDPMWuerstchenScheduler": _without_last_time,
    "HeliosDMDScheduler": _with_noise_added_again,
    "KarrasVeScheduler": _with_two_evaluations,
    "PiflowScheduler": _with_policies,
    "RePaintScheduler": _with_jumps_back,
    "SCMScheduler": _without_last_time,
    "ScoreSdeVeScheduler": _with_corrections,
    "VQDiffusionScheduler": _of_classes,
}
"""Loops of schedulers that take steps of their own; all others share one."""
