"""Scheduling policies of engines: one file each."""

from neuralpower.serving.policies.base import POLICIES, Host, Planned, Policy, State, host_of, policy_of
from neuralpower.serving.policies.sglang import SGLang
from neuralpower.serving.policies.vllm import VLLM

__all__ = ["POLICIES", "Host", "Planned", "Policy", "SGLang", "State", "VLLM", "host_of", "policy_of"]
