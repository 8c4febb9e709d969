"""Every pair visited: your answer is right and too slow for long sequences.

case: long
kind: timeout
"""


def work_per_rank(tokens: list[list[int]]) -> list[list[int]]:
    n_ranks = len(tokens)
    return [
        [
            sum(0 <= k <= q for q in tokens[rank] for k in tokens[(rank - step) % n_ranks])
            for rank in range(n_ranks)
        ]
        for step in range(n_ranks)
    ]
