"""Quantised weights: how formats lay them out in memory, which weights of a network each covers.

    formats      one product's weights in a format: bytes, and the type that products multiply in
    weights      the weights of a network, by name and role
    names        patterns of the modules that a checkpoint does not quantise
    schemes      a format with the weights that it covers
    asked        schemes that `--weights` names
    checkpoints  readers of `quantization_config`, one file each
    gguf         the mixtures of llama.cpp's files
    totals       the effect of a scheme on a network, in bytes and as text

Nothing here imports torch or the libraries that make such checkpoints.
"""
