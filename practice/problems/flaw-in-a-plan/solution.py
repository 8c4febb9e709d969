"""One check after the other, in the order of the table; each relies on those before it.

Loads can be computed once the partition is sound. A chain is a source that reads elsewhere itself:
only a layer with keys and values of its own can lend them. The last check takes each conversion
away alone. A plan without such a flaw may still be poor; the exact planner says how good it could
be.
"""


def flaw_in_a_plan(plan: dict) -> int:
    """A plan -> the number of its first flaw, 0 for none."""
    costs, source = plan["layer_costs"], plan["kv_source"]
    layers = range(len(costs))
    listed = [layer for stage in plan["stages"] for layer in stage]
    if listed != list(layers):
        return 1
    shared = [layer for layer in layers if source[layer] != layer]
    if any(not 0 <= source[layer] < layer for layer in shared):
        return 2
    if any(source[layer] in shared for layer in shared):
        return 3
    stage_of = {layer: i for i, stage in enumerate(plan["stages"]) for layer in stage}
    if plan["same_stage"] and any(stage_of[source[i]] != stage_of[i] for i in shared):
        return 4
    if len(shared) > plan["budget"]:
        return 5

    def loads(converted):
        return [
            extra + sum(costs[i] - plan["saving"] * (i in converted) for i in stage)
            for stage, extra in zip(plan["stages"], plan["extras"], strict=True)
        ]

    if loads(shared) != plan["loads"]:
        return 6
    if shared and max(loads(shared)) >= max(loads([])):
        return 7
    for layer in shared:
        fewer = [other for other in shared if other != layer]
        if max(loads(fewer)) <= max(loads(shared)):
            return 8
    return 0
