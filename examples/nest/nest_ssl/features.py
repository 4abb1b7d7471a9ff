"""From a waveform to normalised log mel features."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

LOG_GUARD = 2**-24  # added before the logarithm
STD_GUARD = 1e-5  # added to a deviation before dividing by it
LINEAR_UNTIL, HERTZ_PER_MEL, LOG_STEP = 1000.0, 200.0 / 3, math.log(6.4) / 27  # Slaney's mel scale


class AudioToMelSpectrogramPreprocessor(nn.Module):
    """Turn a batch of waveforms into features and their number of frames; nothing here is trained."""

    def __init__(
        self,
        sample_rate: int = 16000,
        window_size: float = 0.02,
        window_stride: float = 0.01,
        window: str = "hann",
        n_fft: int | None = None,
        preemph: float | None = 0.97,
        features: int = 64,
        lowfreq: float = 0,
        highfreq: float | None = None,
        dither: float = 1e-5,
        pad_to: int = 16,
        pad_value: float = 0,
    ) -> None:
        super().__init__()
        self.featurizer = FilterbankFeatures(
            window_length=int(window_size * sample_rate),
            hop_length=int(window_stride * sample_rate),
            window=window,
            n_fft=n_fft,
            preemph=preemph,
            dither=dither,
            pad_to=pad_to,
            pad_value=pad_value,
            sample_rate=sample_rate,
            features=features,
            band=(lowfreq, highfreq or sample_rate / 2),
        )

    @torch.no_grad()
    def forward(self, input_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (batch, mel, frames) and the number of frames of each row."""
        features, frames = self.featurizer(input_signal.to(torch.float32), length)
        return features.to(self.featurizer.fb.dtype), frames  # computed in float32 whatever the model's dtype


class FilterbankFeatures(nn.Module):
    """Dither, emphasise, transform, filter, take the logarithm, normalise each mel band, pad."""

    window: Tensor
    fb: Tensor

    def __init__(
        self,
        window_length: int,
        hop_length: int,
        window: str,
        n_fft: int | None,
        preemph: float | None,
        dither: float,
        pad_to: int,
        pad_value: float,
        sample_rate: int,
        features: int,
        band: tuple[float, float],
    ) -> None:
        super().__init__()
        self.win_length, self.hop_length = window_length, hop_length
        self.n_fft = n_fft or 2 ** math.ceil(math.log2(window_length))
        self.preemph, self.dither = preemph, dither
        self.pad_to, self.pad_value = pad_to, pad_value
        make_window = getattr(torch, f"{window}_window")
        self.register_buffer("window", make_window(window_length, periodic=False))
        self.register_buffer("fb", make_mel_filters(sample_rate, self.n_fft, features, band)[None])

    def forward(self, x: Tensor, seq_len: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (batch, mel, frames) and the number of frames of each row."""
        frames = (seq_len + self.n_fft // 2 * 2 - self.n_fft) // self.hop_length
        if self.training and self.dither > 0:
            x = x + self.dither * torch.randn_like(x)  # NeMo adds it to the caller's own tensor
        if self.preemph is not None:
            x = torch.cat((x[:, :1], x[:, 1:] - self.preemph * x[:, :-1]), dim=1)
            x = x.masked_fill(~mask_until(seq_len, x.shape[1]), 0.0)
        spectrum = torch.stft(
            x,
            n_fft=self.n_fft,
            hop_length=self.hop_length,
            win_length=self.win_length,
            window=self.window.float(),
            center=True,
            pad_mode="constant",
            return_complex=True,
        )
        # the square of a root: NeMo computes it so, and the last bit depends on it
        power = torch.view_as_real(spectrum).pow(2).sum(-1).sqrt().pow(2)
        mel = torch.log(self.fb.to(power.dtype) @ power + LOG_GUARD)
        is_valid = mask_until(frames, mel.shape[-1])[:, None]
        mel = normalize_bands(mel, is_valid).masked_fill(~is_valid, self.pad_value)
        missing = -mel.shape[-1] % self.pad_to if self.pad_to > 0 else 0
        return functional.pad(mel, (0, missing), value=self.pad_value), frames


def mask_until(lengths: Tensor, size: int) -> Tensor:
    """Return a mask (batch, size) that is True before the length of each row."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def normalize_bands(mel: Tensor, is_valid: Tensor) -> Tensor:
    """Return each mel band with mean 0 and deviation 1 over the frames that are valid."""
    count = is_valid.sum(2)
    mean = torch.where(is_valid, mel, 0.0).sum(2) / count
    centered = torch.where(is_valid, mel - mean[..., None], 0.0)
    deviation = (centered.pow(2).sum(2) / (count - 1.0)).sqrt()
    deviation = deviation.masked_fill(deviation.isnan(), 0.0) + STD_GUARD  # NaN: a row of a single frame
    return (mel - mean[..., None]) / deviation[..., None]


def make_mel_filters(sample_rate: int, n_fft: int, features: int, band: tuple[float, float]) -> Tensor:
    """Return triangular filters (mel, frequencies) of equal area, in float32."""
    low, high = (hertz_to_mel(frequency) for frequency in band)
    mels = torch.linspace(low, high, features + 2, dtype=torch.float64)
    hertz = torch.where(
        mels < LINEAR_UNTIL / HERTZ_PER_MEL,
        HERTZ_PER_MEL * mels,
        LINEAR_UNTIL * torch.exp(LOG_STEP * (mels - LINEAR_UNTIL / HERTZ_PER_MEL)),
    )
    frequencies = torch.arange(n_fft // 2 + 1, dtype=torch.float64) * sample_rate / n_fft
    slopes = hertz[:, None] - frequencies
    rising = -slopes[:-2] / hertz.diff()[:-1, None]
    falling = slopes[2:] / hertz.diff()[1:, None]
    filters = torch.minimum(rising, falling).clamp_min(0).float()
    return (filters * (2.0 / (hertz[2:] - hertz[:-2]))[:, None]).float()


def hertz_to_mel(frequency: float) -> float:
    """Return a frequency on Slaney's scale: linear up to 1000 Hz, logarithmic above."""
    if frequency < LINEAR_UNTIL:
        return frequency / HERTZ_PER_MEL
    return LINEAR_UNTIL / HERTZ_PER_MEL + math.log(frequency / LINEAR_UNTIL) / LOG_STEP
