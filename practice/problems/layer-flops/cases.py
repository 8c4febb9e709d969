"""Cases of layer FLOPs; the oracle lists the matrix products and adds up the pairs row by row."""

import random

from kvpipe_practice.case import Case


def product(rows: int, inner: int, columns: int) -> int:
    """FLOPs of one matrix product: each result is a sum of `inner` multiply-adds."""
    return rows * columns * 2 * inner


def twice_the_pairs(T: int, causal: str) -> int:
    """Twice the counted pairs, one query after the other."""
    if causal == "exact":
        return sum(2 * (q + 1) for q in range(T))
    return sum(T if causal == "half" else 2 * T for _ in range(T))


def oracle(T: int, C: int, F: int, H: int, K: int, D: int, causal: str) -> dict:
    own = [product(T, C, H * D), product(T, H * D, C)]
    own += [product(T, C, F), product(T, C, F), product(T, F, C)]
    kv = [product(T, C, D) for _ in range(K) for _ in ("key", "value")]
    score, mixing = product(1, D, 1), product(1, 1, D)
    attention = H * (score + mixing) // 2 * twice_the_pairs(T, causal)
    total = sum(own) + sum(kv) + attention
    return {"flops": total, "flops_saved": sum(kv), "cache_saved": sum(D for _ in kv)}


def cases(seed: int):
    draw = random.Random(seed)
    names = ("n_tokens", "width", "ffn_width", "n_heads", "n_kv_heads", "head_size", "causal")

    def case(name: str, tests: str, *sizes, said: int | None = None, **options):
        expected = oracle(*sizes)
        assert said in (None, expected["flops"]), (name, expected)
        return Case(name, tests, dict(zip(names, sizes, strict=True)), expected, **options)

    yield case("example", "the example of the statement", 3, 8, 5, 4, 1, 2, "half", said=1824)
    yield case("full", "all pairs counted", 3, 8, 5, 4, 1, 2, "full", said=1968)
    yield case("exact", "visible pairs counted", 3, 8, 5, 4, 1, 2, "exact", said=1872)
    yield case(
        "head-size-apart", "heads that together are wider than the model", 4, 6, 7, 3, 1, 5, "full"
    )
    yield case("one-token", "a sequence of one token sees itself", 1, 8, 6, 2, 2, 4, "exact")
    yield case(
        "llama2-7b",
        "LLaMA2-7B at 8,192 tokens, every query head with its own keys: 3.865e12",
        *(8192, 4096, 11_008, 32, 32, 128, "half"),
        said=3_865_470_566_400,
    )
    yield case(
        "llama3-8b",
        "LLaMA3-8B at 8,192 tokens, four query heads to a key: a quarter of the saving",
        *(8192, 4096, 14_336, 32, 8, 128, "half"),
    )
    yield case(
        "long",
        "131,072 tokens, where attention outweighs everything else",
        *(131_072, 4096, 11_008, 32, 32, 128, "exact"),
    )
    for i, causal in enumerate(("half", "full", "exact", "half", "full", "exact")):
        hidden = i > 2
        kv_heads, group = draw.randint(2, 5), draw.randint(2, 4)
        yield case(
            f"random-hidden-{i - 2}" if hidden else f"random-{i + 1}",
            "other random sizes" if hidden else "random sizes, all different",
            2 * draw.randint(10, 40) + 1,
            draw.randint(100, 199),
            draw.randint(200, 299),
            kv_heads * group,
            kv_heads,
            2 * draw.randint(12, 31),
            causal,
            hidden=hidden,
        )
