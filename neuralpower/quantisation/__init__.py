"""Quantised weights: how formats lay them out in memory, which weights of a network each covers.

    formats      one product's weights in a format: bytes, and the type that products multiply in
    weights      the weights of a network, by name and sort
    names        patterns that say which modules a checkpoint leaves out
    schemes      a format with the weights that it covers
    asked        schemes that `--weights` names
    checkpoints  readers of `quantization_config`, one file each
    gguf         the mixtures of llama.cpp's files
    totals       what a scheme makes of a network, in bytes and words

Nothing here imports torch or the libraries that make such checkpoints.
"""
