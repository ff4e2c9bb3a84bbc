"""Ready experiments: their data, their training loops, their reports."""

from ._classify import (
    Epoch as Epoch,
    Perceptron as Perceptron,
    cross_entropy as cross_entropy,
    train_perceptron as train_perceptron,
)
from ._data import (
    Classification as Classification,
    RECALL_TASKS as RECALL_TASKS,
    RecallBatch as RecallBatch,
    RecallTask as RecallTask,
    digits as digits,
)
