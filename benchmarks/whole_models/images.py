"""Models of images, from configurations of `transformers`: nothing is downloaded."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.whole_models.subject import Called, Made, Subject, of_classes, of_pairs

CLASSES = 1000


def _images(model: nn.Module, batch: int, side: int, layout: torch.memory_format) -> Made:
    """A model from images to classes."""
    pixels = torch.randn(batch, 3, side, side).to(memory_format=layout)
    called = Called(model.to(memory_format=layout), ("pixel_values",), "logits")
    return Made(called, (pixels,), torch.randint(model.config.num_labels, (batch,)), of_classes)


def vit_large(toy: bool) -> Made:
    """ViT-L in patches of 16."""
    from transformers import ViTConfig, ViTForImageClassification

    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    small |= {"intermediate_size": 48, "image_size": 32, "num_labels": 7}
    real = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
    real |= {"intermediate_size": 4096, "num_labels": CLASSES}
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = ViTConfig(**(small if toy else real), **none)
    batch, side = (2, 32) if toy else (32, 224)
    return _images(ViTForImageClassification(config), batch, side, torch.contiguous_format)


def clip(toy: bool) -> Made:
    """CLIP with ViT-B/32: images and texts to scores of all pairs."""
    from transformers import CLIPConfig, CLIPModel

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "projection_dim": 16}
    words = {**sizes, "vocab_size": 99, "max_position_embeddings": 8, "eos_token_id": 98}
    pixels = {**sizes, "image_size": 32, "patch_size": 16}
    small = {"text_config": words, "vision_config": pixels, "projection_dim": 16}
    model = CLIPModel(CLIPConfig(**(small if toy else {})))
    batch, tokens, side = (3, 8, 32) if toy else (128, 77, 224)
    text = torch.randint(model.config.text_config.vocab_size, (batch, tokens))
    called = Called(model, ("input_ids", "pixel_values"), "logits_per_image")
    inputs = (text, torch.randn(batch, 3, side, side))
    return Made(called, inputs, torch.arange(batch), of_pairs, samples=False)


def convnext_base(toy: bool) -> Made:
    """ConvNeXt-B."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    small = {"depths": [1, 1, 2, 1], "hidden_sizes": [8, 12, 16, 24], "num_labels": 7}
    real = {"depths": [3, 3, 27, 3], "hidden_sizes": [128, 256, 512, 1024], "num_labels": CLASSES}
    config = ConvNextConfig(**(small if toy else real), drop_path_rate=0.0)
    batch, side = (2, 32) if toy else (32, 224)
    return _images(ConvNextForImageClassification(config), batch, side, torch.contiguous_format)


def resnet50(toy: bool) -> Made:
    """ResNet-50, channels last."""
    from transformers import ResNetConfig, ResNetForImageClassification

    small = {"embedding_size": 8, "hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]}
    config = ResNetConfig(**(small if toy else {}), num_labels=7 if toy else CLASSES)
    batch, side = (2, 64) if toy else (128, 224)
    return _images(ResNetForImageClassification(config), batch, side, torch.channels_last)


def efficientnet(toy: bool) -> Made:
    """EfficientNet-B0."""
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    small = {"in_channels": [32, 16, 24], "out_channels": [16, 24, 32], "kernel_sizes": [3, 3, 5]}
    small |= {"strides": [1, 2, 2], "num_block_repeats": [1, 1, 2], "expand_ratios": [1, 4, 4]}
    small |= {"depthwise_padding": []}
    real = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "image_size": 224}
    sizes = {"width_coefficient": 1.0, "depth_coefficient": 1.0, **small} if toy else real
    labels = {"num_labels": 7 if toy else CLASSES}
    labels |= {"hidden_dim": 1280}
    config = EfficientNetConfig(**sizes, **labels, dropout_rate=0.0, drop_connect_rate=0.0)
    batch, side = (2, 64) if toy else (128, 224)
    return _images(EfficientNetForImageClassification(config), batch, side, torch.contiguous_format)


SUBJECTS = (
    Subject("vit_large", "ViT-L/16, 32 images", vit_large),
    Subject("clip", "CLIP ViT-B/32, 128 images and texts", clip),
    Subject("convnext_base", "ConvNeXt-B, 32 images", convnext_base),
    Subject("resnet50", "ResNet-50 channels last, 128 images", resnet50),
    Subject("efficientnet", "EfficientNet-B0, 128 images", efficientnet),
)
