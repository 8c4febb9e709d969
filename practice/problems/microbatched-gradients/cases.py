"""Cases of micro-batched gradients; the oracle is one float64 step on the whole batch."""

import torch
import torch.nn.functional as F

from kvpipe_practice.case import Case, Tolerance

RESULT = ("loss", "gradient")
TOLERANCE = Tolerance(
    2e-5,
    why="float32 keeps 7 digits; sums over up to 200 tokens in another order lose about one",
    per="tensor",
)


def oracle(weight: torch.Tensor, microbatches: list) -> tuple[torch.Tensor, torch.Tensor]:
    """All tokens in one list, the ignored ones removed, one mean, one backward."""
    W = weight.double().requires_grad_()
    x = torch.cat([x.reshape(-1, x.shape[-1]) for x, _ in microbatches]).double()
    y = torch.cat([targets.reshape(-1) for _, targets in microbatches])
    x, y = x[y >= 0], y[y >= 0]
    loss = F.nll_loss(torch.log_softmax(x @ W.T, dim=-1), y)
    loss.backward()
    return loss.detach().float(), W.grad.float()


def case(name: str, tests: str, weight, microbatches, **options) -> Case:
    inputs = {"weight": weight, "microbatches": microbatches}
    return Case(name, tests, inputs, oracle(weight, microbatches), **options)


def cases(seed: int):
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    def size(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=random))

    def microbatch(B: int, T: int, C: int, V: int, ignored: int = 0):
        """Random tokens; the last `ignored` of every row are not valid."""
        targets = torch.randint(V, (B, T), generator=random)
        targets[:, T - ignored :] = -100
        return normal(B, T, C), targets

    short = (torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([[0, 0, 0]]))
    yield case(
        "example",
        "the example of the statement: 3 tokens and 2",
        torch.zeros(2, 1),
        [short, (torch.tensor([[[4.0]], [[5.0]]]), torch.tensor([[0], [0]]))],
    )
    yield case(
        "one-microbatch", "M = 1 is an ordinary step", normal(5, 3), [microbatch(2, 4, 3, 5)]
    )
    yield case(
        "equal-sizes",
        "three micro-batches of the same size",
        normal(5, 3),
        [microbatch(2, 4, 3, 5) for _ in range(3)],
    )
    yield case(
        "rows-differ",
        "micro-batches with 3, 3 and 2 rows, as when 8 rows are cut in three",
        normal(6, 4),
        [microbatch(B, 5, 4, 6) for B in (3, 3, 2)],
    )
    yield case(
        "lengths-differ",
        "the same number of rows, but longer and shorter ones",
        normal(6, 4),
        [microbatch(2, T, 4, 6) for T in (3, 11)],
    )
    yield case(
        "ignored-targets",
        "tokens with target -100 count neither in the sum nor in N",
        normal(6, 4),
        [microbatch(2, 5, 4, 6, ignored=3), microbatch(2, 5, 4, 6, ignored=1)],
    )
    yield case(
        "nothing-valid",
        "a micro-batch without a valid token adds nothing, not NaN",
        normal(6, 4),
        [microbatch(2, 5, 4, 6), microbatch(3, 4, 4, 6, ignored=4), microbatch(1, 7, 4, 6)],
    )
    for name, tests in (
        ("random", "random micro-batches, all sizes different"),
        ("random-hidden", "other random micro-batches"),
    ):
        V, C = size(20, 30), size(8, 12)
        sizes = [(m + 1, 5 + 3 * m + size(0, 2)) for m in range(size(3, 4))]
        yield case(
            name,
            tests,
            normal(V, C),
            [microbatch(B, T, C, V, ignored=size(1, 3)) for B, T in reversed(sizes)],
            hidden=name == "random-hidden",
        )
