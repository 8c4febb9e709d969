"""Work per rank: how many pairs of query and key each rank computes at each step of the ring."""


def work_per_rank(tokens: list[list[int]]) -> list[list[int]]:
    """Positions of every rank -> [step][rank] pairs of query and key that it computes."""
    raise NotImplementedError("write work_per_rank here")
