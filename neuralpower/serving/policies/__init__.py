"""Scheduling policies of engines: one file each."""

from neuralpower.serving.policies.base import POLICIES, Planned, Policy, State, policy_of
from neuralpower.serving.policies.sglang import SGLang
from neuralpower.serving.policies.vllm import VLLM

__all__ = ["POLICIES", "Planned", "Policy", "SGLang", "State", "VLLM", "policy_of"]
