"""Networks of diffusers, and the pipelines that they make up; published ones are in `networks/names`.

classes      a class of diffusers and the fields of its config.json -> a module, without weights
arguments    inputs of a denoiser or decoder, from its configuration and the sizes of its latents
pictures     the request to a pipeline: resolution, frames, steps, guidance, images
families     a pipeline's components, and how its class runs: its latents, its texts, its guidance
composed     all components of a pipeline as one module, which says how often each of them runs
pipelines    a model_index.json or an entry of the catalogue -> a pipeline, and what runs it or a part
"""
