"""Ready experiments: their data, their training loops, their reports."""

from ._allocator import keep_freed_memory as keep_freed_memory
from ._bars import Bar as Bar, BARS as BARS, KINDS as KINDS, Trial as Trial
from ._classify import (
    cross_entropy as cross_entropy,
    Epoch as Epoch,
    Perceptron as Perceptron,
    train_perceptron as train_perceptron,
)
from ._data import (
    Classification as Classification,
    digits as digits,
    MixedTask as MixedTask,
    RECALL_TASKS as RECALL_TASKS,
    RecallBatch as RecallBatch,
    RecallTask as RecallTask,
)
from ._digits import (
    digits_settings as digits_settings,
    digits_specs as digits_specs,
    digits_table as digits_table,
    DigitsSettings as DigitsSettings,
    run_digits as run_digits,
)
from ._grown import (
    grown_rbf as grown_rbf,
    layer_spec as layer_spec,
)
from ._language import (
    language_settings as language_settings,
    language_spec as language_spec,
    language_specs as language_specs,
    language_table as language_table,
    LanguageSettings as LanguageSettings,
    run_language as run_language,
    train_language as train_language,
)
from ._mad import ContextTask as ContextTask, MemoriseTask as MemoriseTask
from ._memories import (
    Questions as Questions,
    RECALL_MEMORIES as RECALL_MEMORIES,
    recall_memory as recall_memory,
    recall_model as recall_model,
    recall_spec as recall_spec,
    state_size as state_size,
    weight_decayed as weight_decayed,
)
from ._plots import (
    draw_digits as draw_digits,
    draw_language as draw_language,
    draw_recall as draw_recall,
    draw_reproduce as draw_reproduce,
)
from ._recall import (
    recall_settings as recall_settings,
    recall_specs as recall_specs,
    recall_table as recall_table,
    RecallSettings as RecallSettings,
    run_recall as run_recall,
)
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
from ._reproduce import (
    reproduce_settings as reproduce_settings,
    reproduce_specs as reproduce_specs,
    reproduce_table as reproduce_table,
    ReproduceSettings as ReproduceSettings,
    run_reproduce as run_reproduce,
    run_trial as run_trial,
)
from ._sequence import (
    Checkpoint as Checkpoint,
    Model as Model,
    recipe as recipe,
    Task as Task,
    train_recall as train_recall,
)
from ._text import (
    ngram_bits as ngram_bits,
    python_documentation as python_documentation,
    Text as Text,
)
