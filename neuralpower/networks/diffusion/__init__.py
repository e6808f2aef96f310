"""Networks of diffusers, and the pipelines that they make up.

classes      a class of diffusers and the fields of its config.json -> a module, without weights
arguments    inputs of a denoiser or decoder, from its configuration and the sizes of its latents
pictures     the request to a pipeline: resolution, frames, steps, guidance, images
pipelines    a pipeline's components and defaults, from model_index.json or from the catalogue
families     how each class of pipelines runs: its latents, its texts, its guidance
composed     all components of a pipeline as one module, which says how often each of them runs
published/   the catalogue: one JSON file a pipeline, with the source of each configuration
"""
