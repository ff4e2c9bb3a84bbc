"""memdsl: a functional DSL for kernel-memory layers in JAX."""

from . import grow as grow, optim as optim, zoo as zoo
from ._errors import SpecError as SpecError
from .cite import cite as cite
from .explain import explain as explain
from .io import load as load, load_published as load_published, save as save
from .nn import (
    AbstractModule as AbstractModule,
    build as build,
    generate as generate,
    stream as stream,
)
from .oracle import denote as denote
from .plan import (
    Cost as Cost,
    Dims as Dims,
    empty as empty,
    evaluate as evaluate,
    machine as machine,
    measure as measure,
    Plan as Plan,
    plan as plan,
    Requirement as Requirement,
    Rule as Rule,
    RULES as RULES,
    run as run,
    signals as signals,
    starts_of as starts_of,
    step as step,
)
from .spec._capacity import (
    AbstractCapacity as AbstractCapacity,
    AbstractEviction as AbstractEviction,
    AbstractMerge as AbstractMerge,
    AddToNearest as AddToNearest,
    All as All,
    Budget as Budget,
    Drop as Drop,
    LeastUsed as LeastUsed,
    LeaveOneOut as LeaveOneOut,
    Oldest as Oldest,
    Pairwise as Pairwise,
    Project as Project,
    Random as Random,
    Smallest as Smallest,
    Window as Window,
)
from .spec._computed import Computed as Computed
from .spec._facts import (
    degree as degree,
    is_bounded as is_bounded,
    is_finite as is_finite,
    is_nonnegative as is_nonnegative,
    rank as rank,
)
from .spec._feature import (
    AbstractFeature as AbstractFeature,
    Dpfp as Dpfp,
    EluPlusOne as EluPlusOne,
    Exponential as Exponential,
    Grouped as Grouped,
    Hedgehog as Hedgehog,
    Identity as Identity,
    L2Norm as L2Norm,
    LayerNorm as LayerNorm,
    Linear as Linear,
    LogSigmoid as LogSigmoid,
    Only as Only,
    Preconditioner as Preconditioner,
    RandomFourier as RandomFourier,
    Relu as Relu,
    Scale as Scale,
    Sigmoid as Sigmoid,
    Silu as Silu,
    Slice as Slice,
    Softmax as Softmax,
    Softplus as Softplus,
    Spread as Spread,
    SumNorm as SumNorm,
    Tanh as Tanh,
    Taylor as Taylor,
    Total as Total,
    Weight as Weight,
    Wide as Wide,
)
from .spec._gate import (
    AbstractAdmission as AbstractAdmission,
    AbstractGate as AbstractGate,
    AbstractRetention as AbstractRetention,
    Always as Always,
    Coherence as Coherence,
    Decay as Decay,
    DiagonalDecay as DiagonalDecay,
    Householder as Householder,
    Keep as Keep,
    KeyDecay as KeyDecay,
    LqNorm as LqNorm,
    Never as Never,
    Novelty as Novelty,
    Reset as Reset,
    Simplex as Simplex,
    SoftThreshold as SoftThreshold,
    Surprise as Surprise,
    ValueDecay as ValueDecay,
)
from .spec._json import from_json as from_json, to_json as to_json
from .spec._kernel import (
    AbstractKernel as AbstractKernel,
    Constant as Constant,
    Dot as Dot,
    Exp as Exp,
    Polynomial as Polynomial,
)
from .spec._layer import (
    AbstractLayer as AbstractLayer,
    Conv as Conv,
    Dense as Dense,
    Embed as Embed,
    Flatten as Flatten,
    Grown as Grown,
    Layer as Layer,
    Map as Map,
    Mlp as Mlp,
    Named as Named,
    Norm as Norm,
    Recall as Recall,
    Repeat as Repeat,
    Residual as Residual,
    Rotary as Rotary,
    Shift as Shift,
    ShortConvolution as ShortConvolution,
    Tied as Tied,
    Unembed as Unembed,
    Uniform as Uniform,
    Vector as Vector,
)
from .spec._loss import (
    AbstractLoss as AbstractLoss,
    CrossEntropy as CrossEntropy,
    Hinge as Hinge,
    Huber as Huber,
    Inner as Inner,
    Power as Power,
    Squared as Squared,
    ValueShift as ValueShift,
)
from .spec._memory import (
    AbstractMemory as AbstractMemory,
    Averaged as Averaged,
    every as every,
    level as level,
    Memory as Memory,
    Network as Network,
    Rewired as Rewired,
    Zero as Zero,
)
from .spec._number import (
    FromInput as FromInput,
    InverseRoot as InverseRoot,
    Knob as Knob,
    Learned as Learned,
    Number as Number,
    Schedule as Schedule,
)
from .spec._radial import (
    AbstractRadial as AbstractRadial,
    Laplace as Laplace,
    Matern32 as Matern32,
    Matern52 as Matern52,
    RationalQuadratic as RationalQuadratic,
    RBF as RBF,
)
from .spec._read import (
    Before as Before,
    Evaluate as Evaluate,
    LocalLinear as LocalLinear,
    Normalised as Normalised,
    TopK as TopK,
)
from .spec._read_blocks import TopBlocks as TopBlocks
from .spec._streams import (
    AbstractStream as AbstractStream,
    Answer as Answer,
    Key as Key,
    MappedStream as MappedStream,
    Own as Own,
    Query as Query,
    StreamProduct as StreamProduct,
    StreamSum as StreamSum,
    Value as Value,
)
from .spec._write import (
    AbstractWrite as AbstractWrite,
    Cholesky as Cholesky,
    ConjugateGradient as ConjugateGradient,
    Delta as Delta,
    Descent as Descent,
    GaussSeidel as GaussSeidel,
    Hebb as Hebb,
    Reweight as Reweight,
    Ridge as Ridge,
)
