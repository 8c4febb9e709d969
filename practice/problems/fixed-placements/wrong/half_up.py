"""Half up: your uniform layers round half way up; half way goes to the even distance.

case: half-way
kind: value
"""


def placements(n_layers: int, budget: int) -> dict:
    first, front = n_layers // 2, budget // 2
    width = n_layers - 1 - first
    uniform = [n_layers - 1]
    if budget > 1:
        uniform = [first + (i * width / (budget - 1) + 0.5) // 1 for i in range(budget)]
        uniform = [int(layer) for layer in uniform]
    bipolar = [*range(first, first + front), *range(n_layers - (budget - front), n_layers)]
    return {"uniform": uniform, "bipolar": bipolar}
