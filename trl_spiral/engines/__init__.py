"""
Engines, which answer requests for replies: `local/` runs models in this process, `vllm/` drives vLLM, `http/` asks
servers. `policies.py` combines engines of several policies. Neither it nor `http/` imports torch.
"""
