"""Cases of flawed plans: a sound plan, and one flaw put into it."""

import copy
import random

from kvpipe_practice.case import Case

EXAMPLE = {
    "layer_costs": [10, 10, 10, 10],
    "saving": 3,
    "extras": [0, 4],
    "stages": [[0, 1], [2, 3]],
    "kv_source": [0, 1, 2, 2],
    "same_stage": True,
    "budget": 1,
    "loads": [20, 21],
}
FLAWS = ("none", "partition", "later source", "chain", "other stage", "budget", "loads", "no gain",
         "wasted conversion")  # fmt: skip


def price(plan: dict) -> list[int]:
    """What the stages of a plan cost, layer by layer."""
    loads = list(plan["extras"])
    for stage, layers in enumerate(plan["stages"]):
        for layer in layers:
            loads[stage] += plan["layer_costs"][layer]
            loads[stage] -= plan["saving"] * (plan["kv_source"][layer] != layer)
    return loads


def sound(draw: random.Random) -> dict:
    """Two conversions on the last stage, whose head is worth a little more than both."""
    n_stages, size = draw.randint(2, 4), draw.randint(4, 6)
    n, saving = n_stages * size, draw.randint(2, 4)
    stages = [list(range(i * size, (i + 1) * size)) for i in range(n_stages)]
    plan = {
        "layer_costs": [draw.randint(11, 15)] * n,
        "saving": saving,
        "extras": [0] * (n_stages - 1) + [2 * saving + draw.randint(1, 2)],
        "stages": stages,
        "kv_source": list(range(n)),
        "same_stage": draw.random() < 0.7,
        "budget": draw.randint(2, 4),
        "loads": [],
    }
    first, second = sorted(draw.sample(range(n - size + 1, n), 2))
    plan["kv_source"][first] = plan["kv_source"][second] = n - size
    plan["loads"] = price(plan)
    return plan


def spoiled(plan: dict, flaw: str, draw: random.Random) -> dict:
    """The same plan with this flaw as its first."""
    plan = copy.deepcopy(plan)
    source, n = plan["kv_source"], len(plan["kv_source"])
    size = len(plan["stages"][-1])
    shared = [layer for layer in range(n) if source[layer] != layer]
    if flaw == "partition":
        stage = draw.choice(plan["stages"])
        change = draw.choice(("missing", "repeated", "swapped"))
        if change == "missing":
            stage.pop(draw.randrange(len(stage)))
        elif change == "repeated":
            stage.insert(0, stage[0])
        else:
            stage[0], stage[1] = stage[1], stage[0]
    elif flaw == "later source":
        layer = draw.choice([layer for layer in range(n - size, n - 1) if source[layer] == layer])
        source[layer] = draw.choice((n - 1 if source[n - 1] == n - 1 else n - 2, -1))
        if source[layer] == layer:
            source[layer] = -1
    elif flaw == "chain":
        source[shared[1]] = shared[0]
    elif flaw == "other stage":
        plan["same_stage"] = True
        source[draw.choice(shared)] = draw.randrange(n - size)
    elif flaw == "budget":
        plan["budget"] = draw.randint(0, 1)
    elif flaw == "loads":
        plan["loads"][draw.randrange(len(plan["loads"]))] += draw.choice((-1, 1, plan["saving"]))
    elif flaw == "no gain":
        for layer in shared:
            source[layer] = layer
        source[draw.randint(1, size - 1)] = 0
    elif flaw == "wasted conversion":
        plan["budget"] = 4
        source[draw.randint(1, size - 1)] = 0
    if flaw in ("no gain", "wasted conversion", "other stage", "chain", FLAWS.index("budget")):
        plan["loads"] = price(plan)
    return plan


def cases(seed: int):
    draw = random.Random(seed)

    def case(name: str, tests: str, plan: dict, expected: int, **options):
        return Case(name, tests, {"plan": plan}, expected, **options)

    yield case("sound", "the example: nothing is wrong", EXAMPLE, FLAWS.index("none"))
    other = EXAMPLE | {"kv_source": [0, 1, 2, 1]}
    yield case("other-stage", "a source on another stage", other, FLAWS.index("other stage"))
    no_gain = EXAMPLE | {"kv_source": [0, 0, 2, 3], "loads": [17, 24]}
    yield case("no-gain", "the largest stage stays as it was", no_gain, FLAWS.index("no gain"))
    nothing = EXAMPLE | {"kv_source": [0, 1, 2, 3], "loads": [20, 24]}
    yield case(
        "nothing-shared",
        "a plan without conversions promises nothing",
        nothing,
        FLAWS.index("none"),
    )
    border = other | {"same_stage": False}
    yield case("border-allowed", "sources may lie elsewhere", border, FLAWS.index("none"))
    itself = EXAMPLE | {"kv_source": [0, 1, 3, 3], "loads": [20, 21]}
    yield case("later-source", "layer 2 reads layer 3", itself, FLAWS.index("later source"))
    chain = EXAMPLE | {
        "kv_source": [0, 1, 1, 2],
        "same_stage": False,
        "loads": [20, 18],
        "budget": 2,
    }
    yield case("chain", "layer 3 reads layer 2, which reads layer 1", chain, FLAWS.index("chain"))
    both = EXAMPLE | {"stages": [[0, 1], [3, 2]], "budget": 0}
    yield case("two-flaws", "the first of two flaws counts", both, FLAWS.index("partition"))
    wasted = EXAMPLE | {"kv_source": [0, 0, 2, 2], "loads": [17, 21], "budget": 2}
    yield case("wasted", "layer 1 shares and the largest stage does not feel it", wasted,
               FLAWS.index("wasted conversion"))  # fmt: skip
    for i, flaw in enumerate(FLAWS * 3):
        hidden = i >= len(FLAWS)
        name = f"{'random-hidden' if hidden else 'random'}-{i + 1}"
        yield case(
            name,
            "a random plan",
            spoiled(sound(draw), flaw, draw),
            FLAWS.index(flaw),
            hidden=hidden,
        )
