"""Losses of embeddings and labels; each file holds one loss."""

from typing import TYPE_CHECKING

from dml.ops.lazy import import_on_use

__all__ = [
    "AtLevel",
    "CSLLoss",
    "CalibrationLoss",
    "ClusterLoss",
    "CrossBatchMemory",
    "EmbeddingDrift",
    "EmbeddingNorm",
    "FacilityLocationLoss",
    "HyperbolicContrastiveLoss",
    "MatryoshkaLoss",
    "NPairLoss",
    "NonlinearRankApproximationLoss",
    "OpenCosineSimilarity",
    "PairLoss",
    "ProxyLoss",
    "RankedListLoss",
    "RecallAtKLoss",
    "SmoothAPLoss",
    "SmoothHierarchicalAPLoss",
    "SoftmaxLoss",
    "TripletSemihardLoss",
    "TupletLoss",
    "WeightedSum",
    "embedding_drift",
    "embedding_norm",
    "similarity_mixup",
]

if TYPE_CHECKING:
    from dml.losses.baselines import OpenCosineSimilarity, PairLoss, ProxyLoss
    from dml.losses.compose import AtLevel, WeightedSum
    from dml.losses.csl import CSLLoss
    from dml.losses.facility_location import FacilityLocationLoss
    from dml.losses.happier import ClusterLoss, SmoothHierarchicalAPLoss
    from dml.losses.hyperbolic import HyperbolicContrastiveLoss
    from dml.losses.matryoshka import MatryoshkaLoss
    from dml.losses.memory import CrossBatchMemory
    from dml.losses.n_pair import NPairLoss
    from dml.losses.nra import NonlinearRankApproximationLoss
    from dml.losses.recall_at_k import RecallAtKLoss, similarity_mixup
    from dml.losses.regularizers import EmbeddingDrift, EmbeddingNorm, embedding_drift, embedding_norm
    from dml.losses.rll import RankedListLoss
    from dml.losses.roadmap import CalibrationLoss
    from dml.losses.smooth_ap import SmoothAPLoss
    from dml.losses.softmax import SoftmaxLoss
    from dml.losses.triplet_semihard import TripletSemihardLoss
    from dml.losses.tuplet import TupletLoss
else:
    __getattr__, __dir__ = import_on_use(
        __name__,
        {
            "AtLevel": "compose",
            "CSLLoss": "csl",
            "CalibrationLoss": "roadmap",
            "ClusterLoss": "happier",
            "CrossBatchMemory": "memory",
            "EmbeddingDrift": "regularizers",
            "EmbeddingNorm": "regularizers",
            "FacilityLocationLoss": "facility_location",
            "HyperbolicContrastiveLoss": "hyperbolic",
            "MatryoshkaLoss": "matryoshka",
            "NPairLoss": "n_pair",
            "NonlinearRankApproximationLoss": "nra",
            "OpenCosineSimilarity": "baselines",
            "PairLoss": "baselines",
            "ProxyLoss": "baselines",
            "RankedListLoss": "rll",
            "RecallAtKLoss": "recall_at_k",
            "SmoothAPLoss": "smooth_ap",
            "SmoothHierarchicalAPLoss": "happier",
            "SoftmaxLoss": "softmax",
            "TripletSemihardLoss": "triplet_semihard",
            "TupletLoss": "tuplet",
            "WeightedSum": "compose",
            "embedding_drift": "regularizers",
            "embedding_norm": "regularizers",
            "similarity_mixup": "recall_at_k",
        },
    )
