"""Costs, FIR, placements and the exact search, against published numbers, torch and brute force."""

import itertools
import math
import random
import subprocess
import sys
import time

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from kvpipe.balance import (
    Conventions,
    StageCosts,
    algorithm_1,
    best_split,
    bipolar,
    check_partition,
    corrected,
    even_split,
    exact,
    fir,
    head_budget,
    kv_source,
    last_quarter,
    layer_cost,
    listed_costs,
    may_share,
    model_costs,
    read_architecture,
    stage_costs,
    uniform,
)
from kvpipe.balance.architecture import Layer
from kvpipe.balance.costs import visible_pairs
from kvpipe.balance.stages import ranges
from kvpipe.config import Config
from kvpipe.transformer import Transformer


def published(name, n_tokens, n_stages, **conventions):
    return stage_costs(model_costs(name, n_tokens, Conventions(**conventions)), n_stages)


SEVEN_B = published("llama2-7b", 8192, 8)


def made_up(sizes, extras=None, seed=0, n_savings=3, n_kinds=1):
    """Stages with random costs and few different savings."""
    chance = random.Random(seed)
    n = sum(sizes)
    savings = [chance.choice((1.0, 2.5, 4.0)[:n_savings]) for _ in range(n)]
    return StageCosts(
        tuple(chance.uniform(6, 20) for _ in range(n)),
        tuple(savings),
        tuple(chance.choice("ab"[:n_kinds]) for _ in range(n)),
        ranges(sizes),
        tuple(extras or (0.0,) * len(sizes)),
        tuple(range(len(sizes))),
    )


def test_the_planner_never_imports_torch():
    script = (
        "import sys, kvpipe.balance, kvpipe.balance.__main__, kvpipe.balance.report\n"
        "from kvpipe.balance import *\n"
        "study(model_costs('llama3-8b', 4096), Request(4))\n"
        "assert not {'torch', 'matplotlib', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# --- costs ---------------------------------------------------------------------


@pytest.mark.parametrize(("n_heads", "n_kv_heads"), [(6, 6), (6, 2), (6, 1)])
def test_cost_per_token_is_that_of_the_literature(n_heads, n_kv_heads):
    h, s, D = 48, 20, 8
    r = n_heads // n_kv_heads
    layer = Layer(h, n_heads, n_kv_heads, D, None, ffn_width=100)
    cost = layer_cost(layer, s, Conventions(causal="full"))
    attention = cost.total - cost.modules["feed-forward"]
    assert attention / s == 4 * h**2 + 4 * h**2 / r + 4 * s * h
    assert cost.saving / s == 4 * h**2 / r
    assert cost.kv_elements == 2 * h / r
    assert cost.modules["feed-forward"] == 6 * s * h * 100


def count_flops(family, **changes):
    """What torch counts in one forward of a Hugging Face model, and the config it has."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6,
        "num_key_value_heads": 2, "intermediate_size": 80, "head_dim": 8,
    } | changes  # fmt: skip
    config = AutoConfig.for_model(family, **sizes)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    counter = FlopCounterMode(display=False)
    tokens = torch.randint(101, (1, 19))
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(tokens, use_cache=False)
    return counter.get_total_flops(), config.to_dict()


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"num_key_value_heads": 6}),
        ("qwen2", {"num_key_value_heads": 3, "head_dim": None}),
        ("qwen3", {"head_dim": 16}),
        ("mistral", {"sliding_window": 7}),
    ],
)
def test_full_scores_equal_what_torch_counts(family, changes):
    changes = {name: value for name, value in changes.items() if value is not None}
    counted, config = count_flops(family, **changes)
    assert counted == model_costs(config, 19, Conventions(causal="full")).total


def test_torch_counts_a_shared_layer_and_a_backward_as_we_do():
    """The book's own model: what sharing removes is what the counter no longer counts."""
    sources = {0: (0, 1, 2, 3), 1: (0, 1, 2, 1), 2: (0, 1, 1, 1)}
    hf = {
        "model_type": "llama", "vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 80,
    }  # fmt: skip
    costs = model_costs(hf, 23, Conventions(causal="full"))
    saving = costs.layers[0].saving
    assert saving == 4 * 23 * 48 * 2 * 8
    tokens = torch.randint(97, (1, 23))
    for n_shared, source in sources.items():
        # In training mode: without gradients the model takes kernels that torch does not count.
        model = Transformer(Config.from_hf(hf | {"kv_source": source})).train()
        forward, both = FlopCounterMode(display=False), FlopCounterMode(display=False)
        with sdpa_kernel(SDPBackend.MATH), both:
            with forward:
                logits = model(tokens)
            logits.sum().backward()
        assert forward.get_total_flops() == costs.total - n_shared * saving
        # The first product of the model needs no gradient for its input, but here an embedding
        # comes before it, which does.
        assert both.get_total_flops() == 3 * (costs.total - n_shared * saving)


def test_mixture_of_experts_counts_the_experts_a_token_passes():
    hf = {
        "model_type": "mixtral", "vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 80,
        "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None,
    }  # fmt: skip
    layer = model_costs(hf, 10).layers[0]
    assert layer.modules["feed-forward"] == 2 * 6 * 10 * 48 * 80
    assert layer.modules["router"] == 2 * 10 * 48 * 8
    qwen = hf | {
        "model_type": "qwen2_moe", "num_local_experts": None, "num_experts": 12,
        "moe_intermediate_size": 20, "shared_expert_intermediate_size": 30,
        "mlp_only_layers": [0], "num_experts_per_tok": 3,
    }  # fmt: skip
    dense, sparse = model_costs(qwen, 10).layers
    assert dense.modules["feed-forward"] == 6 * 10 * 48 * 80
    assert "router" not in dense.modules
    assert sparse.modules["feed-forward"] == 6 * 10 * 48 * (3 * 20 + 30)
    assert sparse.modules["router"] == 2 * 10 * 48 * (12 + 1)
    with pytest.raises(ValueError, match="there are 8 experts"):
        model_costs(hf | {"num_experts_per_tok": 9}, 10)


def test_published_models_cost_what_a_hand_calculation_gives():
    """LLaMA2-7B, one sequence of 8,192 tokens, scores at half."""
    s, h, f, V = 8192, 4096, 11_008, 32_000
    layer = 4 * s * h**2 + 4 * s * h**2 + 2 * s * s * h + 6 * s * h * f
    costs = model_costs("llama2-7b", s)
    assert {cost.total for cost in costs.layers} == {layer}
    assert layer == pytest.approx(3.86547e12, rel=1e-6)
    assert costs.layers[0].saving == 4 * s * h**2 == pytest.approx(5.49756e11, rel=1e-6)
    assert costs.extras[1].cost == 2 * s * h * V == pytest.approx(2.14748e12, rel=2e-6)
    assert costs.layers[0].saving / layer == pytest.approx(0.1422, abs=5e-5)
    assert SEVEN_B.loads()[0] == pytest.approx(1.54619e13, rel=1e-5)
    assert SEVEN_B.loads()[-1] == pytest.approx(1.76094e13, rel=1e-5)
    bytes_per_token = {
        name: 2 * model_costs(name, 1).layers[0].kv_elements
        for name in ("llama2-7b", "llama2-13b", "llama3-8b", "qwen2.5-14b")
    }
    assert list(bytes_per_token.values()) == [16_384, 20_480, 4096, 4096]


@pytest.mark.parametrize(("n_tokens", "window"), [(1, None), (7, None), (7, 3), (7, 7), (7, 20)])
def test_exact_pairs_are_those_a_mask_shows(n_tokens, window):
    visible = sum(
        1
        for query in range(n_tokens)
        for key in range(n_tokens)
        if key <= query and (window is None or query - key < window)
    )
    assert visible_pairs(n_tokens, window, "exact") == visible
    half = visible_pairs(n_tokens, window, "half")
    assert half == visible - min(window or n_tokens, n_tokens) / 2
    assert visible_pairs(n_tokens, window, "full") == n_tokens**2


def test_every_convention_changes_what_its_name_says():
    base = model_costs("llama3-8b", 4096)
    matrix = 2 * 4096 * 4096 * 128_256
    with_embedding = model_costs("llama3-8b", 4096, Conventions(embedding="matrix"))
    assert with_embedding.total - base.total == matrix
    assert stage_costs(with_embedding, 4).extras == (matrix, 0, 0, matrix)
    assert base.total - model_costs("llama3-8b", 4096, Conventions(head="none")).total == matrix
    for wrong in ({"causal": "third"}, {"embedding": "x"}, {"head": "x"}, {"backward": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Conventions(**wrong)


def test_a_config_with_rotary_scaling_that_the_book_does_not_compute_is_planned_for():
    hf = {
        "model_type": "qwen2", "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 60,
        "rope_scaling": {"type": "yarn", "factor": 4.0}, "quantization_config": {"bits": 4},
        "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3,
    }  # fmt: skip
    layers = read_architecture(hf).layers
    assert [layer.window for layer in layers] == [None, None, None, 16]


def test_a_hybrid_is_a_list_of_costs_and_only_attention_shares():
    rows = [{"cost": 9.0}, {"cost": 10.0, "saving": 2.0, "kv_elements": 6}] * 3
    costs = listed_costs({"layers": rows, "extras": [{"name": "head", "cost": 4.0}]}, 7)
    stages = stage_costs(costs, 3)
    assert stages.loads() == (19.0, 19.0, 23.0)
    assert may_share(stages) == (False, False, False, True, False, True)
    assert may_share(stages, same_stage=True) == (False,) * 6
    assert kv_source(stages, (3, 5)) == (0, 1, 2, 1, 4, 1)
    with pytest.raises(ValueError, match="layer 4 cannot share"):
        kv_source(stages, (4,))


# --- FIR -----------------------------------------------------------------------


def test_fir_is_one_for_equal_stages_and_more_otherwise():
    assert fir([3.0, 3.0, 3.0]) == 1
    assert fir([10, 10, 14]) == 14 * 3 / 34
    chance = random.Random(1)
    for _ in range(200):
        loads = [chance.uniform(0, 5) for _ in range(chance.randint(1, 9))]
        assert fir(loads) * (1 + 1e-12) >= 1 and fir(loads) <= len(loads) * (1 + 1e-12)
        assert fir([3 * load for load in loads]) == pytest.approx(fir(loads))


@pytest.mark.parametrize(
    ("name", "n_tokens", "n_stages", "shared", "expected"),
    [
        ("llama2-7b", 8192, 8, (), 1.1195),
        ("llama2-7b", 8192, 8, uniform(32, 4), 1.1038),
        ("llama2-7b", 8192, 8, bipolar(32, 4), 1.0682),
        ("llama2-7b", 8192, 8, range(28, 32), 1.0004),
        ("llama2-7b", 4096, 2, (), 1.0183),
        ("llama2-7b", 4096, 2, range(26, 32), 1.0101),
        ("llama2-7b", 4096, 2, range(24, 32), 1.0200),
        ("llama2-7b", 8192, 4, (), 1.0512),
        ("llama2-7b", 8192, 4, range(26, 32), 1.0094),
        ("llama2-7b", 8192, 4, range(24, 32), 1.0185),
        ("llama2-13b", 8192, 8, (), 1.0789),
        ("llama3-8b", 8192, 8, (), 1.4287),
        ("llama3-8b", 8192, 8, range(28, 32), 1.4029),
        ("qwen2.5-14b", 8192, 8, (), 1.3405),
        ("qwen2.5-14b", 8192, 8, range(42, 48), 1.3143),
    ],
)
def test_published_stages_have_the_fir_that_their_formulas_give(
    name, n_tokens, n_stages, shared, expected
):
    assert round(published(name, n_tokens, n_stages).fir(shared), 4) == expected


def test_fixed_placements_are_the_published_sets():
    """Papers count from 1: {17, 22, 27, 32} and {17, 18, 31, 32}."""
    assert uniform(32, 4) == (16, 21, 26, 31)
    assert bipolar(32, 4) == (16, 17, 30, 31)
    assert bipolar(32, 5) == (16, 17, 29, 30, 31)
    assert uniform(32, 1) == (31,)
    assert last_quarter(32) == tuple(range(24, 32))
    for rule in (uniform, bipolar):
        for budget in (0, 17):
            with pytest.raises(ValueError, match="from 1 to 16"):
                rule(32, budget)


def test_stages_may_hold_several_chunks_and_extras_anywhere():
    stages = StageCosts(
        (1.0, 2.0, 3.0, 4.0), (0.5,) * 4, ("a",) * 4, ranges([1, 1, 1, 1]),
        (10.0, 0.0, 20.0, 0.0), (0, 1, 1, 0),
    )  # fmt: skip
    assert stages.loads() == (15.0, 25.0)
    assert stages.loads((1, 3)) == (14.5, 24.5)
    assert stages.stage_of == (0, 1, 1, 0)
    assert stages.chunk_loads() == (11.0, 2.0, 23.0, 4.0)


@pytest.mark.parametrize("loads", [[], [1.0, -1.0], [1.0, math.nan], [math.inf], [0.0, 0.0]])
def test_impossible_loads_have_no_fir(loads):
    with pytest.raises(ValueError):
        fir(loads)


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([[0, 1], [3]], r"misses layers \[2\]"),
        ([[0, 1], [1, 2, 3]], r"repeats layers \[1\]"),
        ([[0, 1], [2, 3, 4]], r"invents layers \[4\]"),
        ([[0, 2], [1, 3]], "stay in order"),
        ([[0, 1, 2, 3], []], "at least one layer"),
    ],
)
def test_partitions_that_miss_repeat_or_reorder_are_refused(chunks, message):
    assert check_partition([[0, 1], [2, 3]], 4) == (range(2), range(2, 4))
    with pytest.raises(ValueError, match=message):
        check_partition(chunks, 4)
    with pytest.raises(ValueError, match="4 layers cannot be cut into 5"):
        even_split(4, 5)
    with pytest.raises(ValueError, match="sum to 32"):
        stage_costs(model_costs("llama2-7b", 8), [16, 15])


# --- Algorithm 1 ----------------------------------------------------------------


def test_algorithm_1_stops_where_its_tolerance_says():
    found = {epsilon: algorithm_1(SEVEN_B, 8, epsilon) for epsilon in (0.10, 0.05, 0.02)}
    assert [search.shared for search in found.values()] == [
        (31,), (29, 30, 31), (28, 29, 30, 31)
    ]  # fmt: skip
    values = [round(search.steps[-1].fir, 4) for search in found.values()]
    assert values == [1.0893, 1.0281, 1.0004]
    assert algorithm_1(published("llama2-7b", 4096, 2), 8, 0.05).shared == ()
    assert algorithm_1(published("llama2-7b", 8192, 4), 8, 0.05).shared == (31,)


def test_below_its_last_tolerance_algorithm_1_takes_layer_3_and_stops_on_an_empty_stage():
    search = algorithm_1(SEVEN_B, 8, 0.0001)
    assert [step.layer for step in search.steps] == [31, 30, 29, 28, 3]
    assert round(search.steps[-1].fir, 4) == 1.0049
    assert search.stopped == "stage 7 has no layer left to convert"


def test_algorithm_1_alternates_between_two_stages_and_ends_worse_than_it_was():
    toy = StageCosts(
        (5.0,) * 4 + (2.0,) * 4 + (4.0,) * 4, (1.0,) * 12, ("a",) * 12, ranges([4, 4, 4]),
        (0.0,) * 3, (0, 1, 2),
    )  # fmt: skip
    search = algorithm_1(toy, 4, 0.05)
    assert toy.loads() == (20, 8, 16)
    assert [step.stage for step in search.steps] == [2, 0, 2, 0]
    assert [round(step.fir, 3) for step in search.steps] == [1.395, 1.357, 1.390, 1.350]
    best = corrected(toy, 4, "fir")
    assert {step.stage for step in best.steps} == {0}
    assert toy.fir(best.shared) == 17 * 3 / 41 < search.steps[-1].fir  # layer 0 never converts


def test_algorithm_1_obeys_budget_and_depth_guard_and_may_take_layer_0():
    assert len(algorithm_1(SEVEN_B, 2, 0.0).shared) == 2
    assert algorithm_1(SEVEN_B, 8, 0.0, alpha=31 / 32).shared == (30, 31)
    two = StageCosts((9.0, 1.0), (1.0, 0.5), ("a", "a"), ranges([1, 1]), (0.0, 0.0), (0, 1))
    assert algorithm_1(two, 1, 0.0).shared == (0,)
    assert corrected(two, 1).shared == ()
    with pytest.raises(ValueError, match="epsilon"):
        algorithm_1(SEVEN_B, 8, -0.1)
    with pytest.raises(ValueError, match="epsilon"):
        algorithm_1(SEVEN_B, 8, math.nan)


def test_corrected_ignores_rounding_ties_prefers_late_stages_and_never_returns_worse():
    stages = StageCosts(
        (0.1 + 0.2, 0.3, 0.3), (0.1,) * 3, ("a",) * 3, ranges([1, 1, 1]), (0.0,) * 3, (0, 1, 2)
    )
    assert corrected(stages, 3).steps[0].stage == 2
    for seed in range(60):
        stages = made_up([4, 3, 5, 4], seed=seed)
        for objective in ("largest", "fir"):
            search = corrected(stages, 6, objective)
            values = [stages.fir(), *(step.fir for step in search.steps)]
            if objective == "fir":
                assert stages.fir(search.shared) == pytest.approx(min(values))
            assert len(search.shared) <= 6 and 0 not in search.shared


# --- exact planner ---------------------------------------------------------------


def brute_force(stages, budget, objective, allowed):
    """The best value and the fewest layers that reach it, over every subset."""
    layers = [layer for layer, may in enumerate(allowed) if may]
    best = (math.inf, 0)
    for n in range(min(budget, len(layers)) + 1):
        for chosen in itertools.combinations(layers, n):
            loads = stages.loads(chosen)
            value = max(loads) if objective == "largest" else fir(loads)
            if value < best[0] * (1 - 1e-12):
                best = value, n
    return best


@pytest.mark.parametrize("objective", ["largest", "fir"])
def test_exact_equals_brute_force(objective):
    for seed in range(60):
        sizes = [(3, 2, 4), (4, 4, 3), (5, 6), (2, 3, 2, 3)][seed % 4]
        extras = [0.0] * (len(sizes) - 1) + [[0.0, 7.0, 25.0][seed % 3]]
        stages = made_up(sizes, extras, seed, 1 + seed % 3, 1 + seed % 2)
        budget = 1 + seed % 6
        allowed = may_share(stages, same_stage=seed % 5 == 0, alpha=0.3 if seed % 7 == 0 else 0)
        search = exact(stages, budget, objective, allowed)
        loads = stages.loads(search.shared)
        value = max(loads) if objective == "largest" else fir(loads)
        expected, n = brute_force(stages, budget, objective, allowed)
        assert value == pytest.approx(expected, rel=1e-12), seed
        assert len(search.shared) == n <= budget, seed
        assert all(allowed[layer] for layer in search.shared)


def test_exact_on_the_published_models():
    two = published("llama2-7b", 8192, 2)
    assert exact(two, 8).shared == (14, 15, 26, 27, 28, 29, 30, 31)
    assert max(two.loads(exact(two, 8).shared)) / max(two.loads()) == pytest.approx(
        0.9493, abs=5e-5
    )
    four = published("llama2-7b", 8192, 4)
    assert max(four.loads(exact(four, 8).shared)) / max(four.loads()) == pytest.approx(
        0.9184, abs=5e-5
    )
    for n_stages in (2, 4, 8):
        stages = published("llama2-7b", 8192, n_stages)
        assert exact(stages, 8, "fir").shared == (28, 29, 30, 31)
        assert stages.fir((28, 29, 30, 31)) == pytest.approx(1.0004, abs=6e-5)


@pytest.mark.parametrize(("n_layers", "n_stages", "limit_s"), [(128, 16, 0.05), (1000, 64, 1.0)])
@pytest.mark.parametrize("objective", ["largest", "fir"])
def test_exact_is_fast_enough_to_be_the_default(n_layers, n_stages, limit_s, objective):
    rows = [
        {"cost": 10.0 + layer % 3, "saving": 1.0 + 0.5 * (layer % 2)} for layer in range(n_layers)
    ]
    costs = listed_costs({"layers": rows, "extras": [{"cost": 8.0}]}, 1)
    stages = stage_costs(costs, n_stages)
    best = math.inf
    for _ in range(3):
        start = time.thread_time()
        exact(stages, n_layers // 4, objective)
        best = min(best, time.thread_time() - start)
    assert best < limit_s


def test_too_many_different_savings_are_refused_for_fir_only():
    stages = StageCosts(
        tuple(10.0 + i for i in range(40)), tuple(1 + i / 100 for i in range(40)), ("a",) * 40,
        ranges([20, 20]), (0.0, 0.0), (0, 1),
    )  # fmt: skip
    assert exact(stages, 5).shared
    with pytest.raises(ValueError, match="Use the objective 'largest'"):
        exact(stages, 5, "fir")


# --- sources ---------------------------------------------------------------------


def test_a_layer_reads_the_nearest_earlier_layer_of_its_kind_that_has_keys_and_values():
    kinds = ("w", "f", "w", "f", "w", "f")
    stages = StageCosts((9.0,) * 6, (1.0,) * 6, kinds, ranges([3, 3]), (0.0,) * 2, (0, 1))
    assert may_share(stages) == (False, False, True, True, True, True)
    assert may_share(stages, same_stage=True) == (False, False, True, False, False, True)
    assert kv_source(stages, (2, 4, 5)) == (0, 1, 0, 3, 0, 3)
    assert kv_source(stages, (2, 5), same_stage=True) == (0, 1, 0, 3, 4, 3)
    with pytest.raises(ValueError, match=r"layer 4 cannot share: .* on its own stage"):
        kv_source(stages, (4,), same_stage=True)
    with pytest.raises(ValueError, match="alpha"):
        may_share(stages, alpha=1.5)


def test_every_allowed_set_has_sources_that_the_models_own_config_accepts():
    for seed in range(40):
        stages = made_up([4, 3, 5], seed=seed, n_kinds=2)
        chance = random.Random(seed)
        allowed = may_share(stages, same_stage=seed % 2 == 0)
        shared = [layer for layer in range(12) if allowed[layer] and chance.random() < 0.7]
        windows = [None if kind == "a" else 8 for kind in stages.kinds]
        source = kv_source(stages, shared, same_stage=seed % 2 == 0)
        config = Config(11, 8, 12, 2, 2, 4, 8, windows=windows, kv_source=source)
        assert set(range(12)) - set(config.kv_layers) == set(shared)


# --- closed form and splits ---------------------------------------------------------


def test_the_closed_form_is_v_r_over_2h_and_agrees_with_the_search():
    expected = {
        "llama2-7b": 3.90625,
        "llama2-13b": 3.125,
        "llama3-8b": 62.625,
        "qwen2.5-14b": 74.25,
    }
    for name, conversions in expected.items():
        for n_tokens, n_stages in ((512, 2), (8192, 4), (8192, 8), (32_768, 8)):
            stages = published(name, n_tokens, n_stages)
            head = head_budget(stages)
            assert head.conversions == conversions
            best = exact(stages, len(stages.layers), "fir").shared
            if head.is_feasible:
                assert len(best) == head.budget
            else:
                assert set(best) == set(stages.chunks[-1])
    head = head_budget(published("llama3-8b", 8192, 8))
    assert round(100 * head.cancelled, 1) == 6.4
    assert head_budget(SEVEN_B, same_stage=True).available == 3
    with pytest.raises(ValueError, match="closed form"):
        head_budget(published("smollm2-135m", 8192, 8))


def brute_split(layers, extras):
    n, found = len(layers), []
    for cuts in itertools.combinations(range(1, n), len(extras) - 1):
        ends = (0, *cuts, n)
        loads = [sum(layers[a:b]) + e for a, b, e in zip(ends, ends[1:], extras, strict=False)]
        found.append((max(loads), sum(load**2 for load in loads)))
    return min(found)


def test_the_best_split_equals_brute_force():
    for seed in range(40):
        chance = random.Random(seed)
        layers = [chance.choice((3, 4, 5, 9)) for _ in range(9)]
        extras = [chance.choice((0, 2, 11)) for _ in range(1 + seed % 4)]
        sizes = best_split(layers, extras)
        ends = list(itertools.accumulate(sizes, initial=0))
        loads = [sum(layers[a:b]) + e for a, b, e in zip(ends, ends[1:], extras, strict=False)]
        assert (max(loads), sum(load**2 for load in loads)) == brute_split(layers, extras)
        assert min(sizes) >= 1 and sum(sizes) == 9
    with pytest.raises(ValueError, match="cannot be cut"):
        best_split([1.0], [0.0, 0.0])


def test_baseline_fir_falls_with_the_length_of_the_sequence():
    for name, expected in (
        ("llama2-7b", (1.128, 1.119, 1.105)),
        ("llama2-13b", (1.084, 1.079, 1.071)),
    ):
        values = [published(name, n, 8).fir() for n in (4096, 8192, 16_384)]
        assert [round(value, 3) for value in values] == list(expected)


def test_a_depth_guard_leaves_the_layers_above_it_alone():
    stages = stage_costs(model_costs("llama2-7b", 8192), 8)
    allowed = may_share(stages, alpha=0.75)
    assert [layer for layer, legal in enumerate(allowed) if legal] == list(range(23, 32))
    assert sum(may_share(stages, alpha=1.0)) == 1  # depth counts from 1 / L to 1
