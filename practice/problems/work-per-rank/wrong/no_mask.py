"""No mask: your count is that of full attention; later keys are not seen.

case: example
kind: value
"""


def work_per_rank(tokens: list[list[int]]) -> list[list[int]]:
    n_ranks = len(tokens)
    keys = [[p for p in mine if p >= 0] for mine in tokens]
    return [
        [len(keys[(rank - step) % n_ranks]) * len(keys[rank]) for rank in range(n_ranks)]
        for step in range(n_ranks)
    ]
