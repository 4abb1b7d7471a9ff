"""The whole model: from a clean and a noisy waveform to the log probabilities of the clean one's tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nest_ssl.config import Config, ConfigError, build_module
from nest_ssl.conformer import ConformerEncoder
from nest_ssl.decoder import MultiMLMLoss, MultiSoftmaxDecoder
from nest_ssl.features import AudioToMelSpectrogramPreprocessor
from nest_ssl.masking import RandomBlockMasking
from nest_ssl.quantizer import RandomProjectionVectorQuantizer

Output = tuple[Tensor, Tensor, Tensor, Tensor]


class Nest(nn.Module):
    """NeMo's EncDecDenoiseMaskedTokenPredModel."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        if config.get("mask_position", "pre_conv") != "pre_conv":
            raise ConfigError(f"mask_position is {config['mask_position']!r}, and the port masks pre_conv")
        self.config = config
        self.preprocessor = build_module(AudioToMelSpectrogramPreprocessor, config["preprocessor"])
        self.quantizer = build_module(RandomProjectionVectorQuantizer, config["quantizer"])
        self.mask_processor = build_module(RandomBlockMasking, config["masking"])
        self.encoder = build_module(ConformerEncoder, config["encoder"])
        self.decoder = build_module(MultiSoftmaxDecoder, config["decoder"])
        self.loss = build_module(MultiMLMLoss, config["loss"])

    def forward(
        self,
        input_signal: Tensor,
        input_signal_length: Tensor,
        noisy_input_signal: Tensor,
        noisy_input_signal_length: Tensor,
        apply_mask: bool | Tensor = False,
    ) -> Output:
        """Return log probabilities, their lengths, what was masked, and the tokens to be predicted."""
        clean, _ = self.preprocessor(input_signal=input_signal, length=input_signal_length)
        noisy, frames = self.preprocessor(input_signal=noisy_input_signal, length=noisy_input_signal_length)
        _, tokens = self.quantizer(input_signal=clean)
        masks = torch.zeros_like(noisy)
        if apply_mask:
            noisy, masks = self.mask_processor(input_feats=noisy, input_lengths=frames)
        encoded, encoded_length = self.encoder(audio_signal=noisy, length=frames)
        return self.decoder(encoder_output=encoded), encoded_length, masks, tokens

    def compute_loss(self, output: Output) -> Tensor:
        """Return the loss of an output."""
        log_probs, lengths, masks, tokens = output
        return self.loss(masks=masks, decoder_outputs=log_probs, targets=tokens, decoder_lengths=lengths)
