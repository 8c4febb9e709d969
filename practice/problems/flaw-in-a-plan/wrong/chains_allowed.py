"""Chains allowed: your plan lets a layer read one that has no keys of its own.

case: chain
kind: value
"""


def flaw_in_a_plan(plan: dict) -> int:
    costs, source = plan["layer_costs"], plan["kv_source"]
    layers = range(len(costs))
    listed = [layer for stage in plan["stages"] for layer in stage]
    if listed != list(layers):
        return 1
    shared = [layer for layer in layers if source[layer] != layer]
    if any(not 0 <= source[layer] < layer for layer in shared):
        return 2
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
