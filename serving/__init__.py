"""The OpenAI-compatible server over the decode engine.

Owns HTTP, the processes and threads around the engine, and Prometheus. Knows nothing of how a
draft is trained: the trainer is a child process met only through the replay store, the registry
and one status file.
"""
