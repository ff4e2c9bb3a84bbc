"""Ready experiments: their data, their training loops, their reports."""

from ._classify import (
    cross_entropy as cross_entropy,
    Epoch as Epoch,
    Perceptron as Perceptron,
    train_perceptron as train_perceptron,
)
from ._data import (
    Classification as Classification,
    digits as digits,
    RECALL_TASKS as RECALL_TASKS,
    RecallBatch as RecallBatch,
    RecallTask as RecallTask,
)
from ._plots import draw_digits as draw_digits, draw_recall as draw_recall
from ._report import (
    new_folder as new_folder,
    OutputError as OutputError,
    Report as Report,
    Row as Row,
    SettingError as SettingError,
    share as share,
    suggestion as suggestion,
    table as table,
    write_atomically as write_atomically,
)
from ._sequence import (
    Checkpoint as Checkpoint,
    Model as Model,
    recipe as recipe,
    train_recall as train_recall,
)
