"""The parts in their order: what most likely breaks and what says most comes first."""

from __future__ import annotations

from .attention import ATTENTION
from .convolutions import CONVOLUTIONS
from .epilogues import EPILOGUES
from .generated import GENERATED
from .graph_convolutions import GRAPH_CONVOLUTIONS
from .kernels import KERNELS, PRODUCTS
from .memory import BUDGETS
from .offload import OFFLOAD
from .operators import OPERATORS
from .optimizers import OPTIMIZER_SPEED, OPTIMIZERS
from .part import Part
from .sanitizer import SANITIZER
from .sessions import SESSIONS
from .smoke import SMOKE
from .speed import FIRST_SPEED, OTHER_SPEED
from .training import EXACTNESS, GRAPHS, OWN_GRAPHS, PARITY, PRECISION

PARTS: tuple[Part, ...] = (
    SMOKE,
    GENERATED,
    OFFLOAD,
    ATTENTION,
    GRAPH_CONVOLUTIONS,
    EPILOGUES,
    *FIRST_SPEED,
    KERNELS,
    PRODUCTS,
    OPTIMIZER_SPEED,
    PRECISION,
    PARITY,
    GRAPHS,
    OWN_GRAPHS,
    EXACTNESS,
    CONVOLUTIONS,
    OPTIMIZERS,
    SESSIONS,
    *OTHER_SPEED,
    *OPERATORS,
    BUDGETS,
    SANITIZER,
)
