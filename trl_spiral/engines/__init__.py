"""
What answers requests. Torch starts here, with `transformers.py`, `continuous.py`, `vllm.py` and `scoring.py`; the engines
behind an address (`http.py`, `endpoint.py`, `router.py`) do without.
"""
