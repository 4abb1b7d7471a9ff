"""One tiny model of every class of NeMo that can be built from a config alone: no download, no manifest.

Runs inside the NeMo environment. `ZOO` holds them by name; each is a class and a function that makes its config,
given a folder with a tokenizer.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from nemo_zoo_audio import aligner, bridge, codec, enhancement, flow, predictive, score, speaking, vocoder
from omegaconf import OmegaConf

LABELS = list("abcdefgh ")
ASR = "nemo.collections.asr"
WIDTH = 32


def preprocessor(**more):
    return {
        "_target_": f"{ASR}.modules.AudioToMelSpectrogramPreprocessor",
        "sample_rate": 16000,
        "normalize": "per_feature",
        "window_size": 0.025,
        "window_stride": 0.01,
        "features": 40,
        "n_fft": 512,
        "dither": 1e-5,
        "pad_to": 0,
        **more,
    }


def conformer(**more):
    return {
        "_target_": f"{ASR}.modules.ConformerEncoder",
        "feat_in": 40,
        "n_layers": 2,
        "d_model": WIDTH,
        "subsampling": "dw_striding",
        "subsampling_factor": 4,
        "subsampling_conv_channels": 8,
        "ff_expansion_factor": 2,
        "self_attention_model": "rel_pos",
        "n_heads": 2,
        "conv_kernel_size": 5,
        "dropout": 0.1,
        "dropout_att": 0.1,
        **more,
    }


def jasper(filters=16):
    block = {"filters": filters, "repeat": 1, "kernel": [5], "stride": [1], "dilation": [1], "dropout": 0.1}
    blocks = [{**block, "residual": residual, "separable": True} for residual in (False, True, False)]
    return {"_target_": f"{ASR}.modules.ConvASREncoder", "feat_in": 40, "activation": "relu", "jasper": blocks}


def audio(encoder=None, **more):
    return {"sample_rate": 16000, "preprocessor": preprocessor(), "encoder": encoder or conformer()} | more


def ctc_decoder(**more):
    return {
        "_target_": f"{ASR}.modules.ConvASRDecoder",
        "feat_in": WIDTH,
        "num_classes": len(LABELS),
        "vocabulary": LABELS,
        **more,
    }


def tokenizer(folder):
    """Return the config of a tokenizer of subwords, trained here on a few lines."""
    import sentencepiece

    model = Path(folder) / "tokenizer.model"
    if not model.exists():
        text = Path(folder) / "text.txt"
        words = [f"{one}{two}{three}" for one in "abcde" for two in "fghij" for three in "klmno"]
        text.write_text("\n".join(" ".join(words[start : start + 5]) for start in range(len(words) - 5)))
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(model)[:-6], vocab_size=48, character_coverage=1.0, minloglevel=2
        )
        vocabulary = [line.split("\t")[0] for line in (Path(folder) / "tokenizer.vocab").read_text().splitlines()]
        (Path(folder) / "vocab.txt").write_text("\n".join(vocabulary[3:]))
    return {"dir": str(folder), "type": "bpe"}


def transducer(**more):
    """Return prediction network, joint and loss; the loss in plain PyTorch, which needs neither CUDA nor a compiler."""
    return {
        "labels": LABELS,
        "model_defaults": {"enc_hidden": WIDTH, "pred_hidden": 24, "joint_hidden": 16},
        "decoder": {
            "_target_": f"{ASR}.modules.RNNTDecoder",
            "normalization_mode": None,
            "random_state_sampling": False,
            "blank_as_pad": True,
            "vocab_size": len(LABELS),
            "prednet": {"pred_hidden": 24, "pred_rnn_layers": 1, "dropout": 0.1},
        },
        "joint": {
            "_target_": f"{ASR}.modules.RNNTJoint",
            "log_softmax": None,
            "fuse_loss_wer": False,
            "fused_batch_size": 2,
            "jointnet": {"joint_hidden": 16, "activation": "relu", "dropout": 0.1},
        },
        "decoding": {"strategy": "greedy", "greedy": {"max_symbols": 5}},
        "loss": {"loss_name": "pytorch"},
        **more,
    }


def rnnt(folder):
    return audio(**transducer())


def rnnt_numba(folder):
    return audio(**transducer(loss={"loss_name": "warprnnt_numba"}))


def rnnt_fused(folder):
    made = transducer()
    return audio(**{**made, "joint": {**made["joint"], "fuse_loss_wer": True}})


def tdt(folder):
    made = transducer(
        loss={"loss_name": "tdt_pytorch", "tdt_pytorch_kwargs": {"durations": [0, 1, 2], "sigma": 0.02}},
        decoding={"strategy": "greedy", "model_type": "tdt", "durations": [0, 1, 2], "greedy": {"max_symbols": 5}},
    )
    return audio(**{**made, "joint": {**made["joint"], "num_extra_outputs": 3}})


def hybrid(folder):
    return audio(**transducer(), aux_ctc={"ctc_loss_weight": 0.3, "decoder": ctc_decoder()})


def rnnt_bpe(folder):
    return audio(**transducer(), tokenizer=tokenizer(folder))


def hybrid_bpe(folder):
    aux = {"ctc_loss_weight": 0.3, "decoder": ctc_decoder(vocabulary=[], num_classes=-1)}
    return audio(**transducer(), aux_ctc=aux, tokenizer=tokenizer(folder))


def prompted(folder):
    defaults = {
        "enc_hidden": WIDTH, "pred_hidden": 24, "joint_hidden": 16,
        "initialize_prompt_feature": True, "num_prompts": 4, "prompt_dictionary": {"en": 0, "de": 1},
    }  # fmt: skip
    return audio(**transducer(model_defaults=defaults), tokenizer=tokenizer(folder))


def ctc(folder):
    return audio(labels=LABELS, decoder=ctc_decoder())


def ctc_bpe(folder):
    return audio(decoder=ctc_decoder(vocabulary=[], num_classes=-1), tokenizer=tokenizer(folder))


def inter_ctc(folder):
    return audio(labels=LABELS, decoder=ctc_decoder(), interctc={"loss_weights": [0.3], "apply_at_layers": [0]})


def multitask(folder):
    block = {"hidden_size": 24, "inner_size": 48, "num_layers": 1, "num_attention_heads": 2, "max_sequence_length": 64}
    drops = {"ffn_dropout": 0.1, "attn_score_dropout": 0.1, "attn_layer_dropout": 0.1}
    return audio(
        prompt_format="plain",
        restore_timestamps_model=False,
        tokenizer=tokenizer(folder),
        model_defaults={"asr_enc_hidden": WIDTH, "lm_enc_hidden": 24, "lm_dec_hidden": 24},
        transf_encoder={
            "_target_": f"{ASR}.modules.transformer.transformer_encoders.TransformerEncoder",
            "num_layers": 1, "hidden_size": 24, "inner_size": 48, "num_attention_heads": 2, **drops,
        },
        transf_decoder={
            "_target_": f"{ASR}.modules.transformer.get_nemo_transformer",
            "model_name": None, "pretrained": False, "encoder": None, "pre_ln_final_layer_norm": True,
            "config_dict": {**block, **drops, "embedding_dropout": 0.0, "learn_positional_encodings": False},
        },
        head={
            "_target_": f"{ASR}.parts.submodules.token_classifier.TokenClassifier",
            "hidden_size": 24, "num_layers": 1, "activation": "relu", "log_softmax": True,
        },
        decoding={"strategy": "beam", "beam": {"beam_size": 1}},
        loss={"_target_": "nemo.collections.common.losses.smoothed_cross_entropy.SmoothedCrossEntropyLoss"},
    )  # fmt: skip


def speaker(folder):
    decoder = {
        "_target_": f"{ASR}.modules.SpeakerDecoder",
        "feat_in": 16,
        "num_classes": 5,
        "pool_mode": "attention",
        "emb_sizes": [12],
        "angular": True,
    }
    loss = {"_target_": f"{ASR}.losses.angularloss.AngularSoftmaxLoss", "scale": 30, "margin": 0.2}
    return audio(jasper(), decoder=decoder, loss=loss)


def classification(folder):
    decoder = {"_target_": f"{ASR}.modules.ConvASRDecoderClassification", "feat_in": 16, "num_classes": 3}
    return audio(jasper(), labels=list("abc"), decoder=decoder)


def frames(folder):
    decoder = {
        "_target_": "nemo.collections.common.parts.MultiLayerPerceptron",
        "hidden_size": 16,
        "num_classes": 2,
        "num_layers": 1,
        "log_softmax": False,
    }
    return audio(jasper(), labels=["0", "1"], decoder=decoder)


def sortformer(folder):
    return audio(
        max_num_of_spks=4,
        model_defaults={"fc_d_model": WIDTH, "tf_d_model": 24},
        sortformer_modules={
            "_target_": f"{ASR}.modules.sortformer_modules.SortformerModules",
            "num_spks": 4, "dropout_rate": 0.1, "fc_d_model": WIDTH, "tf_d_model": 24,
        },
        transformer_encoder={
            "_target_": f"{ASR}.modules.transformer.transformer_encoders.TransformerEncoder",
            "num_layers": 1, "hidden_size": 24, "inner_size": 48, "num_attention_heads": 2,
            "attn_score_dropout": 0.1, "attn_layer_dropout": 0.1, "ffn_dropout": 0.1, "hidden_act": "relu",
            "pre_ln": False,
        },
        loss={"_target_": f"{ASR}.losses.bce_loss.BCELoss", "weight": None, "reduction": "mean"},
    )  # fmt: skip


def contrastive(folder):
    decoder = {
        "_target_": f"{ASR}.modules.ConvASRDecoderReconstruction",
        "feat_in": WIDTH,
        "feat_hidden": 16,
        "feat_out": 16,
        "stride_layers": 0,
    }
    loss = {
        "_target_": f"{ASR}.losses.ContrastiveLoss",
        "in_dim": 40,
        "proj_dim": 16,
        "combine_time_steps": 4,
        "num_negatives": 8,
        "quantized_targets": True,
        "codebook_size": 20,
        "num_groups": 2,
        "sample_from_same_utterance_only": True,
        "sample_from_non_masked": False,
    }
    augment = {
        "_target_": f"{ASR}.modules.MaskedPatchAugmentation",
        "freq_masks": 2,
        "freq_width": 5,
        "patch_size": 16,
        "mask_patches": 3,
    }
    return audio(decoder=decoder, loss=loss, spec_augment=augment)


def voices(folder):
    heads = {"speaker_embed_size": 16, "num_speakers": 4, "content_embed_size": 16}
    return audio(downstream_heads={"task_names": ["speaker_verification", "content"], **heads})


def masked_tokens(folder):
    books = {"num_classes": 64, "squeeze_single": False}
    return audio(
        **{**books, "num_books": 1, "preprocessor": preprocessor(pad_to=16)},
        spec_augment={"_target_": f"{ASR}.modules.SpectrogramAugmentation", "freq_masks": 0, "time_masks": 0},
        masking={
            "_target_": f"{ASR}.modules.RandomBlockMasking",
            "block_size": 10, "mask_prob": 0.1, "feat_in": 40, "freeze": True, "allow_overlap": True,
        },
        quantizer={
            "_target_": f"{ASR}.modules.RandomProjectionVectorQuantizer",
            "feat_in": 40, "code_dim": 16, "num_books": 1, "dist_fn": "l2", "freeze": True, "combine_time_steps": 4,
            **books,
        },
        decoder={"_target_": f"{ASR}.modules.MultiSoftmaxDecoder", "feat_in": WIDTH, "num_decoders": 1, **books},
        loss={
            "_target_": f"{ASR}.losses.MultiMLMLoss",
            "combine_time_steps": 4, "mask_threshold": 0.8, "num_decoders": 1, "squeeze_single": False,
        },
    )  # fmt: skip


def hybrid_prompted(folder):
    return {**hybrid_bpe(folder), "model_defaults": prompted(folder)["model_defaults"]}


def talkers(folder):
    return {**rnnt_bpe(folder), "spk_kernel_type": "ff", "spk_kernel_layers": [0, 1], "add_bg_spk_kernel": True}


def attention(folder):
    drops = {"ffn_dropout": 0.1, "attn_score_dropout": 0.1, "attn_layer_dropout": 0.1}
    block = {"num_layers": 1, "hidden_size": 24, "inner_size": 48, "num_attention_heads": 2, **drops}
    return audio(
        tokenizer=tokenizer(folder),
        label_smoothing=0.0,
        transf_encoder=block,
        transf_decoder={**block, "max_sequence_length": 64, "embedding_dropout": 0.1, "pre_ln_final_layer_norm": True},
        head={"num_layers": 1, "activation": "relu", "log_softmax": True, "dropout": 0.0, "use_transformer_init": True},
        beam_search={"beam_size": 1, "len_pen": 0.0, "max_generation_delta": 20},
    )


def regression(folder):
    decoder = {"_target_": f"{ASR}.modules.ConvASRDecoderClassification", "feat_in": 16, "num_classes": 1}
    return audio(jasper(), is_regression_task=True, labels=[], decoder=decoder)


ZOO = {
    "ctc": (f"{ASR}.models.EncDecCTCModel", ctc),
    "inter_ctc": (f"{ASR}.models.EncDecCTCModel", inter_ctc),
    "ctc_bpe": (f"{ASR}.models.EncDecCTCModelBPE", ctc_bpe),
    "rnnt": (f"{ASR}.models.EncDecRNNTModel", rnnt),
    "rnnt_fused": (f"{ASR}.models.EncDecRNNTModel", rnnt_fused),
    "rnnt_numba": (f"{ASR}.models.EncDecRNNTModel", rnnt_numba),
    "tdt": (f"{ASR}.models.EncDecRNNTModel", tdt),
    "rnnt_bpe": (f"{ASR}.models.EncDecRNNTBPEModel", rnnt_bpe),
    "prompted": (f"{ASR}.models.EncDecRNNTBPEModelWithPrompt", prompted),
    "hybrid": (f"{ASR}.models.EncDecHybridRNNTCTCModel", hybrid),
    "hybrid_bpe": (f"{ASR}.models.EncDecHybridRNNTCTCBPEModel", hybrid_bpe),
    "hybrid_prompted": (f"{ASR}.models.EncDecHybridRNNTCTCBPEModelWithPrompt", hybrid_prompted),
    "talkers": (f"{ASR}.models.EncDecMultiTalkerRNNTBPEModel", talkers),
    "end": (f"{ASR}.models.asr_eou_models.EncDecRNNTBPEEOUModel", rnnt_bpe),
    "hybrid_end": (f"{ASR}.models.asr_eou_models.EncDecHybridRNNTCTCBPEEOUModel", hybrid_bpe),
    "attention": (f"{ASR}.models.EncDecTransfModelBPE", attention),
    "multitask": (f"{ASR}.models.EncDecMultiTaskModel", multitask),
    "speaker": (f"{ASR}.models.EncDecSpeakerLabelModel", speaker),
    "classification": (f"{ASR}.models.EncDecClassificationModel", classification),
    "frames": (f"{ASR}.models.EncDecFrameClassificationModel", frames),
    "regression": (f"{ASR}.models.classification_models.EncDecRegressionModel", regression),
    "sortformer": (f"{ASR}.models.SortformerEncLabelModel", sortformer),
    "contrastive": (f"{ASR}.models.SpeechEncDecSelfSupervisedModel", contrastive),
    "masked_tokens": (f"{ASR}.models.EncDecMaskedTokenPredModel", masked_tokens),
    "enhancement": ("nemo.collections.audio.models.EncMaskDecAudioToAudioModel", enhancement),
    "predictive": ("nemo.collections.audio.models.PredictiveAudioToAudioModel", predictive),
    "flow": ("nemo.collections.audio.models.FlowMatchingAudioToAudioModel", flow),
    "score": ("nemo.collections.audio.models.ScoreBasedGenerativeAudioToAudioModel", score),
    "bridge": ("nemo.collections.audio.models.SchroedingerBridgeAudioToAudioModel", bridge),
    "codec": ("nemo.collections.tts.models.AudioCodecModel", codec),
    "vocoder": ("nemo.collections.tts.models.HifiGanModel", vocoder),
    "speaking": ("nemo.collections.tts.models.FastPitchModel", speaking),
    "aligner": ("nemo.collections.tts.models.AlignerModel", aligner),
    "voices": ("nemo.collections.tts.models.ssl_tts.SSLDisentangler", voices),
}

# Those without a loss to be had, by the names of their classes: they run their optimisers themselves, or take no
# waveform to make a batch of.
GENERAL = {
    "codec": "AudioCodecModel",
    "voices": "SSLDisentangler",
    "vocoder": "HifiGanModel",
    "speaking": "FastPitchModel",
    "aligner": "AlignerModel",
}

# Where a fault is planted: in parts that only the loss reaches too. Those not named here are only recorded.
PLANTED = {
    "ctc": "encoder.layers.1.feed_forward1.linear1",
    "ctc_bpe": "decoder.decoder_layers.0",
    "rnnt": "joint.joint_net.2",
    "rnnt_fused": "joint.enc",
    "rnnt_numba": "decoder.prediction.embed",
    "rnnt_bpe": "encoder.layers.1.self_attn.linear_pos",
    "prompted": "prompt_kernel.2",
    "hybrid": "ctc_decoder.decoder_layers.0",
    "hybrid_bpe": "joint.pred",
    "hybrid_prompted": "prompt_kernel.0",
    "talkers": "spk_kernels.1.0",
    "end": "joint.pred",
    "hybrid_end": "ctc_decoder.decoder_layers.0",
    "attention": "transf_decoder._decoder.layers.0.third_sub_layer.dense_out",
    "multitask": "transf_decoder._decoder.layers.0.second_sub_layer.key_net",
    "speaker": "decoder._pooling.attention_layer.2",
    "classification": "encoder.encoder.1.mconv.1.conv",
    "frames": "decoder.layer0",
    "regression": "encoder.encoder.2.mconv.1.conv",
    "sortformer": "transformer_encoder.layers.0.second_sub_layer.dense_in",
    "contrastive": "decoder_ssl.decoder_layers.2",
    "masked_tokens": "encoder.layers.1.conv.depthwise_conv",
    "enhancement": "mask_estimator.fc",
    "predictive": "estimator.ncsnpp.input_blocks.1.middle_conv",
    "flow": "estimator.ncsnpp.output_blocks.0.middle_conv",
    "score": "estimator.ncsnpp.input_blocks.1.middle_conv",
    "bridge": "estimator.ncsnpp.output_blocks.0.middle_conv",
}


def build(name, folder):
    """Return the model of a name."""
    target, config = ZOO[name]
    module, _, kind = target.rpartition(".")
    made = getattr(importlib.import_module(module), kind)
    state = importlib.import_module("nemo.utils.app_state").AppState()
    described = config(folder)
    state.is_model_being_restored = "train_ds" in described  # NeMo then leaves the dataset alone that it must name
    try:
        return made(cfg=OmegaConf.create({**described, "target": target}), trainer=None)
    finally:
        state.is_model_being_restored = False
