"""Networks of diffusers by small configurations with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def cases() -> dict[str, Callable[[], tuple[Any, dict[str, Any]]]]:
    """Return networks with named example inputs, by class."""
    import diffusers
    import torch

    drawn, step = torch.randn, torch.tensor([3, 7])
    blocks = {"block_out_channels": (16, 32), "norm_num_groups": 8}
    down = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    text = {"encoder_hidden_states": drawn(2, 5, 32)}
    picture = {"sample": drawn(2, 4, 16, 16), "timestep": step}
    heads = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1}
    latent = {"hidden_states": drawn(2, 4, 8, 8), "timestep": step}
    table: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "UNet2DModel": (
            "",
            {
                "sample_size": 16,
                "in_channels": 4,
                "out_channels": 4,
                **blocks,
                "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
                "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
                "layers_per_block": 1,
                "attention_head_dim": 8,
            },
            picture,
        ),
        "UNet2DConditionModel": (
            "",
            {
                "sample_size": 16,
                **blocks,
                "cross_attention_dim": 32,
                "layers_per_block": 1,
                "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
                "attention_head_dim": 8,
                "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
            },
            picture | text,
        ),
        "UNet3DConditionModel": (
            "",
            {
                "sample_size": 8,
                **blocks,
                "cross_attention_dim": 32,
                "layers_per_block": 1,
                "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
                "attention_head_dim": 8,
                "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
            },
            {"sample": drawn(2, 4, 3, 8, 8), "timestep": step} | text,
        ),
        "UVit2DModel": (
            "",
            {
                "hidden_size": 32,
                "vocab_size": 24,
                "codebook_size": 20,
                "block_out_channels": 32,
                "in_channels": 32,
                "cond_embed_dim": 16,
                "encoder_hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "block_num_heads": 2,
                "num_res_blocks": 1,
                "micro_cond_encode_dim": 8,
                "micro_cond_embed_dim": 40,
            },
            {
                "input_ids": torch.randint(0, 20, (2, 8, 8)),
                "pooled_text_emb": drawn(2, 16),
                "micro_conds": torch.rand(2, 5),
            }
            | text,
        ),
        "AutoencoderKL": ("", {**blocks, **down}, {"sample": drawn(2, 3, 16, 16)}),
        "AutoencoderKL-decode": ("decode", {**blocks, **down}, {"z": drawn(2, 4, 8, 8)}),
        "AutoencoderTiny": (
            "",
            {
                "encoder_block_out_channels": (8, 8),
                "decoder_block_out_channels": (8, 8),
                "num_encoder_blocks": (1, 1),
                "num_decoder_blocks": (1, 1),
            },
            {"sample": torch.rand(2, 3, 16, 16)},
        ),
        "AutoencoderDC": (
            "",
            {
                "in_channels": 3,
                "latent_channels": 4,
                "attention_head_dim": 8,
                "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
                "encoder_block_out_channels": (8, 8),
                "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
                "decoder_block_out_channels": (8, 8),
                "encoder_layers_per_block": (1, 1),
                "decoder_layers_per_block": (1, 1),
                "encoder_qkv_multiscales": ((), (5,)),
                "decoder_qkv_multiscales": ((), (5,)),
            },
            {"sample": drawn(2, 3, 16, 16)},
        ),
        "AutoencoderOobleck": (
            "decode",
            {
                "encoder_hidden_size": 8,
                "downsampling_ratios": [2, 4],
                "channel_multiples": [1, 2],
                "decoder_channels": 8,
                "decoder_input_channels": 4,
                "audio_channels": 1,
            },
            {"z": drawn(2, 4, 6)},
        ),
        "VQModel": (
            "",
            {**blocks, **down, "latent_channels": 4, "num_vq_embeddings": 16},
            {"sample": drawn(2, 3, 16, 16)},
        ),
        "AsymmetricAutoencoderKL": (
            "",
            {
                "down_block_types": ("DownEncoderBlock2D",) * 2,
                "down_block_out_channels": (16, 32),
                "up_block_types": ("UpDecoderBlock2D",) * 2,
                "up_block_out_channels": (16, 32),
                "norm_num_groups": 8,
            },
            {"sample": drawn(2, 3, 16, 16)},
        ),
        "ControlNetModel": (
            "",
            {
                **blocks,
                "cross_attention_dim": 32,
                "layers_per_block": 1,
                "attention_head_dim": 8,
                "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
                "conditioning_embedding_out_channels": (8, 16),
            },
            picture | text | {"controlnet_cond": torch.rand(2, 3, 32, 32)},
        ),
        "DiTTransformer2DModel": (
            "",
            {**heads, "sample_size": 8, "num_embeds_ada_norm": 10, "norm_num_groups": 8},
            latent | {"class_labels": torch.tensor([1, 4])},
        ),
        "PixArtTransformer2DModel": (
            "",
            {
                **heads,
                "sample_size": 8,
                "cross_attention_dim": 32,
                "caption_channels": 32,
                "use_additional_conditions": False,
                "norm_num_groups": 8,
            },
            latent | text | {"added_cond_kwargs": {"resolution": None, "aspect_ratio": None}},
        ),
        "SD3Transformer2DModel": (
            "",
            {
                **heads,
                "sample_size": 8,
                "in_channels": 4,
                "out_channels": 4,
                "joint_attention_dim": 32,
                "caption_projection_dim": 32,
                "pooled_projection_dim": 16,
                "pos_embed_max_size": 8,
            },
            latent | text | {"pooled_projections": drawn(2, 16)},
        ),
        "FluxTransformer2DModel": (
            "",
            {
                **heads,
                "in_channels": 4,
                "num_single_layers": 1,
                "joint_attention_dim": 32,
                "pooled_projection_dim": 16,
                "axes_dims_rope": (4, 4, 8),
            },
            {
                "hidden_states": drawn(2, 16, 4),
                "timestep": torch.rand(2),
                "pooled_projections": drawn(2, 16),
                "img_ids": torch.rand(16, 3).round(),
                "txt_ids": torch.zeros(5, 3),
            }
            | text,
        ),
        "AuraFlowTransformer2DModel": (
            "",
            {
                "sample_size": 8,
                "num_mmdit_layers": 1,
                "num_single_dit_layers": 1,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "joint_attention_dim": 32,
                "caption_projection_dim": 32,
                "pos_embed_max_size": 64,
            },
            latent | text | {"timestep": torch.rand(2)},
        ),
        "SanaTransformer2DModel": (
            "",
            {
                **heads,
                "in_channels": 4,
                "out_channels": 4,
                "sample_size": 8,
                "num_cross_attention_heads": 2,
                "cross_attention_head_dim": 16,
                "cross_attention_dim": 32,
                "caption_channels": 32,
            },
            latent | text,
        ),
        "WanTransformer3DModel": (
            "",
            {
                **heads,
                "in_channels": 4,
                "out_channels": 4,
                "text_dim": 32,
                "freq_dim": 16,
                "ffn_dim": 32,
                "rope_max_seq_len": 32,
            },
            {"hidden_states": drawn(2, 4, 2, 8, 8), "timestep": step} | text,
        ),
        "LTXVideoTransformer3DModel": (
            "",
            {**heads, "in_channels": 4, "out_channels": 4, "cross_attention_dim": 32, "caption_channels": 32},
            {
                "hidden_states": drawn(2, 18, 4),
                "timestep": step,
                "num_frames": 2,
                "height": 3,
                "width": 3,
                "encoder_attention_mask": torch.ones(2, 5),
            }
            | text,
        ),
        "Lumina2Transformer2DModel": (
            "",
            {
                "sample_size": 8,
                "in_channels": 4,
                "hidden_size": 24,
                "num_layers": 1,
                "num_refiner_layers": 1,
                "num_attention_heads": 3,
                "num_kv_heads": 1,
                "multiple_of": 8,
                "axes_dim_rope": (4, 2, 2),
                "axes_lens": (16, 16, 16),
                "cap_feat_dim": 32,
            },
            latent | text | {"encoder_attention_mask": torch.ones(2, 5, dtype=torch.bool), "timestep": torch.rand(2)},
        ),
        "PriorTransformer": (
            "",
            {**heads, "embedding_dim": 16, "num_embeddings": 7},
            {
                "hidden_states": drawn(2, 16),
                "timestep": step,
                "proj_embedding": drawn(2, 16),
                "encoder_hidden_states": drawn(2, 7, 16),
            },
        ),
        "StableCascadeUNet": (
            "",
            {
                "in_channels": 4,
                "out_channels": 4,
                "timestep_ratio_embedding_dim": 8,
                "conditioning_dim": 16,
                "block_out_channels": (16, 16),
                "num_attention_heads": (-1, 2),
                "down_num_layers_per_block": (1, 1),
                "up_num_layers_per_block": (1, 1),
                "down_blocks_repeat_mappers": (1, 1),
                "up_blocks_repeat_mappers": (1, 1),
                "block_types_per_layer": (("SDCascadeResBlock", "SDCascadeTimestepBlock"),) * 2,
                "clip_text_pooled_in_channels": 16,
                "clip_seq": 2,
                "kernel_size": 3,
                "patch_size": 1,
                "switch_level": [True],
                "self_attn": True,
            },
            {"sample": drawn(2, 4, 8, 8), "timestep_ratio": torch.rand(2), "clip_text_pooled": drawn(2, 1, 16)},
        ),
    }

    class Decoder(torch.nn.Module):  # type: ignore[misc]
        """The method of a model as a module."""

        def __init__(self, model: Any, name: str) -> None:
            super().__init__()
            self.model, self.name = model, name

        def forward(self, z: Any) -> Any:
            """Call the method."""
            return getattr(self.model, self.name)(z, return_dict=False)[0]

    def build(name: str) -> Callable[[], tuple[Any, dict[str, Any]]]:
        def make() -> tuple[Any, dict[str, Any]]:
            torch.manual_seed(0)
            method, options, inputs = table[name]
            model = getattr(diffusers, name.partition("-")[0])(**options).eval()
            return (Decoder(model, method).eval(), inputs) if method else (model, inputs)

        return make

    return {name: build(name) for name in table if hasattr(diffusers, name.partition("-")[0])}
