"""Cases of the tied embedding; the oracle is one float64 process, once untied and once tied."""

import torch

from kvpipe_practice.case import Case, Tolerance

FIRST_S = 30  # what torch loads for its first backward counts here
RESULT = ("grad_h", "of_first", "of_last", "tied")
TOLERANCE = Tolerance(
    2e-5,
    why="float32 keeps 7 digits; three matrix products and sums over tokens lose about one",
    per="tensor",
)


def forward(tokens, targets, looked_up, head, first, second) -> tuple:
    """Loss and hidden states of the boundary, in one graph; the loss from its definition."""
    x = torch.nn.functional.one_hot(tokens, len(head)).double() @ looked_up
    h = x + torch.tanh(x @ first.T)
    h.retain_grad()
    y = h + torch.tanh(h @ second.T)
    logits = torch.einsum("btc,vc->btv", y, head)
    chosen = logits.gather(-1, targets[..., None])[..., 0]
    return (logits.logsumexp(dim=-1) - chosen).mean(), h


def oracle(tokens, targets, embedding, first, second) -> tuple:
    """The parts from a model with two matrices, the whole from a model with one."""
    A, B = first.double(), second.double()
    look_up, head, one = (embedding.double().clone().requires_grad_() for _ in range(3))
    loss, h = forward(tokens, targets, look_up, head, A, B)
    loss.backward()
    forward(tokens, targets, one, one, A, B)[0].backward()
    return tuple(each.grad.float() for each in (h, look_up, head, one))


def cases(seed: int):
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    def size(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=random))

    def some(V: int, *shape: int) -> torch.Tensor:
        return torch.randint(V, shape, generator=random)

    def case(
        name: str, tests: str, tokens, targets, embedding, first, second, said=None, **options
    ):
        inputs = {
            "tokens": tokens,
            "targets": targets,
            "embedding": embedding,
            "first": first,
            "second": second,
        }
        expected = oracle(*inputs.values())
        if said:
            torch.testing.assert_close(said, expected)
        return Case(name, tests, inputs, said or expected, **options)

    nothing = torch.zeros(2, 2)
    yield case(
        "example",
        "the example of the statement: one token, used four times",
        torch.tensor([[0, 0], [0, 0]]),
        torch.tensor([[1, 1], [1, 0]]),
        torch.tensor([[1.0, 0.0], [1.0, 2.0]]),
        torch.tensor([[0.0, 1.0], [0.0, 0.0]]),
        nothing,
        said=(
            torch.tensor([[[0.0, -0.25], [0.0, -0.25]], [[0.0, -0.25], [0.0, 0.25]]]),
            torch.tensor([[0.0, -0.5], [0.0, 0.0]]),
            torch.tensor([[0.25, 0.0], [-0.25, 0.0]]),
            torch.tensor([[0.25, -0.5], [-0.25, 0.0]]),
        ),
        limit_s=FIRST_S,
    )
    yield case(
        "layer-of-stage-1",
        "the gradient that is sent has gone through stage 1's layer",
        torch.tensor([[2, 0, 1]]),
        torch.tensor([[0, 1, 3]]),
        normal(4, 2),
        nothing,
        normal(2, 2),
    )
    yield case(
        "layer-of-stage-0",
        "it goes on through stage 0's layer to the embedding",
        torch.tensor([[3, 1, 1]]),
        torch.tensor([[1, 1, 2]]),
        normal(4, 2),
        normal(2, 2),
        nothing,
    )
    yield case(
        "unused-rows",
        "rows of tokens that never occur get a gradient from the head alone",
        torch.tensor([[5, 5, 2], [2, 5, 5]]),
        torch.tensor([[5, 2, 5], [5, 5, 2]]),
        normal(9, 4),
        normal(4, 4),
        normal(4, 4),
    )
    yield case(
        "one-token",
        "a batch of a single token",
        torch.tensor([[1]]),
        torch.tensor([[0]]),
        normal(3, 5),
        normal(5, 5),
        normal(5, 5),
    )
    for name, tests in (
        ("seeded", "random tokens, rows and columns all different"),
        ("seeded-hidden", "other random tokens and weights"),
    ):
        B, T, C, V = size(2, 3), size(5, 7), size(8, 11), size(20, 30)
        yield case(
            name,
            tests,
            some(V, B, T),
            some(V, B, T),
            normal(V, C),
            normal(C, C) / C**0.5,
            normal(C, C) / C**0.5,
            hidden=name == "seeded-hidden",
        )
