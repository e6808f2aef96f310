"""FLOP of small networks on meta tensors, by neuralpower and by torch.utils.flop_counter."""

from __future__ import annotations

from collections.abc import Iterator

from neuralpower.networks.sources import InputRequest, resolve
from neuralpower.networks.zoo import ZOO
from neuralpower.profiling import profile

SMALL = "num_hidden_layers=2&hidden_size=64&num_attention_heads=4&intermediate_size=128"
TEXT = f"{SMALL}&vocab_size=100"
DECODER = f"{TEXT}&pad_token_id=0"
GPT = "n_layer=2&n_embd=64&n_head=4&vocab_size=100"
TRANSFORMERS = {
    **dict.fromkeys(
        ("bert", "roberta", "electra", "ernie", "camembert", "mpnet", "xlm-roberta", "data2vec-text"), TEXT
    ),
    **dict.fromkeys(("bert-generation", "mobilebert", "gpt_neox"), TEXT),
    **dict.fromkeys(
        ("llama", "phi", "olmo", "olmo2", "granite", "starcoder2", "cohere", "phi3", "smollm3"), DECODER
    ),
    **dict.fromkeys(
        ("vit", "deit", "beit", "vit_mae", "ijepa", "vit_msn", "dinov3_vit", "clip_vision_model"), SMALL
    ),
    "albert": f"{TEXT}&embedding_size=32",
    "distilbert": "n_layers=2&dim=64&n_heads=4&hidden_dim=128&vocab_size=100",
    "gpt2": f"{GPT}&bos_token_id=0&eos_token_id=0",
    "openai-gpt": GPT,
    "ctrl": "n_layer=2&n_embd=64&n_head=4&dff=128&vocab_size=100",
    "xlnet": "n_layer=2&d_model=64&n_head=4&d_inner=128&vocab_size=100",
    "t5": "num_layers=2&d_model=64&d_kv=16&num_heads=4&d_ff=128&vocab_size=100",
    "mamba": "num_hidden_layers=2&hidden_size=64&vocab_size=100",
    "bloom": "n_layer=2&hidden_size=64&n_head=4&vocab_size=100",
    "swin": "embed_dim=24&depths=[1,1]&num_heads=[2,4]",
    "resnet": "embedding_size=16&hidden_sizes=[16,32]&depths=[1,1]",
    "convnext": "hidden_sizes=[16,32]&depths=[1,1]&num_stages=2",
}
RECURRENT = ("lstm_language_model", "paradnn_rnn")  # PyTorch's counter has no formula for recurrent layers


def networks() -> Iterator[str]:
    """MODEL of every network compared."""
    yield from (f"zoo:{name}" for name in ZOO if name not in RECURRENT)
    yield from (f"transformers:{kind}?{overrides}" for kind, overrides in TRANSFORMERS.items())


def counted(model: str) -> tuple[int, int | None]:
    """(FLOP by neuralpower, FLOP by PyTorch) of the products in one forward pass of two samples."""
    source = resolve(model)
    module = source.build("meta")
    text = "vocab_size" in model
    inputs = source.inputs(module, InputRequest(batch_size=2, seq_len=16 if text else None))
    check = profile(module, inputs.args, inputs.kwargs, runtime=False, power="none").check()
    return check.flops, check.flop_counter


def main() -> None:
    """Print one line per network."""
    equal = total = 0
    for model in networks():
        ours, theirs = counted(model)
        equal, total = equal + (ours == theirs), total + 1
        print(f"{model.split('?')[0]:40} {ours:16,} {theirs if theirs is None else format(theirs, ','):>16}")
    print(f"equal: {equal} of {total}")


if __name__ == "__main__":
    main()
