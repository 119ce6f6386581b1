"""Tiny Hugging Face models, built from their configurations, with no dropout and no downloads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

Batch = dict[str, Any]
Build = tuple[Callable[[], nn.Module], Callable[[int, int], Batch]]
"""A function that makes the module, and one that makes a batch of a size and a length."""

_VOCABULARY = 99
_LAYERS = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4}
_DECODER = _LAYERS | {
    "vocab_size": _VOCABULARY,
    "intermediate_size": 64,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_ENCODER = _LAYERS | {
    "vocab_size": _VOCABULARY,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
}
_PAIR = {
    "vocab_size": _VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _without_dropout(config: Any) -> Any:
    """Every rate of dropout, of dropped layers and of masking at zero."""
    for name, value in list(vars(config).items()):
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
        elif hasattr(value, "to_dict"):
            _without_dropout(value)
    return config


def _module(kind: str, head: str, settings: dict[str, Any]) -> nn.Module:
    import transformers

    config = transformers.AutoConfig.for_model(kind, **(_TOKENS | settings))
    module: nn.Module = getattr(transformers, head)._from_config(_without_dropout(config))
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return module


# ---- batches -------------------------------------------------------------------------------------


def _text(size: int, length: int) -> Batch:
    tokens = torch.randint(3, _VOCABULARY, (size, length))
    mask = torch.ones(size, length, dtype=torch.long)
    mask[1::2, length * 3 // 4 :] = 0
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        "labels": tokens.masked_fill(mask == 0, -100),
    }


def _unmasked(size: int, length: int) -> Batch:
    tokens = torch.randint(3, _VOCABULARY, (size, length))
    return {"input_ids": tokens, "labels": tokens}


def _classified(size: int, length: int) -> Batch:
    batch = _text(size, length)
    return batch | {"labels": torch.randint(2, (size,))}


def _pair(size: int, length: int) -> Batch:
    labels = torch.randint(3, _VOCABULARY, (size, length // 2))
    return _text(size, length) | {"labels": labels}


def _image(side: int, size: int, _: int) -> Batch:
    return {"pixel_values": torch.randn(size, 3, side, side), "labels": torch.randint(2, (size,))}


def _segments(side: int, size: int, _: int) -> Batch:
    labels = torch.randint(2, (size, side, side))
    return {"pixel_values": torch.randn(size, 3, side, side), "labels": labels}


def _masked_image(side: int, size: int, _: int) -> Batch:
    return {
        "pixel_values": torch.randn(size, 3, side, side),
        "noise": torch.rand(size, (side // 4) ** 2),
    }


def _image_and_text(side: int, size: int, length: int) -> Batch:
    batch = _text(size, length)
    del batch["labels"]
    return batch | {"pixel_values": torch.randn(size, 3, side, side), "return_loss": True}


def _mel(size: int, length: int) -> Batch:
    return {
        "input_features": torch.randn(size, 8, 32),
        "labels": torch.randint(3, _VOCABULARY, (size, length // 2)),
    }


def _waveform(size: int, length: int) -> Batch:
    labels = torch.randint(3, _VOCABULARY, (size, 3))
    return {"input_values": torch.randn(size, 64 * length), "labels": labels}


def _series(size: int, _: int) -> Batch:
    return {"past_values": torch.randn(size, 16, 3), "future_values": torch.randn(size, 4, 3)}


# ---- the models ----------------------------------------------------------------------------------


def _decoder(kind: str, head: str, **settings: Any) -> Build:
    return partial(_module, kind, head, _DECODER | settings), _text


def _encoder(
    kind: str, head: str, batch: Callable[[int, int], Batch] = _text, **settings: Any
) -> Build:
    return partial(_module, kind, head, _ENCODER | settings), batch


def _other(kind: str, head: str, batch: Callable[[int, int], Batch], **settings: Any) -> Build:
    return partial(_module, kind, head, settings), batch


_IMAGE = {"image_size": 16, "patch_size": 4, "num_labels": 2, "intermediate_size": 64}
_CLIP_PART = _LAYERS | {"intermediate_size": 64, "projection_dim": 16}
_MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": _VOCABULARY, "state_size": 4}

TRANSFORMERS: dict[str, Build] = {
    "llama": _decoder("llama", "LlamaForCausalLM"),
    "mistral": _decoder("mistral", "MistralForCausalLM", sliding_window=8),
    "qwen2": _decoder("qwen2", "Qwen2ForCausalLM"),
    "gemma2": _decoder("gemma2", "Gemma2ForCausalLM", head_dim=8, sliding_window=8),
    "phi": _decoder("phi", "PhiForCausalLM", num_key_value_heads=4),
    "stablelm": _decoder("stablelm", "StableLmForCausalLM"),
    "opt": _decoder("opt", "OPTForCausalLM", ffn_dim=64, word_embed_proj_dim=32),
    "gpt-neox": _decoder("gpt_neox", "GPTNeoXForCausalLM"),
    "gptj": _other(
        "gptj",
        "GPTJForCausalLM",
        _text,
        vocab_size=_VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=64,
        rotary_dim=4,
    ),
    "bloom": _decoder("bloom", "BloomForCausalLM", n_layer=2, n_head=4),
    "falcon": _decoder("falcon", "FalconForCausalLM", alibi=False),
    "mixtral": _decoder("mixtral", "MixtralForCausalLM", num_local_experts=4),
    "qwen2-moe": _decoder(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    ),
    "mamba": _other("mamba", "MambaForCausalLM", _unmasked, **_MAMBA),
    "mamba2": _other(
        "mamba2",
        "Mamba2ForCausalLM",
        _unmasked,
        num_heads=8,
        head_dim=8,
        n_groups=2,
        chunk_size=4,
        **_MAMBA,
    ),
    "rwkv": _other(
        "rwkv",
        "RwkvForCausalLM",
        _unmasked,
        hidden_size=32,
        num_hidden_layers=2,
        vocab_size=_VOCABULARY,
        context_length=64,
    ),
    "xlnet": _other(
        "xlnet",
        "XLNetLMHeadModel",
        _text,
        vocab_size=_VOCABULARY,
        d_model=32,
        n_layer=2,
        n_head=4,
        d_inner=64,
    ),
    "roberta": _encoder("roberta", "RobertaForMaskedLM"),
    "albert": _encoder("albert", "AlbertForMaskedLM", embedding_size=16),
    "distilbert": _other(
        "distilbert",
        "DistilBertForMaskedLM",
        _text,
        vocab_size=_VOCABULARY,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
    ),
    "deberta-v2": _encoder(
        "deberta-v2",
        "DebertaV2ForMaskedLM",
        relative_attention=True,
        position_buckets=8,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
    ),
    "electra": _encoder(
        "electra", "ElectraForSequenceClassification", _classified, embedding_size=16
    ),
    "mpnet": _encoder("mpnet", "MPNetForMaskedLM"),
    "funnel": _other(
        "funnel",
        "FunnelForMaskedLM",
        _text,
        vocab_size=_VOCABULARY,
        block_sizes=[1, 1],
        num_decoder_layers=1,
        d_model=32,
        n_head=4,
        d_head=8,
        d_inner=64,
    ),
    "longformer": _encoder("longformer", "LongformerForMaskedLM", attention_window=[4, 4]),
    "fnet": _encoder("fnet", "FNetForMaskedLM", _unmasked),
    "bart": _other("bart", "BartForConditionalGeneration", _pair, **_PAIR),
    "pegasus": _other("pegasus", "PegasusForConditionalGeneration", _pair, **_PAIR),
    "whisper": _other(
        "whisper",
        "WhisperForConditionalGeneration",
        _mel,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=32,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **_PAIR,
    ),
    "wav2vec2": _encoder(
        "wav2vec2",
        "Wav2Vec2ForCTC",
        _waveform,
        conv_dim=[16, 16],
        conv_stride=[4, 4],
        conv_kernel=[8, 4],
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
        apply_spec_augment=False,
        ctc_zero_infinity=True,
    ),
    "deit": _other("deit", "DeiTForImageClassification", partial(_image, 16), **_LAYERS, **_IMAGE),
    "swin": _other(
        "swin",
        "SwinForImageClassification",
        partial(_image, 32),
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        num_labels=2,
    ),
    "convnext": _other(
        "convnext",
        "ConvNextForImageClassification",
        partial(_image, 32),
        hidden_sizes=[16, 32],
        depths=[2, 2],
        num_stages=2,
        num_labels=2,
    ),
    "segformer": _other(
        "segformer",
        "SegformerForSemanticSegmentation",
        partial(_segments, 32),
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[16, 32],
        num_attention_heads=[2, 4],
        mlp_ratios=[2, 2],
        patch_sizes=[7, 3],
        strides=[4, 2],
        decoder_hidden_size=16,
        num_labels=2,
    ),
    "vit-mae": _other(
        "vit_mae",
        "ViTMAEForPreTraining",
        partial(_masked_image, 16),
        decoder_hidden_size=32,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=64,
        **_LAYERS,
        **_IMAGE,
    ),
    "efficientnet": _other(
        "efficientnet",
        "EfficientNetForImageClassification",
        partial(_image, 32),
        image_size=32,
        in_channels=[32, 16],
        out_channels=[16, 24],
        kernel_sizes=[3, 5],
        strides=[1, 2],
        num_block_repeats=[1, 1],
        expand_ratios=[1, 4],
        depthwise_padding=[],
        hidden_dim=1280,
        width_coefficient=1.0,
        depth_coefficient=1.0,
        num_labels=2,
    ),
    "clip": _other(
        "clip",
        "CLIPModel",
        partial(_image_and_text, 16),
        text_config=_CLIP_PART | {"vocab_size": _VOCABULARY, "max_position_embeddings": 64},
        vision_config=_CLIP_PART | {"image_size": 16, "patch_size": 4},
        projection_dim=16,
    ),
    "patchtst": _other(
        "patchtst",
        "PatchTSTForPrediction",
        _series,
        num_input_channels=3,
        context_length=16,
        prediction_length=4,
        patch_length=4,
        patch_stride=4,
        d_model=32,
        ffn_dim=64,
        num_attention_heads=4,
        num_hidden_layers=2,
        loss="mse",
        scaling=None,
    ),
}
