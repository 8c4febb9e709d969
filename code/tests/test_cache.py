"""The cache gives back exactly what was appended, and costs exactly what the formula says."""

import pytest
import torch

from kvpipe.cache import KVCache
from kvpipe.config import Config
from kvpipe.transformer import Transformer

B, K, D = 2, 3, 4


def part(n: int, seed: int, dtype=torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    k, v = torch.randn(2, B, K, n, D, generator=generator)
    return k.to(dtype), v.to(dtype)


def where(start: int, n: int) -> torch.Tensor:
    """Positions of two rows; the second is shorter by two tokens, padded on the left."""
    row = torch.arange(start, start + n)
    return torch.stack([row, (row - 2).clamp(min=-1)])


@pytest.mark.parametrize("capacity", [1, 2, 5, 11, 64])
def test_append_gives_back_everything_in_order(capacity):
    cache, kept, start = KVCache(capacity), {0: [], 4: []}, 0
    for step, n in enumerate((3, 1, 1, 4, 2)):
        for layer in kept:
            k, v = part(n, seed=10 * step + layer)
            kept[layer].append((k, v))
            all_k, all_v, positions = cache.append(layer, k, v, where(start, n))
            torch.testing.assert_close(
                all_k, torch.cat([k for k, _ in kept[layer]], 2), rtol=0, atol=0
            )
            torch.testing.assert_close(
                all_v, torch.cat([v for _, v in kept[layer]], 2), rtol=0, atol=0
            )
            torch.testing.assert_close(positions, where(0, start + n), rtol=0, atol=0)
        start += n
    assert cache.seen == 11


def test_seen_counts_tokens_once_whatever_the_layers():
    cache = KVCache()
    assert (cache.seen, cache.nbytes) == (0, 0)
    for layer in (2, 5):
        cache.append(layer, *part(3, seed=1), where(0, 3))
        assert cache.seen == 3
    cache.append(2, *part(1, seed=2), where(3, 1))
    assert cache.seen == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_source", [(0, 1, 2, 3), (0, 0, 2, 2), (0, 0, 0, 0)])
def test_nbytes_is_the_closed_form(dtype, kv_source):
    c = Config(53, 24, 4, 4, 2, 6, 40, kv_source=kv_source)
    model, cache = Transformer(c).to(dtype), KVCache(capacity=4)
    for n in (5, 1, 3):
        model(torch.zeros(B, n, dtype=torch.long), cache=cache)
    n_storing = len(set(kv_source))
    assert cache.nbytes == 2 * n_storing * 2 * 6 * dtype.itemsize * B * 9
    assert cache.nbytes == c.kv_bytes_per_token(dtype.itemsize) * B * 9


def test_a_shared_layer_stores_nothing():
    c = Config(53, 24, 4, 4, 2, 6, 40, kv_source=(0, 0, 2, 2))
    stored = []

    class Watched(KVCache):
        def append(self, layer, *tensors):
            stored.append(layer)
            return super().append(layer, *tensors)

    Transformer(c)(torch.zeros(B, 5, dtype=torch.long), cache=Watched())
    assert stored == [0, 2]


def test_a_cache_with_room_never_moves_its_buffers():
    cache = KVCache(capacity=9)
    first = cache.append(0, *part(5, seed=1), where(0, 5))
    second = cache.append(0, *part(4, seed=2), where(5, 4))
    assert [x.data_ptr() for x in first] == [x.data_ptr() for x in second]


def test_buffers_grow_geometrically():
    cache, moves, last = KVCache(capacity=1), 0, None
    for step in range(100):
        pointer = cache.append(0, *part(1, seed=step), where(step, 1))[0].data_ptr()
        moves, last = moves + (pointer != last), pointer
    assert moves <= 8  # capacities 1, 2, 4, ..., 128


def test_later_appends_leave_earlier_tokens_alone():
    cache = KVCache(capacity=4)
    k, v = part(3, seed=1)
    cache.append(0, k, v, where(0, 3))
    for step in range(3, 9):
        all_k, all_v, positions = cache.append(0, *part(1, seed=step), where(step, 1))
    torch.testing.assert_close(all_k[:, :, :3], k, rtol=0, atol=0)
    torch.testing.assert_close(all_v[:, :, :3], v, rtol=0, atol=0)
    assert positions.tolist() == where(0, 9).tolist()


def test_a_batch_of_another_size_is_refused():
    cache = KVCache()
    cache.append(0, *part(3, seed=1), where(0, 3))
    k, v = part(1, seed=2)
    with pytest.raises(ValueError, match=r"batch of 1 rows meets a cache of 2 rows"):
        cache.append(0, k[:1], v[:1], where(3, 1)[:1])


@pytest.mark.parametrize("capacity", [0, -3])
def test_a_capacity_that_cannot_grow_is_refused(capacity):
    with pytest.raises(ValueError, match=rf"capacity {capacity} tokens.*1 or more"):
        KVCache(capacity)
