"""
Engines, which answer requests: `local/` runs models in this process, `vllm/` drives vLLM, and `http/` asks servers.
`policies.py` combines engines of several policies, and `build.py` makes the engines that names describe.
"""
