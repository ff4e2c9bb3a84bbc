"""Ready experiments: their data, their training loops, their reports."""

from ._allocator import keep_freed_memory as keep_freed_memory
from ._bars import BARS as BARS, KINDS as KINDS, Trial as Trial
from ._classification import (
    Classification as Classification,
    DATA as DATA,
    digits as digits,
    mnist1d as mnist1d,
    mnist5k as mnist5k,
)
from ._data import (
    MixedTask as MixedTask,
    RECALL_TASKS as RECALL_TASKS,
    RecallBatch as RecallBatch,
    RecallTask as RecallTask,
)
from ._digits import digits_table as digits_table, DigitsSettings as DigitsSettings
from ._dual_bars import DUAL_BARS as DUAL_BARS, StepTrial as StepTrial
from ._dual_trials import run_dual_trial as run_dual_trial
from ._growth import (
    ClassifySettings as ClassifySettings,
    HybridSettings as HybridSettings,
    TeacherSettings as TeacherSettings,
)
from ._growth_bars import GROWTH_BARS as GROWTH_BARS, GrowthTrial as GrowthTrial
from ._growth_trials import run_growth_trial as run_growth_trial
from ._judge import Bar as Bar, judged as judged, judged_by_means as judged_by_means, Suite as Suite
from ._language import (
    language_settings as language_settings,
    language_spec as language_spec,
    language_specs as language_specs,
    language_table as language_table,
    LanguageSettings as LanguageSettings,
    run_language as run_language,
    train_language as train_language,
)
from ._learn import (
    begin as begin,
    classification as classification,
    Course as Course,
    cross_entropy as cross_entropy,
    learn as learn,
    Problem as Problem,
    Reached as Reached,
    train as train,
)
from ._learners import (
    AbstractLearner as AbstractLearner,
    GradientLearner as GradientLearner,
    Perceptron as Perceptron,
)
from ._learners_growing import GrowthLearner as GrowthLearner, StableLearner as StableLearner
from ._learners_images import ConvolutionLearner as ConvolutionLearner
from ._learners_language import language as language, LanguageLearner as LanguageLearner
from ._learners_mixed import (
    FadingLearner as FadingLearner,
    HybridLearner as HybridLearner,
    SolvedLearner as SolvedLearner,
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
from ._optimiser_recipes import (
    optimiser_course as optimiser_course,
    optimiser_learner as optimiser_learner,
    optimiser_problem as optimiser_problem,
    OPTIMISERS as OPTIMISERS,
)
from ._optimiser_run import (
    optimisers_table as optimisers_table,
    OptimiserSettings as OptimiserSettings,
)
from ._plots import (
    draw_digits as draw_digits,
    draw_growth as draw_growth,
    draw_hybrid as draw_hybrid,
    draw_language as draw_language,
    draw_optimisers as draw_optimisers,
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
from ._recall_trials import run_trial as run_trial, trial_spec as trial_spec
from ._recipes import (
    course as course,
    learner as learner,
    LEARNERS as LEARNERS,
    problem as problem,
    TEACHERS as TEACHERS,
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
    SUITES as SUITES,
)
from ._runs import (
    growth_settings as growth_settings,
    growth_specs as growth_specs,
    growth_table as growth_table,
    run_growth as run_growth,
)
from ._sequence import (
    Checkpoint as Checkpoint,
    Model as Model,
    recipe as recipe,
    Task as Task,
    train_recall as train_recall,
)
from ._teacher import half_square as half_square, teacher as teacher
from ._text import (
    ngram_bits as ngram_bits,
    python_documentation as python_documentation,
    Text as Text,
)
