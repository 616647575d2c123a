__version__: str
from .commands.python_runs import Run as Run
from .commands.python_runs import train as train
from .data.table import ImageTable as ImageTable
from .evaluation.evaluator import evaluate as evaluate
from .inference.image_embedder import ImageEmbedder as ImageEmbedder
from .inference.image_index import Index as Index
from .inference.loading import load as load
from .inference.loading import pretrained as pretrained
from .report.page import report as report
from .runtime.errors import InputError as InputError
