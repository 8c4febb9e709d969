"""The FIR planner (chapter 4): which layers should share keys and values to balance a pipeline.

Pure Python and NumPy; nothing here imports torch. Costs come from a config.json, plans leave as
data. Layers and stages count from 0.
"""

from kvpipe.balance.architecture import Architecture, architecture_of, read_architecture
from kvpipe.balance.comparison import Alternative, Study, alternatives, compare, study, sweep
from kvpipe.balance.costs import (
    Conventions,
    LayerCost,
    ModelCosts,
    layer_cost,
    listed_costs,
    model_costs,
)
from kvpipe.balance.effects import Border, borders, cache_bytes_saved
from kvpipe.balance.exact_planner import exact
from kvpipe.balance.placements import (
    Search,
    Step,
    algorithm_1,
    bipolar,
    corrected,
    last_quarter,
    uniform,
)
from kvpipe.balance.planfile import Conversion, Plan, load, save
from kvpipe.balance.planner import METHODS, Request, make_plan
from kvpipe.balance.prediction import (
    Change,
    HeadBudget,
    Prediction,
    change,
    head_budget,
    predict,
    schedule_for,
    vocabulary_parallel,
)
from kvpipe.balance.presets import PRESETS
from kvpipe.balance.signal import calibrate, read_times
from kvpipe.balance.splits import best_split, megatron_layout, torchtitan_split, torchtitan_stages
from kvpipe.balance.stages import (
    StageCosts,
    check_partition,
    even_split,
    fir,
    kv_source,
    may_share,
    stage_costs,
)

__all__ = [
    "METHODS",
    "PRESETS",
    "Alternative",
    "Architecture",
    "Border",
    "Change",
    "Conventions",
    "Conversion",
    "HeadBudget",
    "LayerCost",
    "ModelCosts",
    "Plan",
    "Prediction",
    "Request",
    "Search",
    "StageCosts",
    "Step",
    "Study",
    "algorithm_1",
    "alternatives",
    "architecture_of",
    "best_split",
    "bipolar",
    "borders",
    "cache_bytes_saved",
    "calibrate",
    "change",
    "check_partition",
    "compare",
    "corrected",
    "even_split",
    "exact",
    "fir",
    "head_budget",
    "kv_source",
    "last_quarter",
    "layer_cost",
    "listed_costs",
    "load",
    "make_plan",
    "may_share",
    "megatron_layout",
    "model_costs",
    "predict",
    "read_architecture",
    "read_times",
    "save",
    "schedule_for",
    "stage_costs",
    "study",
    "sweep",
    "torchtitan_split",
    "torchtitan_stages",
    "uniform",
    "vocabulary_parallel",
]
