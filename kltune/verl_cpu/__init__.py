"""Real verl without an accelerator: a CPU platform and a transformers rollout.

verl loads :mod:`kltune.verl_cpu.plugin` in each of its processes. Nothing else in kltune imports
this package, and it imports nothing of the rest.
"""
