"""Backbones, embedding heads, and models that combine them.

The functions `small_cnn`, `googlenet` and `bn_inception` have the names of modules, so they aren't offered here: import
them from `dml.models.small_cnn` and `dml.models.networks`.
"""

from typing import TYPE_CHECKING

from dml.ops.lazy import import_on_use

__all__ = [
    "AuxiliaryHead",
    "BNInception",
    "Backbone",
    "BranchedGoogLeNet",
    "ClassTokenHead",
    "EmbeddingModel",
    "FullyConnectedHead",
    "GeMHead",
    "NormalizedPoolHead",
    "PoolHead",
    "PooledHead",
    "RecurrentEmbedding",
    "RecurrentModel",
    "TokenMeanHead",
    "TwoStepHead",
    "branched_googlenet",
    "resnet",
    "timm_backbone",
]

if TYPE_CHECKING:
    from dml.models.backbone import Backbone
    from dml.models.bn_inception import BNInception
    from dml.models.embedding import EmbeddingModel
    from dml.models.googlenet import BranchedGoogLeNet
    from dml.models.heads import (
        AuxiliaryHead,
        ClassTokenHead,
        GeMHead,
        NormalizedPoolHead,
        PooledHead,
        PoolHead,
        TokenMeanHead,
        TwoStepHead,
    )
    from dml.models.networks import branched_googlenet, resnet, timm_backbone
    from dml.models.recurrent import RecurrentEmbedding, RecurrentModel
    from dml.models.small_cnn import FullyConnectedHead
else:
    __getattr__, __dir__ = import_on_use(
        __name__,
        {
            "AuxiliaryHead": "heads",
            "BNInception": "bn_inception",
            "Backbone": "backbone",
            "BranchedGoogLeNet": "googlenet",
            "ClassTokenHead": "heads",
            "EmbeddingModel": "embedding",
            "FullyConnectedHead": "small_cnn",
            "GeMHead": "heads",
            "NormalizedPoolHead": "heads",
            "PoolHead": "heads",
            "PooledHead": "heads",
            "RecurrentEmbedding": "recurrent",
            "RecurrentModel": "recurrent",
            "TokenMeanHead": "heads",
            "TwoStepHead": "heads",
            "branched_googlenet": "networks",
            "resnet": "networks",
            "timm_backbone": "networks",
        },
    )
