"""The part of the zoo that makes audio: enhancement, codecs, vocoders, speech from text."""

from __future__ import annotations

ASR = "nemo.collections.asr"


def spectra():
    sizes = {"fft_length": 128, "hop_length": 64}
    return {
        "sample_rate": 16000,
        "encoder": {"_target_": "nemo.collections.audio.modules.transforms.AudioToSpectrogram", **sizes},
        "decoder": {"_target_": "nemo.collections.audio.modules.transforms.SpectrogramToAudio", **sizes},
    }


def enhancement(folder):
    return {
        **spectra(),
        "mask_estimator": {
            "_target_": "nemo.collections.audio.modules.masking.MaskEstimatorRNN",
            "num_outputs": 1, "num_subbands": 65, "num_features": 16, "num_layers": 1, "bidirectional": True,
        },
        "mask_processor": {"_target_": "nemo.collections.audio.modules.masking.MaskReferenceChannel", "ref_channel": 0},
        "loss": {"_target_": "nemo.collections.audio.losses.SDRLoss", "scale_invariant": True},
        "metrics": {},
    }  # fmt: skip


def estimator(inputs):
    return {
        "_target_": "nemo.collections.audio.parts.submodules.ncsnpp.SpectrogramNoiseConditionalScoreNetworkPlusPlus",
        "in_channels": inputs, "out_channels": 1, "conditioned_on_time": inputs > 1,
        "num_resolutions": 2, "num_res_blocks": 1, "channels": [8, 8, 8], "attention_resolutions": [], "fir_size": 3
    }  # fmt: skip


def predictive(folder):
    made = {**spectra(), "estimator": estimator(1), "normalize_input": True, "metrics": {}}
    return {**made, "loss": {"_target_": "nemo.collections.audio.losses.MSELoss"}}


def flow(folder):
    base = "nemo.collections.audio.parts.submodules.flow"
    return {
        **spectra(),
        "estimator": estimator(2),
        "flow": {"_target_": f"{base}.OptimalTransportFlow", "sigma_start": 1.0, "sigma_end": 1e-4},
        "sampler": {"_target_": f"{base}.ConditionalFlowMatchingEulerSampler", "num_steps": 2, "time_min": 1e-8,
                    "time_max": 1.0},
        "normalize_input": True, "p_cond": 0.9, "time_min": 1e-8, "time_max": 1.0,
        "loss": {"_target_": "nemo.collections.audio.losses.MSELoss", "ndim": 4},
        "metrics": {},
    }  # fmt: skip


def score(folder):
    base = "nemo.collections.audio.parts.submodules.diffusion"
    return {
        **spectra(),
        "estimator": estimator(2),
        "sde": {"_target_": f"{base}.OrnsteinUhlenbeckVarianceExplodingSDE", "stiffness": 1.5, "std_min": 0.05,
                "std_max": 0.5},
        "sampler": {"_target_": f"{base}.PredictorCorrectorSampler", "num_steps": 1},
        "normalize_input": True,
        "loss": {"_target_": "nemo.collections.audio.losses.MSELoss", "ndim": 4},
        "metrics": {},
    }  # fmt: skip


def bridge(folder):
    base = "nemo.collections.audio.parts.submodules.schroedinger_bridge"
    return {
        **spectra(),
        "estimator": estimator(2),
        "estimator_output": "data_prediction",
        "noise_schedule": {"_target_": f"{base}.SBNoiseScheduleVE", "k": 2.6, "c": 0.4, "time_min": 1e-4},
        "sampler": {"_target_": f"{base}.SBSampler", "time_min": 1e-4, "num_steps": 1},
        "normalize_input": True,
        "loss_encoded": {"_target_": "nemo.collections.audio.losses.MSELoss", "ndim": 4},
        "loss_time": {"_target_": "nemo.collections.audio.losses.MAELoss"},
        "loss_time_weight": 0.001,
        "metrics": {},
    }  # fmt: skip


def codec(folder):
    tts = "nemo.collections.tts"
    return {
        "sample_rate": 16000,
        "samples_per_frame": 16,
        "loss_resolutions": [[64, 16, 64]],
        "mel_loss_dims": [8],
        "commit_loss_scale": 0.0,
        "audio_encoder": {
            "_target_": f"{tts}.modules.audio_codec_modules.HiFiGANEncoder",
            "encoded_dim": 8, "base_channels": 8, "down_sample_rates": [4, 4],
        },
        "audio_decoder": {
            "_target_": f"{tts}.modules.audio_codec_modules.HiFiGANDecoder",
            "input_dim": 8, "base_channels": 16, "up_sample_rates": [4, 4],
        },
        "vector_quantizer": {
            "_target_": f"{tts}.modules.audio_codec_modules.GroupFiniteScalarQuantizer",
            "num_groups": 2, "num_levels_per_group": [5, 5, 5, 5],
        },
        "generator_loss": {"_target_": f"{tts}.losses.audio_codec_loss.GeneratorSquaredLoss"},
        "discriminator_loss": {"_target_": f"{tts}.losses.audio_codec_loss.DiscriminatorSquaredLoss"},
    }  # fmt: skip


def vocoder(folder):
    tts = "nemo.collections.tts"
    return {
        "preprocessor": {
            "_target_": f"{ASR}.parts.preprocessing.features.FilterbankFeatures",
            "sample_rate": 16000, "nfilt": 40, "n_window_size": 256, "n_window_stride": 64, "n_fft": 256,
            "lowfreq": 0, "highfreq": 8000, "pad_to": 0, "log": True, "dither": 0.0,
        },
        "generator": {
            "_target_": f"{tts}.modules.hifigan_modules.Generator",
            "resblock": 1, "upsample_rates": [8, 8], "upsample_kernel_sizes": [16, 16],
            "upsample_initial_channel": 16, "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]],
            "initial_input_size": 40,
        },
        "train_ds": {"dataset": {"_target_": f"{tts}.data.dataset.VocoderDataset"}},
    }  # fmt: skip


BANDS = 20
CHARACTERS = "nemo.collections.common.tokenizers.text_to_speech.tts_tokenizers.EnglishCharsTokenizer"


def speech_features():
    return {
        "_target_": f"{ASR}.modules.AudioToMelSpectrogramPreprocessor",
        "features": BANDS, "sample_rate": 16000, "n_window_size": 256, "n_window_stride": 64, "window_size": None,
        "window_stride": None, "n_fft": 256, "normalize": None, "dither": 0.0, "pad_to": 1,
    }  # fmt: skip


def alignment():
    return {
        "_target_": "nemo.collections.tts.modules.aligner.AlignmentEncoder",
        "n_text_channels": 16,
        "n_mel_channels": BANDS,
    }


def speaking(folder):
    tts = "nemo.collections.tts.modules"
    block = {
        "n_layer": 1, "n_head": 1, "d_model": 16, "d_head": 8, "d_inner": 32, "kernel_size": 3, "dropout": 0.1,
        "dropatt": 0.1, "dropemb": 0.0,
    }  # fmt: skip
    predictor = {"_target_": f"{tts}.fastpitch.TemporalPredictor", "input_size": 16, "filter_size": 16,
                 "kernel_size": 3, "dropout": 0.1, "n_layers": 1}  # fmt: skip
    return {
        "learn_alignment": True,
        "n_speakers": 1,
        "symbols_embedding_dim": 16,
        "n_mel_channels": BANDS,
        "max_token_duration": 8,
        "pitch_embedding_kernel_size": 3,
        "text_tokenizer": {"_target_": CHARACTERS},
        "preprocessor": speech_features(),
        "alignment_module": alignment(),
        "input_fft": {"_target_": f"{tts}.transformer.FFTransformerEncoder", **block, "d_embed": 16},
        "output_fft": {"_target_": f"{tts}.transformer.FFTransformerDecoder", **block},
        "duration_predictor": predictor,
        "pitch_predictor": predictor,
        "train_ds": {"dataset": {"_target_": "nemo.collections.tts.data.dataset.TTSDataset"}},
    }


def aligner(folder):
    return {
        "symbols_embedding_dim": 16,
        "bin_loss_start_ratio": 0.2,
        "bin_loss_warmup_epochs": 10,
        "text_tokenizer": {"_target_": CHARACTERS},
        "preprocessor": speech_features(),
        "alignment_encoder": alignment(),
    }
