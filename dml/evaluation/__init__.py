from dml.evaluation.protocol import evaluate

__all__ = ["evaluate"]
