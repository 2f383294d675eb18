"""The models of the zoo: their names, builders, small sizes and inputs."""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

Group = Literal["torch.nn", "timm", "transformers", "torchvision", "spandrel", "smp", "diffusers"]
GROUPS: tuple[Group, ...] = get_args(Group)


@dataclass(frozen=True)
class Entry:
    """A model of the zoo, as `jaxsr.check` takes it."""

    group: Group
    name: str
    """The library's name of the model, which the row has."""
    model: str
    """`--model` of `jaxsr.check`."""
    args: dict[str, Any]
    """Its `--model-options`."""
    inputs: tuple[tuple[str, ...], ...] = ()
    """Alternatives for `--input`, of which the first that torch accepts is used. None: the
    library's description."""


def entries(group: Group, folder: Path) -> Iterator[Entry]:
    """The models of one library.

    Args:
      group: which.
      folder: configurations of transformers are written here.

    Raises:
      ImportError: the library cannot be imported.
    """
    return _LISTS[group](folder)


_RNN = {"input_size": 4, "hidden_size": 6, "batch_first": True}
_ATTENTION = {"d_model": 16, "nhead": 2, "batch_first": True}
_TORCH_NN: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("Transformer", {**_ATTENTION, "num_encoder_layers": 1, "num_decoder_layers": 1,
                     "dim_feedforward": 32}, ("2,5,16", "2,4,16")),
    ("TransformerEncoderLayer", _ATTENTION, ("2,5,16",)),
    ("TransformerDecoderLayer", _ATTENTION, ("2,5,16", "2,4,16")),
    ("MultiheadAttention", {"embed_dim": 16, "num_heads": 2, "batch_first": True},
     ("2,5,16", "2,5,16", "2,5,16")),
    ("LSTM", {**_RNN, "num_layers": 2, "bidirectional": True}, ("2,7,4",)),
    ("GRU", {**_RNN, "num_layers": 2}, ("2,7,4",)),
    ("RNN", _RNN, ("2,7,4",)),
    ("LSTMCell", {"input_size": 4, "hidden_size": 6}, ("2,4",)),
    ("GRUCell", {"input_size": 4, "hidden_size": 6}, ("2,4",)),
    ("RNNCell", {"input_size": 4, "hidden_size": 6}, ("2,4",)),
    ("EmbeddingBag", {"num_embeddings": 12, "embedding_dim": 6}, ("int64:3,5:12",)),
    ("Bilinear", {"in1_features": 4, "in2_features": 5, "out_features": 3}, ("6,4", "6,5")),
    ("AdaptiveLogSoftmaxWithLoss", {"in_features": 8, "n_classes": 12, "cutoffs": [4]},
     ("6,8", "int64:6:12")),
)  # fmt: skip


def _torch_nn(folder: Path) -> Iterator[Entry]:
    for name, args, inputs in _TORCH_NN:
        yield Entry("torch.nn", name, f"torch.nn:{name}", args, (inputs,))


_SMALL_IMAGES = (("2,3,64,64",), ("2,3,128,128",))
_TIMM_SMALL = (
    "test_", "atto", "femto", "pico", "nano", "xxs", "xx_small", "tiny", "_xs", "small", "_s",
    "_0", "b0", "18", "t0", "m0", "_n", "_t",
)  # fmt: skip
"""Parts of names, smallest first; counting parameters would build every variant."""


def _timm(folder: Path) -> Iterator[Entry]:
    timm = importlib.import_module("timm")
    for family in timm.list_modules():
        names = timm.list_models(module=family)
        if names:
            name = min(names, key=lambda n: (_rank(n), len(n)))
            # Built for one size of image, it is built for a small one; crossvit's two sizes of
            # patches divide no small one.
            is_fixed = timm.get_pretrained_cfg(name).fixed_input_size and family != "crossvit"
            args = {"img_size": 64} if is_fixed else {}
            yield Entry("timm", family, f"timm:{name}", args, (*_SMALL_IMAGES, ()))


def _rank(name: str) -> int:
    ranks = (i for i, part in enumerate(_TIMM_SMALL) if part in name)
    return next(ranks, len(_TIMM_SMALL))


_TORCHVISION = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s",
    "googlenet", "inception_v3", "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small",
    "regnet_x_400mf", "regnet_y_400mf", "resnet18", "resnext50_32x4d", "shufflenet_v2_x0_5",
    "squeezenet1_0", "swin_t", "swin_v2_t", "vgg11_bn", "vit_b_32", "wide_resnet50_2",
    "fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large",
    "r3d_18", "s3d", "mvit_v1_b", "swin3d_t", "raft_small",
    "fasterrcnn_mobilenet_v3_large_320_fpn", "fcos_resnet50_fpn", "keypointrcnn_resnet50_fpn",
    "maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn", "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
)  # fmt: skip
_VIDEOS = (("1,3,8,64,64",), ("1,3,16,112,112",), ("1,3,16,224,224",))
_FRAME_PAIRS = (("1,3,128,128", "1,3,128,128"),)


def _torchvision(folder: Path) -> Iterator[Entry]:
    models = importlib.import_module("torchvision.models")
    for name in _TORCHVISION:
        module = models.get_model_builder(name).__module__
        inputs: tuple[tuple[str, ...], ...] = (*_SMALL_IMAGES, ())
        if ".video" in module:
            inputs = _VIDEOS
        elif ".optical_flow" in module:
            inputs = _FRAME_PAIRS
        elif ".detection" in module:
            inputs = ()
        yield Entry("torchvision", name, f"torchvision:{name}", {}, inputs)


_SWIN = {"window_size": 8, "depths": [2], "num_heads": [2], "embed_dim": 16, "upscale": 2,
         "upsampler": "pixelshuffle"}  # fmt: skip
_SPANDREL: dict[str, dict[str, Any]] = {
    "Compact:Compact": {"num_feat": 16, "num_conv": 2},
    "SwiftSRGAN:SwiftSRGAN": {"num_channels": 16, "num_blocks": 2},
    "HAT:HAT": {"depths": [2], "num_heads": [2], "embed_dim": 32, "window_size": 8,
                "compress_ratio": 4, "squeeze_factor": 8},
    "GRL:GRL": {"embed_dim": 16, "depths": [2], "num_heads_window": [2], "num_heads_stripe": [2],
                "img_size": 32, "window_size": 8},
    "Swin2SR:Swin2SR": _SWIN,
    "SwinIR:SwinIR": _SWIN,
    "RestoreFormer:RestoreFormer": {"ch": 32, "ch_mult": [1, 2], "num_res_blocks": 1,
                                    "attn_resolutions": [16], "resolution": 32,
                                    "head_size": 2},
    "OmniSR:OmniSR": {"num_feat": 16, "res_num": 1, "block_num": 1},
    "SCUNet:SCUNet": {"config": [1, 1, 1, 1, 1, 1, 1], "dim": 64},
    "FBCNN:FBCNN": {"nc": [8, 8, 8, 512], "nb": 1},
    "Uformer:Uformer": {"img_size": 128, "embed_dim": 8, "depths": [1] * 9,
                        "num_heads": [1] * 9},
    "RGT:RGT": {"depth": [2], "num_heads": [2], "embed_dim": 16, "split_size": [8, 8]},
    "DAT:DAT": {"depth": [2], "num_heads": [2], "embed_dim": 16, "split_size": [8, 8]},
    "CRAFT:CRAFT": {"depths": [2], "num_heads": [2], "embed_dim": 16},
    "KBNet:KBNet_s": {"width": 8, "middle_blk_num": 1, "enc_blk_nums": [1, 1],
                      "dec_blk_nums": [1, 1]},
    "DITN:DITN": {"dim": 12, "UFONE_blocks": 1, "ITL_blocks": 1, "SAL_blocks": 1},
    "MMRealSR:MMRealSR": {"num_in_ch": 3, "num_out_ch": 3, "num_feat": 16, "num_block": 1,
                          "num_grow_ch": 8},
    "SPAN:SPAN": {"num_in_ch": 3, "num_out_ch": 3, "feature_channels": 12},
    "RealCUGAN:UpCunet2x": {},
    "SAFMN:SAFMN": {"dim": 16, "n_blocks": 2},
    "SAFMNBCIE:SAFMNBCIE": {"dim": 16, "n_blocks": 2, "num_layers": 2},
    "DCTLSA:DCTLSA": {"in_nc": 3, "nf": 15, "num_modules": 6},
    "FFTformer:FFTformer": {"dim": 8, "num_blocks": [1, 1, 1], "num_refinement_blocks": 1},
    "NAFNet:NAFNet": {"width": 8, "middle_blk_num": 1, "enc_blk_nums": [1, 1],
                      "dec_blk_nums": [1, 1]},
    "ATD:ATD": {"depths": [2], "num_heads": [2], "embed_dim": 16, "window_size": 8,
                "category_size": 64, "num_tokens": 16},
    "MixDehazeNet:MixDehazeNet": {"embed_dims": [8, 16, 32, 16, 8], "depths": [1] * 5},
    "DRUNet:DRUNet": {"nc": [8, 8, 8, 8], "nb": 1},
    "DnCNN:DnCNN": {"nc": 16, "nb": 4},
    "DRCT:DRCT": {"depths": [2], "num_heads": [2], "embed_dim": 32, "window_size": 8, "gc": 8},
    "ESRGAN:ESRGAN": {"num_filters": 16, "num_blocks": 1},
    "PLKSR:PLKSR": {"dim": 16, "n_blocks": 2, "kernel_size": 7, "split_ratio": 0.25},
    "PLKSR:RealPLKSR": {"dim": 16, "n_blocks": 2, "kernel_size": 7, "split_ratio": 0.25},
    "RetinexFormer:RetinexFormer": {"n_feat": 8, "num_blocks": [1, 1, 1]},
    "HVICIDNet:HVICIDNet": {"channels": [8, 8, 16, 32], "heads": [1, 2, 4, 8]},
    "SeemoRe:SeemoRe": {"embedding_dim": 16, "num_layers": 2},
    "MoSR:MoSR": {"n_block": 2, "dim": 16},
    "MoESR:MoESR": {"dim": 16, "n_blocks": 2, "n_block": 1},
    "RCAN:RCAN": {"n_resgroups": 1, "n_resblocks": 2, "n_feats": 16, "reduction": 4},
    "FDAT:FDAT": {"embed_dim": 16, "num_groups": 1, "depth_per_group": 2, "num_heads": 2},
    "LaMa:LaMa": {"in_nc": 4},
    "AuraSR:AuraSR": {"dim": 8, "image_size": 64, "input_image_size": 16, "unconditional": True,
                      "style_network": {"dim_in": 8, "dim_out": 8, "depth": 1},
                      "up_dim_mults": [1, 2, 2], "down_dim_mults": [2],
                      "full_attn": [False, False, True], "attn_depths": [1, 1, 1],
                      "mid_attn_depth": 1},
    "IPT:IPT": {"n_feats": 8, "num_heads": 2, "num_layers": 1},
}  # fmt: skip
_RESTORER_INPUTS = (("1,3,32,32",), ("1,1,32,32",), ("1,3,64,64",), ("1,3,128,128",),
                    ("1,3,48,48",), ("1,4,32,32",), ("1,3,32,32", "1,1,32,32"))  # fmt: skip


def _spandrel(folder: Path) -> Iterator[Entry]:
    importlib.import_module("spandrel")
    for name, args in _SPANDREL.items():
        module, _, kind = name.partition(":")
        yield Entry("spandrel", kind, f"spandrel.architectures.{module}:{kind}", args,
                    _RESTORER_INPUTS)  # fmt: skip


def _smp(folder: Path) -> Iterator[Entry]:
    library = importlib.import_module("segmentation_models_pytorch")
    for model in library._MODEL_ARCHITECTURES:
        encoder = {"Segformer": "mit_b0", "DPT": "tu-vit_tiny_patch16_224"}.get(
            model.__name__, "resnet18"
        )
        sizes = {"encoder_name": encoder, "encoder_weights": None}
        inputs = (("2,3,64,64",), ("2,3,128,128",), ("1,3,224,224",))
        yield Entry("smp", model.__name__, f"segmentation_models_pytorch:{model.__name__}", sizes,
                    inputs)  # fmt: skip


_UNET = {"block_out_channels": [8, 16], "norm_num_groups": 4, "layers_per_block": 1,
         "sample_size": 16}  # fmt: skip
_CROSS = {**_UNET, "cross_attention_dim": 8, "attention_head_dim": 4,
          "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
          "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"]}  # fmt: skip
_DIT = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "sample_size": 8,
        "patch_size": 2}  # fmt: skip
_TIME = "timestep=int64:2:1000"
_DIFFUSERS: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("UNet1DModel", {"block_out_channels": [32, 64], "sample_size": 16, "in_channels": 4,
                     "out_channels": 4, "extra_in_channels": 16,
                     "down_block_types": ["DownBlock1DNoSkip", "DownBlock1D"],
                     "up_block_types": ["UpBlock1D", "UpBlock1DNoSkip"]},
     ("1,4,16", "timestep=int64:1:1000")),
    ("UNet2DModel", {**_UNET, "attention_head_dim": 4,
                     "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
                     "up_block_types": ["AttnUpBlock2D", "UpBlock2D"]}, ("2,3,16,16", _TIME)),
    ("UNet2DConditionModel", _CROSS, ("2,4,16,16", _TIME, "encoder_hidden_states=2,5,8")),
    ("UNet3DConditionModel", {**_CROSS,
                              "down_block_types": ["CrossAttnDownBlock3D", "DownBlock3D"],
                              "up_block_types": ["UpBlock3D", "CrossAttnUpBlock3D"]},
     ("2,4,3,16,16", _TIME, "encoder_hidden_states=2,5,8")),
    ("UNetSpatioTemporalConditionModel",
     {"block_out_channels": [32, 64], "sample_size": 16, "cross_attention_dim": 8,
      "num_attention_heads": [2, 4], "layers_per_block": 1, "addition_time_embed_dim": 8,
      "projection_class_embeddings_input_dim": 24, "num_frames": 2,
      "down_block_types": ["CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"],
      "up_block_types": ["UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"]},
     ("2,2,8,16,16", _TIME, "encoder_hidden_states=2,1,8", "added_time_ids=2,3")),
    ("ControlNetModel", {k: v for k, v in _CROSS.items()
                         if k not in ("sample_size", "up_block_types")}
     | {"conditioning_embedding_out_channels": [8, 16]},
     ("2,4,16,16", _TIME, "encoder_hidden_states=2,5,8", "controlnet_cond=2,3,32,32")),
    ("DiTTransformer2DModel", {**_DIT, "norm_num_groups": 4, "in_channels": 4},
     ("2,4,8,8", _TIME, "class_labels=int64:2:1000")),
    ("Transformer2DModel", {**_DIT, "in_channels": 4, "norm_num_groups": 4,
                            "num_embeds_ada_norm": 1000, "norm_type": "ada_norm_zero"},
     ("2,4,8,8", _TIME, "class_labels=int64:2:1000")),
    ("PixArtTransformer2DModel", {**_DIT, "in_channels": 4, "cross_attention_dim": 16,
                                  "caption_channels": 8, "norm_num_groups": 4,
                                  "use_additional_conditions": False},
     ("2,4,8,8", "encoder_hidden_states=2,5,8", _TIME)),
    ("SD3Transformer2DModel", {**_DIT, "in_channels": 4, "joint_attention_dim": 8,
                               "caption_projection_dim": 16, "pooled_projection_dim": 8,
                               "out_channels": 4, "pos_embed_max_size": 16},
     ("2,4,8,8", "encoder_hidden_states=2,5,8", "pooled_projections=2,8", _TIME)),
    ("FluxTransformer2DModel", {"patch_size": 1, "in_channels": 4, "num_layers": 1,
                                "num_single_layers": 1, "attention_head_dim": 16,
                                "num_attention_heads": 2, "joint_attention_dim": 8,
                                "pooled_projection_dim": 8, "axes_dims_rope": [4, 4, 8]},
     ("2,16,4", "encoder_hidden_states=2,5,8", "pooled_projections=2,8", "timestep=2",
      "img_ids=16,3", "txt_ids=5,3")),
    ("SanaTransformer2DModel", {"in_channels": 4, "out_channels": 4, "num_layers": 1,
                                "num_attention_heads": 2, "attention_head_dim": 8,
                                "num_cross_attention_heads": 2, "cross_attention_head_dim": 8,
                                "cross_attention_dim": 16, "caption_channels": 8,
                                "sample_size": 8},
     ("2,4,8,8", "encoder_hidden_states=2,5,8", _TIME)),
    ("HunyuanDiT2DModel", {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4,
                           "hidden_size": 16, "num_layers": 2, "cross_attention_dim": 8,
                           "cross_attention_dim_t5": 8, "text_len": 4, "text_len_t5": 4,
                           "pooled_projection_dim": 8, "patch_size": 2, "sample_size": 8},
     ("2,4,8,8", "timestep=2", "encoder_hidden_states=2,4,8",
      "text_embedding_mask=int64:2,4:2", "encoder_hidden_states_t5=2,4,8",
      "text_embedding_mask_t5=int64:2,4:2", "image_meta_size=2,6", "style=int64:2:1",
      "image_rotary_emb=2,16,8")),
    ("LTXVideoTransformer3DModel", {"in_channels": 4, "out_channels": 4, "num_layers": 1,
                                    "num_attention_heads": 2, "attention_head_dim": 8,
                                    "cross_attention_dim": 16, "caption_channels": 8},
     ("2,16,4", "encoder_hidden_states=2,5,8", _TIME, "encoder_attention_mask=int64:2,5:2",
      "video_coords=2,3,16")),
    ("CogVideoXTransformer3DModel", {"num_attention_heads": 2, "attention_head_dim": 8,
                                     "in_channels": 4, "out_channels": 4, "time_embed_dim": 4,
                                     "text_embed_dim": 8, "num_layers": 1, "sample_width": 8,
                                     "sample_height": 8, "sample_frames": 5,
                                     "max_text_seq_length": 5},
     ("2,2,4,8,8", "encoder_hidden_states=2,5,8", _TIME)),
    ("WanTransformer3DModel", {"num_attention_heads": 2, "attention_head_dim": 12,
                               "in_channels": 4, "out_channels": 4, "text_dim": 8,
                               "freq_dim": 16, "ffn_dim": 16, "num_layers": 1,
                               "rope_max_seq_len": 32},
     ("2,4,2,8,8", _TIME, "encoder_hidden_states=2,5,8")),
    ("PriorTransformer", {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1,
                          "embedding_dim": 8, "num_embeddings": 5, "additional_embeddings": 4},
     ("2,8", _TIME, "proj_embedding=2,8", "encoder_hidden_states=2,5,8")),
    ("StableAudioDiTModel", {"sample_size": 16, "in_channels": 4, "num_layers": 1,
                             "attention_head_dim": 8, "num_attention_heads": 2,
                             "num_key_value_attention_heads": 2, "out_channels": 4,
                             "cross_attention_dim": 8, "time_proj_dim": 8,
                             "global_states_input_dim": 8, "cross_attention_input_dim": 8},
     ("2,4,16", "timestep=2", "encoder_hidden_states=2,5,8", "global_hidden_states=2,1,8")),
    ("AutoencoderKL", {"block_out_channels": [8, 16], "norm_num_groups": 4, "latent_channels": 4,
                       "down_block_types": ["DownEncoderBlock2D"] * 2,
                       "up_block_types": ["UpDecoderBlock2D"] * 2}, ("2,3,16,16",)),
    ("AsymmetricAutoencoderKL", {"down_block_types": ["DownEncoderBlock2D"],
                                 "down_block_out_channels": [8], "norm_num_groups": 4,
                                 "up_block_types": ["UpDecoderBlock2D"],
                                 "up_block_out_channels": [8], "latent_channels": 4},
     ("2,3,16,16",)),
    ("AutoencoderTiny", {"encoder_block_out_channels": [8, 8],
                         "decoder_block_out_channels": [8, 8], "num_encoder_blocks": [1, 1],
                         "num_decoder_blocks": [1, 1]}, ("2,3,16,16",)),
    ("AutoencoderDC", {"in_channels": 3, "latent_channels": 4, "attention_head_dim": 8,
                       "encoder_block_types": ["ResBlock", "EfficientViTBlock"],
                       "decoder_block_types": ["ResBlock", "EfficientViTBlock"],
                       "encoder_block_out_channels": [8, 16],
                       "decoder_block_out_channels": [8, 16],
                       "encoder_layers_per_block": [1, 1], "decoder_layers_per_block": [1, 1],
                       "encoder_qkv_multiscales": [[], [5]],
                       "decoder_qkv_multiscales": [[], [5]],
                       "decoder_norm_types": "rms_norm", "decoder_act_fns": "silu"},
     ("2,3,16,16",)),
    ("AutoencoderKLTemporalDecoder", {"block_out_channels": [32, 32], "layers_per_block": 1,
                                      "latent_channels": 4,
                                      "down_block_types": ["DownEncoderBlock2D"] * 2},
     ("2,3,16,16",)),
    ("AutoencoderKLWan", {"base_dim": 4, "z_dim": 4, "dim_mult": [1, 1], "num_res_blocks": 1,
                          "temperal_downsample": [False]}, ("1,3,1,16,16",)),
    ("AutoencoderKLCogVideoX", {"block_out_channels": [8, 8, 8, 8], "norm_num_groups": 4,
                                "layers_per_block": 1, "latent_channels": 4},
     ("1,3,1,16,16",)),
    ("AutoencoderOobleck", {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4],
                            "channel_multiples": [1, 2], "decoder_channels": 8,
                            "decoder_input_channels": 4, "audio_channels": 2}, ("1,2,64",)),
    ("VQModel", {"block_out_channels": [8], "norm_num_groups": 4, "num_vq_embeddings": 16,
                 "latent_channels": 3}, ("2,3,16,16",)),
)  # fmt: skip


def _diffusers(folder: Path) -> Iterator[Entry]:
    importlib.import_module("diffusers")
    for name, args, inputs in _DIFFUSERS:
        yield Entry("diffusers", name, f"diffusers:{name}", args, (inputs,))


def _transformers(folder: Path) -> Iterator[Entry]:
    configurations = importlib.import_module("transformers.models.auto.configuration_auto")
    models = importlib.import_module("transformers.models.auto.modeling_auto")
    kinds = set(models.MODEL_MAPPING_NAMES) & set(configurations.CONFIG_MAPPING.keys())
    for kind in sorted(kinds):
        yield Entry("transformers", kind, str(folder / kind / "config.json"), {})


_LISTS: dict[Group, Callable[[Path], Iterator[Entry]]] = {
    "torch.nn": _torch_nn,
    "timm": _timm,
    "transformers": _transformers,
    "torchvision": _torchvision,
    "spandrel": _spandrel,
    "smp": _smp,
    "diffusers": _diffusers,
}
